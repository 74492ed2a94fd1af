//! Users and groups of this machine, as far as its own lists have them: names and numbers.

use std::io;

/// The list. Users of other directories than the machine's own do not stand there.
pub const LIST: &str = "/etc/passwd";

/// The list of groups, whose lines begin as those of users do.
pub const GROUPS: &str = "/etc/group";

/// What the list of groups says.
pub fn read_groups() -> io::Result<String> {
    std::fs::read_to_string(GROUPS)
}

/// What the list says.
pub fn read() -> io::Result<String> {
    std::fs::read_to_string(LIST)
}

/// The name of a number.
pub fn name_of(list: &str, number: u32) -> Option<&str> {
    all(list).find(|(_, of)| *of == number).map(|(name, _)| name)
}

/// The number of a name.
pub fn number_of(list: &str, name: &str) -> Option<u32> {
    all(list).find(|(of, _)| *of == name).map(|(_, number)| number)
}

/// Lines without a number are nobody's.
fn all(list: &str) -> impl Iterator<Item = (&str, u32)> {
    list.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number_and_broken_lines_are_nobodys() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\nodd:x:many:1::/:/bin/sh\n";
        assert_eq!((name_of(list, 33), name_of(list, 0), name_of(list, 7)), (Some("web"), Some("root"), None));
        assert_eq!((number_of(list, "web"), number_of(list, "broken"), number_of(list, "odd")), (Some(33), None, None));
    }
}
