//! Reading of a table: typed values with their locations, and detection of unknown keys.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, TABLES, find_key, find_table, show_table};
use super::nearest::nearest;
use super::problem::Source;

/// The reason for rejecting a value.
pub enum ValueError {
    /// Wrong type; the text names the expected type.
    Type(&'static str),
    /// Wrong value; fault and remedy.
    Value(String, String),
    /// As `Value`, for a part of the value.
    Part(Range<usize>, String, String),
}

/// A type of a key's value.
pub trait Setting: Sized {
    /// Reads the value.
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError>;
}

/// A value and its location in the file.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its bytes in the file.
    pub span: Range<usize>,
}

/// One table of the file.
pub struct Section<'a> {
    name: &'static str,
    table: Option<&'a DeTable<'a>>,
    /// Its bytes in the file, for problems with the table as a whole.
    pub span: Range<usize>,
}

/// Reports every unknown table.
pub fn check_tables(root: &DeTable<'_>, source: &mut Source<'_>) {
    for (name, value) in root {
        let (span, name) = (name.span(), name.get_ref().as_ref());
        if find_key("", name).is_some() {
            continue;
        }
        if find_table(name).is_none() {
            report_unknown(source, "", name, &span, value.get_ref().is_table());
        }
    }
}

/// Reports an unknown table or key, with the most similar known name as the remedy.
fn report_unknown(source: &mut Source<'_>, table: &str, name: &str, span: &Range<usize>, is_table: bool) {
    let known_keys = KEYS.iter().filter(|key| key.table == table).map(|key| key.name);
    let tables = TABLES.iter().filter(|_| table.is_empty()).map(|table| table.name);
    let fault = match table {
        "" if is_table => format!("unknown table [{name}]"),
        "" => format!("unknown key \"{name}\" at the top level"),
        _ => format!("unknown key \"{name}\" in {}", show_table(table)),
    };
    let other_table = KEYS.iter().find(|key| key.name == name && key.table != table);
    let remedy = match (nearest(name, known_keys.clone().chain(tables.clone())), other_table) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, Some(key)) if key.table.is_empty() => format!("\"{name}\" belongs to the top level"),
        (None, Some(key)) => format!("\"{name}\" belongs to {}", show_table(key.table)),
        (None, None) => {
            let known: Vec<_> = known_keys.chain(tables).filter(|name| !name.is_empty()).collect();
            format!("known here: {}", known.join(", "))
        }
    };
    source.add_problem(span, fault, remedy);
}

impl<'a> Section<'a> {
    /// The top level of the file.
    pub fn top(root: &'a Spanned<DeTable<'a>>) -> Self {
        Section { name: "", table: Some(root.get_ref()), span: root.span() }
    }

    /// The table `name`, with its keys checked; empty if the file has none.
    pub fn single(root: &'a DeTable<'a>, name: &'static str, source: &mut Source<'_>) -> Self {
        let Some(value) = root.get(name) else { return Section { name, table: None, span: 0..0 } };
        let span = value.span();
        let Some(table) = value.get_ref().as_table() else {
            source.add_problem(
                &span,
                format!("\"{name}\" must be a table"),
                format!("write [{name}] on a line of its own"),
            );
            return Section { name, table: None, span };
        };
        let section = Section { name, table: Some(table), span };
        section.check_keys(source);
        section
    }

    /// All tables `[[name]]`, with their keys checked.
    pub fn repeated(root: &'a DeTable<'a>, name: &'static str, source: &mut Source<'_>) -> Vec<Self> {
        let Some(value) = root.get(name) else { return Vec::new() };
        let entries = value.get_ref().as_array().map(|array| array.iter()).into_iter().flatten();
        let sections: Vec<_> = entries
            .filter_map(|entry| {
                let table = Some(entry.get_ref().as_table()?);
                Some(Section { name, table, span: entry.span() })
            })
            .collect();
        let is_list_of_tables = value.get_ref().as_array().is_some_and(|array| array.iter().count() == sections.len());
        if !is_list_of_tables {
            let remedy = format!("write [[{name}]] with double brackets, one for each");
            source.add_problem(&value.span(), format!("\"{name}\" must be a list of tables"), remedy);
        }
        for section in &sections {
            section.check_keys(source);
        }
        sections
    }

    fn check_keys(&self, source: &mut Source<'_>) {
        for (name, _) in self.table.into_iter().flatten() {
            let (span, name) = (name.span(), name.get_ref().as_ref());
            if find_key(self.name, name).is_none() {
                report_unknown(source, self.name, name, &span, false);
            }
        }
    }

