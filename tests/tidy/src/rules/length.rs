//! No file exceeds 800 lines: a longer one has two subjects.

use super::at;
use crate::Violation;
use crate::source::Source;

const LINES_MAX: usize = 800;

/// Code files that exceed the limit.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let too_long = sources.iter().filter(|source| source.is_code() && source.text.lines().count() > LINES_MAX);
    too_long.map(|source| at(source, LINES_MAX, format!("past {LINES_MAX} lines: split it by subject"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_801_lines_is_found_and_one_of_800_is_not() {
        let source_of = |lines: usize| Source::new("crates/a/src/b.rs", &"\n".repeat(lines));
        assert_eq!(check(&[source_of(801)]).len(), 1);
        assert_eq!(check(&[source_of(800)]), []);
    }
}
