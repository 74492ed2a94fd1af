//! Owner, group and permissions of the Unix sockets of a table.

use super::problem::Source;
use super::read::Section;

/// The owner of the Unix sockets of a table.
pub(super) fn read_owner(section: &Section<'_>, source: &mut Source<'_>) -> Option<String> {
    section.get::<String>("socket_owner", source).map(|owner| owner.value)
}

/// The group of the Unix sockets of a table.
pub(super) fn read_group(section: &Section<'_>, source: &mut Source<'_>) -> Option<String> {
    section.get::<String>("socket_group", source).map(|group| group.value)
}

/// The permissions of the Unix sockets of a table.
pub(super) fn read_socket_mode(section: &Section<'_>, source: &mut Source<'_>) -> u32 {
    let mode = section.get::<String>("socket_mode", source).and_then(|mode| {
        let bits = u32::from_str_radix(&mode.value, 8).ok().filter(|bits| *bits <= 0o777);
        if bits.is_none() {
            let fault = format!("\"{}\" is not a set of permissions", mode.value);
            source.add_problem(&mode.span, fault, "write three or four octal digits, like \"0660\"");
        }
        bits
    });
    mode.unwrap_or(0o660)
}
