//! Comments have nouns as subjects: no sentence begins with a pronoun such as "Who" or "What".

use super::at;
use crate::Violation;
use crate::source::Source;

/// Refused first words, capitalised as at the start of a sentence.
const OPENINGS: [&str; 8] = ["Who", "Whoever", "Whom", "Nobody", "Somebody", "What", "Whatever", "Those"];

/// Rust comments in which a sentence begins with such a word and is no question.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let mut before = String::new();
        for (index, line) in source.text.lines().enumerate() {
            let Some(comment) = comment(line, &source.code[index]) else {
                before.clear();
                continue;
            };
            for opening in OPENINGS.iter().filter(|opening| opens_sentence(&before, comment, opening)) {
                violations.push(at(source, index, format!("a sentence begins with \"{opening}\": name the subject")));
            }
            before = comment.to_owned();
        }
    }
    violations
}

/// Text of a comment that fills its line.
fn comment<'a>(line: &'a str, code: &str) -> Option<&'a str> {
    let text = line.trim_start().strip_prefix("//")?;
    code.trim().is_empty().then(|| text.trim_start_matches(['/', '!']).trim())
}

/// True if `opening` begins a sentence of `comment`, which continues the line `before`.
fn opens_sentence(before: &str, comment: &str, opening: &str) -> bool {
    let is_end = |text: &str| text.is_empty() || text.ends_with(['.', '?', '!', ':']);
    comment.match_indices(opening).any(|(start, _)| {
        let (head, tail) = (comment[..start].trim_end(), &comment[start + opening.len()..]);
        let begins = if head.is_empty() { is_end(before) } else { is_end(head) && comment[..start].ends_with(' ') };
        let sentence = tail.split_inclusive(['.', '?', '!']).next().unwrap_or_default();
        begins && !tail.starts_with(|c: char| c.is_alphanumeric()) && !sentence.ends_with('?')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&[Source::new("crates/a/src/b.rs", text)]).len()
    }

    #[test]
    fn every_opening_is_found_at_the_start_of_a_sentence() {
        for opening in OPENINGS {
            assert_eq!(count(&format!("/// {opening} is above holds the rest.\n")), 1, "{opening}");
            assert_eq!(count(&format!("// A block. {opening} came later is older.\n")), 1, "{opening}");
            assert_eq!(count(&format!("// A block.\n// {opening} came later is older.\n")), 1, "{opening}");
        }
    }

    #[test]
    fn questions_continued_lines_and_strings_pass() {
        assert_eq!(count("// What is dirty?\n"), 0);
        assert_eq!(count("// The page shows\n// What the drive reports.\n"), 0);
        assert_eq!(count("let a = \"// What is here\";\n"), 0);
        assert_eq!(count("// Whole blocks only.\n"), 0);
    }
}