    /// The value of a key; `None` if it is absent or invalid. An invalid value is reported.
    pub fn get<T: Setting>(&self, name: &'static str, source: &mut Source<'_>) -> Option<Located<T>> {
        let key = find_key(self.name, name).expect("the key is in the list of keys");
        let value = self.table?.get(name)?;
        let span = value.span();
        match T::read(value.get_ref()) {
            Ok(value) => return Some(Located { value, span }),
            Err(ValueError::Type(expected)) => source.add_problem(
                &span,
                format!("\"{name}\" must be {expected}, not {}", show_type(value.get_ref())),
                format!("write it like {name} = {}", key.example),
            ),
            Err(ValueError::Value(fault, remedy)) => source.add_problem(&span, fault, remedy),
            Err(ValueError::Part(part, fault, remedy)) => source.add_problem(&part, fault, remedy),
        }
        None
    }

    /// True when the table is in the file.
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// True when the key is in the file, readable or not.
    pub fn has(&self, name: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(name))
    }

    /// Like [`Section::get`], but an absent key is reported.
    pub fn require<T: Setting>(&self, name: &'static str, source: &mut Source<'_>) -> Option<Located<T>> {
        if !self.has(name) {
            let example = find_key(self.name, name).expect("the key is in the list of keys").example;
            let remedy = format!("add {name} = {example}");
            source.add_problem(&self.span, format!("{} without \"{name}\"", show_table(self.name)), remedy);
        }
        self.get(name, source)
    }
}

fn show_type(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with decimals",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

impl Setting for String {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("text in quotes"))?;
        if text.chars().any(messages::is_control) {
            return Err(control_characters_error());
        }
        Ok(text.to_owned())
    }
}

impl Setting for bool {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        value.as_bool().ok_or(ValueError::Type("true or false"))
    }
}

impl Setting for u32 {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let integer = value.as_integer().ok_or(ValueError::Type("a whole number"))?;
        Self::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| ValueError::Value(format!("{integer} is out of range"), format!("use 0 to {}", u32::MAX)))
    }
}

/// A number with up to three decimals, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thousandths(pub u32);

impl Setting for Thousandths {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let number = match value {
            DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => return Err(ValueError::Type("a number")),
        };
        let in_range = number.filter(|number| (0.0..=1000.0).contains(number));
        let out_of_range = || ValueError::Value("the number is out of range".to_owned(), "use 0 to 1000".to_owned());
        in_range.map(|number| Thousandths((number * 1000.0).round() as u32)).ok_or_else(out_of_range)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Setting for Size {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a size with its unit, in quotes"))?;
        units::parse_size(text).map(Size).map_err(|error| split_message(&error))
    }
}

/// Bytes per second, or off.
pub struct Rate(pub Option<u64>);

impl Setting for Rate {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("\"off\", or a size per second with its unit, in quotes"))?;
        match text {
            "off" => Ok(Rate(None)),
            _ => units::parse_size(text).map(|bytes| Rate(Some(bytes))).map_err(|error| split_message(&error)),
        }
    }
}

impl Setting for Duration {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a time with its unit, in quotes"))?;
        units::parse_time(text).map_err(|error| split_message(&error))
    }
}

impl Setting for BTreeMap<String, String> {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let table = value.as_table().ok_or(ValueError::Type("a table of texts"))?;
        let pair = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = name.get_ref();
            let error = || {
                let fault = format!("the label \"{name}\" must be text");
                ValueError::Part(value.span(), fault, format!("write {name} = \"…\""))
            };
            let text = value.get_ref().as_str().ok_or_else(error)?;
            if name.chars().chain(text.chars()).any(messages::is_control) {
                return Err(control_characters_error());
            }
            Ok((name.to_string(), text.to_owned()))
        };
        table.iter().map(pair).collect()
    }
}

/// A list whose entries are located in the file.
impl Setting for Vec<Located<String>> {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let array = value.as_array().ok_or(ValueError::Type("a list of texts"))?;
        let entry = |entry: &Spanned<DeValue<'_>>| {
            let text = entry.get_ref().as_str().ok_or_else(|| {
                ValueError::Part(
                    entry.span(),
                    "every entry of the list must be text".to_owned(),
                    "put it in quotes".to_owned(),
                )
            })?;
            if text.chars().any(messages::is_control) {
                return Err(control_characters_error());
            }
            Ok(Located { value: text.to_owned(), span: entry.span() })
        };
        array.iter().map(entry).collect()
    }
}

/// The error of a text with control characters, which a terminal would execute when it shows the text.
fn control_characters_error() -> ValueError {
    ValueError::Value(
        "the text holds control characters".to_owned(),
        "write it without \\u, \\e and line ends".to_owned(),
    )
}

/// Splits a message of the form `fault; remedy`.
pub fn split_message(message: &str) -> ValueError {
    let (fault, remedy) = message.split_once("; ").unwrap_or((message, "see docs/admin/configuration.md"));
    ValueError::Value(fault.to_owned(), remedy.to_owned())
}
