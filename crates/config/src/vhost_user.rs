//! `[vhost_user]`: the sockets through which virtual machines reach their volumes.

use std::path::{Path, PathBuf};

use super::problem::Source;
use super::read::Section;
use super::socket::{read_group, read_owner, read_socket_mode};

/// Default directory of the sockets.
const DEFAULT_DIRECTORY: &str = "/run/hotset/vhost";

/// The vhost-user sockets of the volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// The directory of the sockets, `NAME.sock` each.
    pub directory: PathBuf,
    /// User that owns the sockets.
    pub socket_owner: Option<String>,
    /// Group of the sockets.
    pub socket_group: Option<String>,
    /// Permissions of the sockets.
    pub socket_mode: u32,
}

/// Reads the table; `None` if it is absent.
pub(super) fn read_vhost_user(
    section: &Section<'_>,
    folder: &Path,
    source: &mut Source<'_>,
) -> Option<VhostUserConfig> {
    section.is_present().then_some(())?;
    let directory = section.get::<String>("directory", source).map(|directory| folder.join(directory.value));
    let (socket_owner, socket_mode) = (read_owner(section, source), read_socket_mode(section, source));
    Some(VhostUserConfig {
        directory: directory.unwrap_or_else(|| DEFAULT_DIRECTORY.into()),
        socket_owner,
        socket_group: read_group(section, source),
        socket_mode,
    })
}
