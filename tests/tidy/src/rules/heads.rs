//! Every Rust file begins with a description of its content.

use super::at;
use crate::Violation;
use crate::source::Source;

/// Rust files without a `//!` header, or with an empty one.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let without_header = sources.iter().filter(|source| source.is_rust() && !has_header(&source.text));
    without_header.map(|source| at(source, 0, "begin the file with a `//!` line that describes its content")).collect()
}

fn has_header(text: &str) -> bool {
    // A script with an interpreter line must begin with that line; fuzz targets accept `#![no_main]` only after the
    // header.
    text.strip_prefix("//!")
        .and_then(|rest| rest.lines().next())
        .is_some_and(|first_line| first_line.trim().len() >= 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_or_empty_header_is_found() {
        let count = |text: &str| check(&[Source::new("a.rs", text)]).len();
        assert_eq!(count("use std::fmt;\n"), 1);
        assert_eq!(count("//!\n"), 1);
        assert_eq!(count("//! Description of the content.\n"), 0);
        assert_eq!(check(&[Source::new("a.md", "text")]), []);
    }
}
