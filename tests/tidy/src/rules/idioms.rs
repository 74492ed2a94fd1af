//! Rust constructs for which another one reads better.

use super::at;
use crate::Violation;
use crate::source::Source;

/// Uses of `match ()` instead of `if`, and of a tuple of defaults instead of named fields.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, code) in source.code.iter().enumerate() {
            if code.contains("match () {") {
                violations.push(at(source, index, "`match ()` is an `if` with `else`"));
            }
            if code.trim_start().starts_with("let (") && code.trim_end().ends_with(") = Default::default();") {
                violations.push(at(source, index, "a tuple of defaults: give each field its default"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_without_a_value_and_tuple_of_defaults_are_reported() {
        let text = "fn f() {\n    let (a, b) = Default::default();\n    match () {\n        () => {}\n    }\n}\n";
        let lines = check(&[Source::new("crates/a/src/a.rs", text)]).iter().map(|found| found.line).collect::<Vec<_>>();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn default_of_one_value_passes() {
        let text = "fn f() {\n    let a: u64 = Default::default();\n    match a {\n        _ => {}\n    }\n}\n";
        assert_eq!(check(&[Source::new("crates/a/src/a.rs", text)]), []);
    }
}
