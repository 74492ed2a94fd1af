//! Every Rust file begins with a description of its content.

use super::at;
use crate::Violation;
use crate::source::Source;

/// Rust files without a `//!` header, or with an empty one.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let headless = sources.iter().filter(|source| source.is_rust() && !has_head(&source.text));
    headless.map(|source| at(source, 0, "begin the file with `//!` and what lives there")).collect()
}

fn has_head(text: &str) -> bool {
    // A script with an interpreter line must begin with that line; fuzz targets accept `#![no_main]` only after the
    // header.
    text.strip_prefix("//!").and_then(|rest| rest.lines().next()).is_some_and(|head| head.trim().len() >= 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_empty_head_is_found() {
        let with = |text: &str| check(&[Source::new("a.rs", text)]).len();
        assert_eq!(with("use std::fmt;\n"), 1);
        assert_eq!(with("//!\n"), 1);
        assert_eq!(with("//! What lives here, in a sentence.\n"), 0);
        assert_eq!(check(&[Source::new("a.md", "text")]), []);
    }
}
