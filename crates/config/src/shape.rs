//! Types of the values of keys.

/// Type of a key's value in TOML, for the JSON schema that editors and generators use.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Text: a name, a path, a size or time with its unit.
    Text,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A whole number, between the two bounds.
    Count(u32, u32),
    /// One of these whole numbers.
    Level(&'static [u32]),
    /// A number with or without decimals, up to this maximum.
    Number(u32),
    /// A list of texts.
    Texts,
    /// A table of texts.
    Labels,
    /// A table with these texts: required ones, then optional ones.
    Record(&'static [&'static str], &'static [&'static str]),
    /// A table with these required texts, optional texts and lists of texts; or a list of such tables.
    Records(&'static [&'static str], &'static [&'static str], &'static [&'static str]),
    /// One of these texts, or a whole number between the two bounds.
    ChoiceOrCount(&'static [&'static str], u32, u32),
    /// One of these texts, or a list of whole numbers.
    ChoiceOrCounts(&'static [&'static str]),
}
