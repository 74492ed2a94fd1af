//! Unsafe code is in the seam and in the calls of Ceph's libraries only, and each block has a safety argument.

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

/// The directories that may contain unsafe code.
const ALLOWED: [&str; 2] = ["crates/seam/", "crates/rbd/src/ffi/"];

/// Unsafe code outside the seam, or without a `// SAFETY:` before it.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let lines: Vec<&str> = source.text.lines().collect();
        for (index, code) in source.code.iter().enumerate() {
            if !has_word(code, "unsafe") || code.contains("#![") {
                continue;
            }
            // Clippy checks that an unsafe function documents its requirements.
            let needs_argument = !code.contains("unsafe fn");
            if !ALLOWED.iter().any(|folder| source.path.starts_with(folder)) {
                violations.push(at(source, index, "unsafe code belongs into the seam"));
            } else if needs_argument && !is_argued(&lines, index) {
                violations.push(at(source, index, "explain in a `// SAFETY:` comment before it why this is sound"));
            }
        }
    }
    violations
}

/// True if the comment above line `index` argues safety; attributes and the statement's own first lines are skipped.
fn is_argued(lines: &[&str], index: usize) -> bool {
    let argues = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    let above = lines[..index].iter().rev().take(12).map(|line| line.trim_start());
    argues(lines[index]) || above.take_while(|line| !line.is_empty() && *line != "}").any(argues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn unsafe_code_outside_the_seam_is_found_even_with_an_argument() {
        assert_eq!(count("crates/engine/src/a.rs", "// SAFETY: none\nlet a = unsafe { b() };\n"), 1);
    }

    #[test]
    fn unsafe_code_without_an_argument_is_found() {
        assert_eq!(count("crates/seam/src/a.rs", "fn a() {\n    unsafe { b() }\n}\n"), 1);
        assert_eq!(count("crates/seam/src/a.rs", "// SAFETY: for the other\nlet x = 1;\n\nunsafe { b() }\n"), 1);
    }

    #[test]
    fn argued_block_and_the_word_in_a_comment_or_lint_pass() {
        assert_eq!(count("crates/seam/src/a.rs", "// SAFETY: owned here\nunsafe { b() }\n"), 0);
        assert_eq!(count("crates/engine/src/a.rs", "// unsafe\nlet a = \"unsafe\";\n#![deny(unsafe_code)]\n"), 0);
    }
}
