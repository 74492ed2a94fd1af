//! The repository contains no path of a particular machine.

use super::at;
use crate::Violation;
use crate::source::Source;

/// Path prefixes of particular machines, split so that this file does not break its own rule.
const FORBIDDEN: [&str; 5] = [
    concat!("/wor", "k/"),
    concat!("/hom", "e/"),
    concat!("/Us", "ers/"),
    concat!("/root", "/"),
    concat!("../sha", "red"),
];
/// The one file that may name the folder beside the repository.
const MAY_NAME_SHARED: &str = ".ci/run";

/// Lines with a machine's path.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| source.path != MAY_NAME_SHARED) {
        for (index, line) in source.text.lines().enumerate() {
            for path in FORBIDDEN.iter().filter(|path| line.contains(*path)) {
                violations.push(at(source, index, format!("{path} is one machine's path: make it an argument")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_path_is_found_in_code_and_text() {
        for path in FORBIDDEN {
            assert_eq!(check(&[Source::new("docs/a.md", &format!("see {path}x"))]).len(), 1);
            assert_eq!(check(&[Source::new("a.rs", &format!("// {path}x"))]).len(), 1);
        }
        assert_eq!(check(&[Source::new(".ci/run", FORBIDDEN[4])]), []);
    }
}
