//! No marks of unfinished work; missing features are listed in docs/roadmap.md.

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

/// Split, so that this file does not break its own rule.
const MARKS: [&str; 5] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK"), concat!("WI", "P")];
const MACROS: [&str; 3] = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];

/// Lines with a mark or a macro of unfinished work.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            let marked = MARKS.iter().any(|mark| has_word(line, mark)) || MACROS.iter().any(|name| line.contains(name));
            if marked {
                violations.push(at(
                    source,
                    index,
                    "a mark of unfinished work: finish it, or list it in docs/roadmap.md",
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found() {
        for mark in MARKS.iter().chain(&MACROS) {
            assert_eq!(check(&[Source::new("a.rs", &format!("    // {mark} later"))]).len(), 1, "{mark}");
        }
        assert_eq!(check(&[Source::new("a.rs", "// hacking, whipped")]), []);
    }
}
