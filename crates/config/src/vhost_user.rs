//! `[vhost_user]`: where virtual machines find their volumes' sockets.

use std::path::{Path, PathBuf};

use super::load::{read_group, read_owner, read_socket_mode};
use super::problem::Source;
use super::read::Section;

/// Where sockets lie when nothing is said.
const DEFAULT_DIRECTORY: &str = "/run/hotset/vhost";

/// Where virtual machines find their volumes' sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// The folder of the sockets, `NAME.sock` each.
    pub directory: PathBuf,
    /// User that owns them.
    pub socket_owner: Option<String>,
    /// Group that they belong to.
    pub socket_group: Option<String>,
    /// Their permissions.
    pub socket_mode: u32,
}

/// Reads the table; `None` where there is none.
pub(super) fn read_vhost_user(
    section: &Section<'_>,
    folder: &Path,
    source: &mut Source<'_>,
) -> Option<VhostUserConfig> {
    section.is_there().then_some(())?;
    let directory = section.get::<String>("directory", source).map(|directory| folder.join(directory.value));
    let (socket_owner, socket_mode) = (read_owner(section, source), read_socket_mode(section, source));
    Some(VhostUserConfig {
        directory: directory.unwrap_or_else(|| DEFAULT_DIRECTORY.into()),
        socket_owner,
        socket_group: read_group(section, source),
        socket_mode,
    })
}
