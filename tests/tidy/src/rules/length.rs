//! No file exceeds 800 lines: a longer one has two subjects. Generated files are exempt.

use super::at;
use crate::Violation;
use crate::source::Source;

const LINES_MAX: usize = 800;

/// Opening of code files that a command writes.
const GENERATED: &str = "// Generated from ";

/// Code files that exceed the limit.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let written = sources.iter().filter(|source| source.is_code() && !source.text.starts_with(GENERATED));
    let too_long = written.filter(|source| source.text.lines().count() > LINES_MAX);
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
        let generated = format!("{GENERATED}a document.\n{}", "\n".repeat(800));
        assert_eq!(check(&[Source::new("ui/src/a.ts", &generated)]), []);
    }
}
