//! The aims of the repository, which are reported but not enforced: short files, dense assertions.

use crate::source::Source;

/// Measured values with their aims, one per line.
pub fn describe(sources: &[Source]) -> String {
    let product = || sources.iter().filter(|source| source.is_rust() && source.path.starts_with("crates/"));
    let mut lengths: Vec<usize> = product().map(|source| source.text.lines().count()).collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    let longest = lengths.last().copied().unwrap_or(0);
    let (mut lines, mut assertions) = (0, 0);
    for source in product().filter(|source| source.path.starts_with("crates/engine/src/")) {
        let code = source.production_code();
        lines += code.iter().filter(|line| !line.trim().is_empty()).count();
        assertions += code.iter().filter(|line| is_assertion(line)).count();
    }
    let density = assertions * 1000 / lines.max(1);
    format!(
        "files in crates: {}, median {median} lines (aim: 100 to 160), longest {longest}\n\
         assertions in the engine: {density} a thousand lines of code (aim: 20 or more)\n",
        lengths.len()
    )
}

/// Assertions that stay enabled in release builds, including `expect`.
fn is_assertion(line: &str) -> bool {
    let line = line.trim_start();
    ["assert!(", "assert_eq!(", "assert_ne!(", "unreachable!("].iter().any(|start| line.starts_with(start))
        || line.contains(".expect(")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_counted_in_production_code_alone() {
        let text = "fn a() {\n    assert!(true);\n    let b = c.expect(\"x\");\n    let d = 1;\n}\n#[cfg(test)]\n\
                    assert!(false);\n";
        let shown = describe(&[Source::new("crates/engine/src/a.rs", text)]);
        assert!(shown.contains("engine: 400 a thousand"), "{shown}");
    }
}
