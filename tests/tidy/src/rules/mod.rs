//! The rules without exemption, one file each.

pub mod banned;
pub mod circles;
pub mod heads;
pub mod idioms;
pub mod layers;
pub mod length;
pub mod links;
pub mod marks;
mod methods;
pub mod named;
pub mod paths;
pub mod subjects;
pub mod test_names;
pub mod unsafety;
pub mod unwraps;
pub mod width;
pub mod words;

use crate::Violation;
use crate::source::Source;

/// A rule: checks all files and returns the violations.
pub type Rule = fn(&[Source]) -> Vec<Violation>;

/// All rules with their names.
pub const ALL: [(&str, Rule); 16] = [
    ("length", length::check),
    ("heads", heads::check),
    ("unsafety", unsafety::check),
    ("unwraps", unwraps::check),
    ("banned", banned::check),
    ("paths", paths::check),
    ("marks", marks::check),
    ("layers", layers::check),
    ("circles", circles::check),
    ("links", links::check),
    ("named", named::check),
    ("width", width::check),
    ("subjects", subjects::check),
    ("test names", test_names::check),
    ("words", words::check),
    ("idioms", idioms::check),
];

/// A violation at line `index` (counted from 0) of `source`.
fn at(source: &Source, index: usize, text: impl Into<String>) -> Violation {
    Violation { path: source.path.clone(), line: index + 1, text: text.into() }
}

/// Lines of a page outside its code blocks, counted from 0.
fn prose(page: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// True if `line` contains `word` with no adjacent letter, digit or underscore.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(start, _)| !line[..start].ends_with(is_part) && !line[start + word.len()..].starts_with(is_part))
}
