//! The vhost-user back end in the daemon: the volumes' sockets with their access rights, and notices to guests.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::rc::Rc;

use engine::Volume;
use seam::Address;
use seam::real::RealSeam;
use vhost_user::Server;

use super::listen_retry::listen_with_retry;
use super::socket_access::SocketAccess;
use config::VhostUserConfig;
use logging::{self as log, VHOST_USER};

/// The kernel's limit for a socket's path in bytes, without the terminating zero.
const PATH_BYTES_MAX: usize = 107;

/// Directory and access rights of the sockets.
pub struct VhostUserSpec {
    directory: PathBuf,
    access: SocketAccess,
    generation: u64,
}

/// The specification of the vhost-user server for the daemon of that generation; `None` without `[vhost_user]`.
pub fn plan(config: Option<&VhostUserConfig>, generation: u64) -> Result<Option<VhostUserSpec>, String> {
    let Some(config) = config else { return Ok(None) };
    let directory = config.directory.clone();
    let cannot = |error| format!("[vhost_user] directory {} cannot be made: {error}", directory.display());
    if !directory.is_dir() {
        std::fs::create_dir_all(&directory).map_err(cannot)?;
        // The owner of a socket has to reach it, whatever the process's umask; the sockets' own permissions control
        // access.
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).map_err(cannot)?;
    }
    let (owner, group) = (config.socket_owner.as_deref(), config.socket_group.as_deref());
    let access =
        SocketAccess::resolve(owner, group, config.socket_mode).map_err(|error| format!("[vhost_user] {error}"))?;
    Ok(Some(VhostUserSpec { directory, access, generation }))
}

/// The vhost-user server of a core, and its sockets.
pub struct VhostUser {
    /// The server.
    pub server: Server,
    spec: VhostUserSpec,
}

impl VhostUser {
    /// A server without volumes.
    pub fn new(seam: &RealSeam, spec: VhostUserSpec) -> VhostUser {
        let report = |volume: &str, text| log::warn!(target: VHOST_USER, volume, "{text}");
        VhostUser { server: Server::new(seam.clone(), spec.generation, Rc::new(report)), spec }
    }

    /// Creates a volume's socket and serves the volume there. Writes acknowledged by daemons before the generation
    /// `lost_before` may be lost. An error is logged; the other front ends still serve the volume.
    pub async fn add(&self, seam: &RealSeam, volume: Volume<RealSeam>, lost_before: u64) {
        let name = volume.name().to_owned();
        if let Err(error) = self.listen(seam, volume, lost_before).await {
            log::error!(target: VHOST_USER, volume = name, "volume {name} has no vhost-user socket: {error}");
        }
    }

    async fn listen(&self, seam: &RealSeam, volume: Volume<RealSeam>, lost_before: u64) -> Result<(), String> {
        let path = self.spec.directory.join(format!("{}.sock", volume.name()));
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(format!(
                "{} is longer than {PATH_BYTES_MAX} bytes; choose a shorter directory",
                path.display()
            ));
        }
        let listener = listen_with_retry(seam, &Address::Unix(path.clone())).await;
        let listener = listener.map_err(|error| format!("{}: {error}", path.display()))?;
        self.spec.access.apply_to(&path)?;
        self.server.add(volume, listener, lost_before);
        Ok(())
    }
}
