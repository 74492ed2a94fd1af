//! Names of volumes, datastores and arrays.

use std::ops::Range;

use super::problem::Source;
use super::read::{Located, Section, ValueError, split_message};

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Checks a volume's name: it has to be valid as an export's name, a file's name and a label.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:@+".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(is_allowed) {
        return Err(format!(
            "\"{name}\" cannot be a name; use up to {NAME_BYTES_MAX} letters, digits and - _ . : @ +, not starting \
             with a dot"
        ));
    }
    Ok(())
}

/// Reads the name of an entry of a repeated table, which no name in `taken` may equal.
pub(super) fn read_name(
    section: &Section<'_>,
    taken: &[Located<String>],
    source: &mut Source<'_>,
) -> Option<Located<String>> {
    let name = section.require::<String>("name", source)?;
    if let Err(error) = check_name(&name.value) {
        report_error(source, &name.span, &error);
    } else if let Some(first) = taken.iter().find(|other| other.value == name.value) {
        let line = source.line_of(first.span.start);
        let fault = format!("the name \"{}\" is taken by the one at line {line}", name.value);
        source.add_problem(&name.span, fault, "give each a name of its own");
    }
    Some(name)
}

/// Reports an error that carries its remedy.
pub(super) fn report_error(source: &mut Source<'_>, span: &Range<usize>, error: &str) {
    if let ValueError::Value(fault, remedy) = split_message(error) {
        source.add_problem(span, fault, remedy);
    }
}
