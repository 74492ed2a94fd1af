//! Lines are readable in a diff: 120 columns for Rust, 100 for a page's prose. Tables, verbatim text and generated
//! pages are exempt.

use super::{at, prose};
use crate::Violation;
use crate::source::Source;

const RUST_COLUMNS: usize = 120;
const PROSE_COLUMNS: usize = 100;

/// Opening of pages that a command writes.
const GENERATED: &str = "\nWritten by `";

/// Lines past the limit.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        if source.is_rust() {
            let too_long = source.text.lines().enumerate().filter(|(_, line)| line.chars().count() > RUST_COLUMNS);
            for (index, _) in too_long.filter(|(index, _)| !is_verbatim(source, *index)) {
                violations.push(at(
                    source,
                    index,
                    format!("past {RUST_COLUMNS} columns: wrap the comment or the literal"),
                ));
            }
        } else if source.path.ends_with(".md") && !source.text.contains(GENERATED) {
            let is_long = |line: &str| line.chars().count() > PROSE_COLUMNS && !is_unbreakable(line);
            for (index, _) in prose(source).filter(|(_, line)| is_long(line)) {
                violations.push(at(source, index, format!("past {PROSE_COLUMNS} columns: wrap the paragraph")));
            }
        }
    }
    violations
}

/// True for a line inside a literal that spans lines: wrapping would change the text.
fn is_verbatim(source: &Source, index: usize) -> bool {
    source.code[index].trim().is_empty() && !source.text.lines().nth(index).is_some_and(is_comment)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// True for a table's row, or a line that is little more than one long word.
fn is_unbreakable(line: &str) -> bool {
    line.starts_with('|') || line.split_whitespace().any(|word| word.chars().count() > PROSE_COLUMNS - 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn long_comments_and_code_are_found() {
        let words = "word ".repeat(24);
        assert_eq!(count("a.rs", &format!("// {words}\n")), 1);
        assert_eq!(count("a.rs", &format!("let a = \"{words}\";\n")), 1);
        assert_eq!(count("a.rs", &format!("let a = \"\n{words}{words}\n\";\n")), 0, "text of several lines");
        assert_eq!(count("a.rs", &format!("{}\n", "a".repeat(120))), 0);
    }

    #[test]
    fn long_prose_is_found_outside_tables_and_code_blocks() {
        let words = "word ".repeat(24);
        assert_eq!(count("a.md", &words), 1);
        assert_eq!(count("a.md", &format!("| {words} |\n```\n{words}\n```\n")), 0);
        assert_eq!(count("a.md", &format!("# Page\n\nWritten by `make page`.\n{words}\n")), 0);
    }
}
