//! Names and IDs of the machine's local users and groups.

use std::io;

/// The list of local users; it lacks users of network directories.
pub const PASSWD_PATH: &str = "/etc/passwd";

/// The list of groups; its lines begin like those of users.
pub const GROUP_PATH: &str = "/etc/group";

/// Reads the list of groups.
pub fn read_groups() -> io::Result<String> {
    std::fs::read_to_string(GROUP_PATH)
}

/// Reads the list of users.
pub fn read() -> io::Result<String> {
    std::fs::read_to_string(PASSWD_PATH)
}

/// The name that has this ID.
pub fn name_of(list: &str, id: u32) -> Option<&str> {
    entries(list).find(|(_, entry_id)| *entry_id == id).map(|(name, _)| name)
}

/// The ID that has this name.
pub fn id_of(list: &str, name: &str) -> Option<u32> {
    entries(list).find(|(entry_name, _)| *entry_name == name).map(|(_, id)| id)
}

/// Names and IDs; lines without an ID are skipped.
fn entries(list: &str) -> impl Iterator<Item = (&str, u32)> {
    list.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_id_and_broken_lines_are_skipped() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\nodd:x:many:1::/:/bin/sh\n";
        assert_eq!((name_of(list, 33), name_of(list, 0), name_of(list, 7)), (Some("web"), Some("root"), None));
        assert_eq!((id_of(list, "web"), id_of(list, "broken"), id_of(list, "odd")), (Some(33), None, None));
    }
}
