//! Owner, group and permissions of the sockets that give access to volumes.
//!
//! The daemon needs no privilege for this. It may give a socket to a group that it is a member of. Where it may not
//! change the owner, it grants the user access by an entry in the socket's access control list.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use control::users;
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{getegid, geteuid, getgroups};

/// Default group of the sockets, if it exists and the daemon may give them to it. Members of the daemon's own group use
/// the control socket, and need no access to data.
pub const VOLUMES_GROUP: &str = "hotset-volumes";

/// Extended attribute of a POSIX access control list (`linux/posix_acl_xattr.h`).
const ACL_XATTR: &str = "system.posix_acl_access";
const POSIX_ACL_XATTR_VERSION: u32 = 2;
/// Tags of the list's entries, in the order that the kernel requires (`linux/posix_acl.h`).
const ACL_USER_OBJ: u16 = 0x01;
const ACL_USER: u16 = 0x02;
const ACL_GROUP_OBJ: u16 = 0x04;
const ACL_MASK: u16 = 0x10;
const ACL_OTHER: u16 = 0x20;
/// ID of an entry without a user or group of its own.
const ACL_UNDEFINED_ID: u32 = u32::MAX;
/// `ACL_READ` and `ACL_WRITE`.
const ACL_READ_WRITE: u16 = 6;

/// Access rights of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    owner: Option<u32>,
    group: Option<u32>,
    mode: u32,
}

impl SocketAccess {
    /// The access rights that a table of the configuration gives, with owner and group by name or number.
    pub fn resolve(owner: Option<&str>, group: Option<&str>, mode: u32) -> Result<SocketAccess, String> {
        let group = match group {
            Some(name) => Some(find_group(name)?),
            None => find_group(VOLUMES_GROUP).ok().filter(|group| may_assign_group(*group)),
        };
        Ok(SocketAccess { owner: owner.map(find_user).transpose()?, group, mode })
    }

    /// Applies the rights to a socket.
    pub fn apply_to(self, path: &Path) -> Result<(), String> {
        if let Some(group) = self.group {
            chown(path, None, Some(group)).map_err(|error| {
                format!(
                    "cannot give the socket to socket_group ({error}); make the daemon's user a member of that group"
                )
            })?;
        }
        std::fs::set_permissions(path, Permissions::from_mode(self.mode)).map_err(|error| error.to_string())?;
        let Some(owner) = self.owner else { return Ok(()) };
        match chown(path, Some(owner), None) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let set = setxattr(path, ACL_XATTR, &access_list(owner, self.mode), XattrFlags::empty());
                set.map_err(|error| {
                    format!(
                        "cannot give the socket to socket_owner, nor an access control list ({error}); make that user \
                         a member of \
                         socket_group instead"
                    )
                })
            }
            result => result.map_err(|error| format!("cannot give the socket to socket_owner ({error})")),
        }
    }
}

/// An access control list with the permissions `mode` and one additional user.
fn access_list(user: u32, mode: u32) -> Vec<u8> {
    let bits = |shift: u32| (mode >> shift & 7) as u16;
    let entries = [
        (ACL_USER_OBJ, bits(6), ACL_UNDEFINED_ID),
        (ACL_USER, ACL_READ_WRITE, user),
        (ACL_GROUP_OBJ, bits(3), ACL_UNDEFINED_ID),
        (ACL_MASK, bits(3) | ACL_READ_WRITE, ACL_UNDEFINED_ID),
        (ACL_OTHER, bits(0), ACL_UNDEFINED_ID),
    ];
    let mut bytes = POSIX_ACL_XATTR_VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn may_assign_group(group: u32) -> bool {
    let groups = getgroups().unwrap_or_default();
    geteuid().is_root() || getegid().as_raw() == group || groups.iter().any(|own| own.as_raw() == group)
}

/// The id of a user, by name or as a number.
fn find_user(name: &str) -> Result<u32, String> {
    find_id(name, "socket_owner", "user", users::PASSWD_PATH, users::read())
}

/// The id of a group, by name or as a number.
fn find_group(name: &str) -> Result<u32, String> {
    find_id(name, "socket_group", "group", users::GROUP_PATH, users::read_groups())
}

/// The ID of `name` in `list`, the content of `file`.
fn find_id(name: &str, key: &str, kind: &str, file: &str, list: std::io::Result<String>) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let list = list.map_err(|error| format!("cannot read {file}: {error}"))?;
    users::id_of(&list, name).ok_or_else(|| {
        format!("{key} \"{name}\" is not a {kind} of this machine; specify one of {file}, or its number")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!((find_user("root"), find_group("root")), (Ok(0), Ok(0)));
        assert_eq!((find_user("1234"), find_group("1234")), (Ok(1234), Ok(1234)));
        assert!(find_user("no-such-user").expect_err("none").contains("socket_owner"));
        assert!(find_group("no-such-group").expect_err("none").contains("socket_group"));
    }

    #[test]
    fn access_list_names_its_user_and_keeps_the_mode() {
        let list = access_list(64055, 0o640);
        assert_eq!(list.len(), 4 + 5 * 8);
        let entry = |index: usize| &list[4 + index * 8..][..8];
        assert_eq!(entry(1), [[2, 0, 6, 0], 64055_u32.to_le_bytes()].concat());
        assert_eq!((entry(0)[2], entry(2)[2], entry(3)[2], entry(4)[2]), (6, 4, 6, 0));
    }
}
