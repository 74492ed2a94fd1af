//! Names of tests are short conditions with an expectation, not sentences with a relative clause.

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

const CHARS_MAX: usize = 70;
const BANNED_WORDS: [&str; 4] = ["who", "whoever", "nobody", "somebody"];

/// Tests with a name past the limit, or with a banned word.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let mut is_test = false;
        for (index, line) in source.code.iter().enumerate() {
            let line = line.trim();
            if line.starts_with("#[") && line.contains("test]") {
                is_test = true;
            } else if let Some(name) = name_of(line).filter(|_| is_test) {
                is_test = false;
                if name.chars().count() > CHARS_MAX {
                    violations.push(at(source, index, format!("a test's name has at most {CHARS_MAX} characters")));
                }
                let spaced = name.replace('_', " ");
                for word in BANNED_WORDS.iter().filter(|word| has_word(&spaced, word)) {
                    violations.push(at(source, index, format!("\"{word}\" in a test's name: name the subject")));
                }
            }
        }
    }
    violations
}

fn name_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_and_banned_words_are_found() {
        let count = |name: &str| check(&[Source::new("a.rs", &format!("#[test]\nfn {name}() {{}}\n"))]).len();
        assert_eq!(count(&"a".repeat(71)), 1);
        assert_eq!(count(&"a".repeat(70)), 0);
        assert_eq!(count("client_who_waits_is_served"), 1);
        assert_eq!(count("whole_blocks_are_kept"), 0);
    }

    #[test]
    fn functions_without_the_attribute_pass() {
        let text = format!("fn {}() {{}}\n", "a".repeat(80));
        assert_eq!(check(&[Source::new("a.rs", &text)]), []);
    }
}
