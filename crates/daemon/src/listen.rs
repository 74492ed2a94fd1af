//! The NBD listeners, and helpers for all listeners.

use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;

use seam::real::RealSeam;
use seam::{Address, Nanos, Seam};

use super::daemon::Daemon;
use super::data_core::Local;
use super::socket_access::SocketAccess;

/// Time for which an address in use is retried.
const PREDECESSOR_PATIENCE: Nanos = Nanos::from_secs(5);
const RETRY_PAUSE: Nanos = Nanos::from_millis(50);

impl Daemon {
    /// Listens at all configured addresses; returns them.
    pub async fn listen_nbd(&self) -> Result<Vec<String>, String> {
        let config = self.config.borrow().nbd.clone();
        let (owner, group) = (config.socket_owner.as_deref(), config.socket_group.as_deref());
        let access = SocketAccess::find(owner, group, config.socket_mode).map_err(|error| format!("[nbd] {error}"))?;
        let mut listening = Vec::new();
        for address in &config.listen {
            let wrong = |error: &dyn std::fmt::Display| format!("cannot listen on {address}: {error}");
            if let Address::Unix(path) = address {
                make_folder(path).map_err(|error| wrong(&error))?;
            }
            let shown = self.listen_one(address.clone(), access).await.map_err(|error| wrong(&error))?;
            listening.push(shown);
        }
        Ok(listening)
    }

    async fn listen_one(&self, address: Address, access: SocketAccess) -> Result<String, String> {
        let listen = async move |local: Rc<Local>| {
            let listener = patiently(&local.seam, &address).await.map_err(|error| error.to_string())?;
            let shown = shown(&address, &listener).to_string();
            if let Address::Unix(path) = &address {
                access.set(path)?;
            }
            let server = local.server.clone();
            let is_local = matches!(address, Address::Unix(_));
            local.seam.spawn(async move {
                match is_local {
                    true => server.accept_local(listener).await,
                    false => server.accept(listener).await,
                }
            });
            Ok(shown)
        };
        self.cores[0].call(listen).await.map_err(|error| error.to_string())?
    }
}

/// Listens at an address that a killed predecessor may still hold: the kernel closes its sockets only when the last
/// request of its io_uring is done.
pub(super) async fn patiently(seam: &RealSeam, address: &Address) -> std::io::Result<<RealSeam as Seam>::Listener> {
    let end = seam.now() + PREDECESSOR_PATIENCE;
    loop {
        match seam.listen(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && seam.now() < end => seam.sleep(RETRY_PAUSE).await,
            result => return result,
        }
    }
}

/// The address under which clients reach the listener, with the port that the system chose.
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
