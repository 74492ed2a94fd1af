//! Production code has no `unwrap()`: `expect` states why it holds.

use super::at;
use crate::Violation;
use crate::source::Source;

/// Calls of `unwrap()` outside unit tests in product crates, without a comment with the reason.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/") && source.path.contains("/src/")) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (index, code) in source.production_code().iter().enumerate() {
            let has_reason = |line: &&str| line.contains("//");
            let explained = has_reason(&lines[index]) || index > 0 && has_reason(&lines[index - 1]);
            if code.contains(".unwrap()") && !explained {
                violations.push(at(source, index, "unwrap() without its invariant: use expect(\"why it holds\")"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwrap_is_found_in_production_code_and_not_in_unit_tests() {
        let count = |text: &str| check(&[Source::new("crates/a/src/b.rs", text)]).len();
        assert_eq!(count("let a = b.unwrap();\n"), 1);
        assert_eq!(count("// Never empty: filled above.\nlet a = b.unwrap();\n"), 0);
        assert_eq!(count("#[cfg(test)]\nmod tests {\n    let a = b.unwrap();\n}\n"), 0);
    }
}
