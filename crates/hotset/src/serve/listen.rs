//! Listeners: sockets, and for NBD their owner and permissions.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::rc::Rc;

use control::users;
use seam::real::RealSeam;
use seam::{Address, Nanos, Seam};

use super::daemon::Daemon;
use super::data_core::Local;
use crate::config::NbdConfig;

/// How long an address that somebody else has is tried again.
const PREDECESSOR_PATIENCE: Nanos = Nanos::from_secs(5);
const RETRY_PAUSE: Nanos = Nanos::from_millis(50);

impl Daemon {
    /// Listens everywhere that the configuration says; returns where that is.
    pub async fn listen_nbd(&self) -> Result<Vec<String>, String> {
        let config = self.config.borrow().nbd.clone();
        let owner = config.socket_owner.as_deref().map(find_user).transpose()?;
        let mut listening = Vec::new();
        for address in &config.listen {
            let wrong = |error: &dyn std::fmt::Display| format!("cannot listen on {address}: {error}");
            if let Address::Unix(path) = address {
                make_folder(path).map_err(|error| wrong(&error))?;
            }
            let shown = self.listen_one(address.clone(), config.clone(), owner).await.map_err(|error| wrong(&error))?;
            listening.push(shown);
        }
        Ok(listening)
    }

    async fn listen_one(&self, address: Address, config: NbdConfig, owner: Option<u32>) -> Result<String, String> {
        let listen = async move |local: Rc<Local>| {
            let listener = patiently(&local.seam, &address).await.map_err(|error| error.to_string())?;
            let shown = shown(&address, &listener).to_string();
            if let Address::Unix(path) = &address {
                set_access(path, owner, config.socket_mode)?;
            }
            let server = local.server.clone();
            local.seam.spawn(async move { server.accept(listener).await });
            Ok(shown)
        };
        self.cores[0].call(listen).await.map_err(|error| error.to_string())?
    }
}

/// Listens where perhaps a killed predecessor still does: the kernel closes its sockets when the last of its ring is done.
pub(super) async fn patiently(seam: &RealSeam, address: &Address) -> std::io::Result<<RealSeam as Seam>::Listener> {
    let end = seam.now() + PREDECESSOR_PATIENCE;
    loop {
        match seam.listen(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && seam.now() < end => seam.sleep(RETRY_PAUSE).await,
            result => return result,
        }
    }
}

/// Where somebody who connects finds it, whatever the system chose.
pub(super) fn shown(address: &Address, listener: &<RealSeam as Seam>::Listener) -> Address {
    match (address, listener.port()) {
        (Address::Tcp(host, 0), Some(port)) => Address::Tcp(host.clone(), port),
        _ => address.clone(),
    }
}

fn make_folder(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

pub(super) fn set_access(path: &Path, owner: Option<u32>, mode: u32) -> Result<(), String> {
    if let Some(owner) = owner {
        chown(path, Some(owner), None)
            .map_err(|error| format!("cannot give the socket to socket_owner ({error}); run the daemon as root"))?;
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| error.to_string())
}

/// The number of a user, by name or as a number.
pub(super) fn find_user(name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let list = users::read().map_err(|error| format!("cannot read {}: {error}", users::LIST))?;
    users::number_of(&list, name).ok_or_else(|| {
        format!("socket_owner \"{name}\" is no user of this machine; name one of {}, or its number", users::LIST)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(find_user("root"), Ok(0));
        assert_eq!(find_user("1234"), Ok(1234));
        assert!(find_user("no-such-user").is_err());
    }
}
