//! Refusal of storage that is in use already or belongs to this daemon: two volumes on one disk, or a volume on an
//! export of the same daemon.
//!
//! The seam refuses a second path to an open disk; this module adds the name of the present holder. An export of this
//! daemon is recognised in three ways: by the configured addresses before connecting, by the connection itself, and by
//! the kernel's NBD devices underneath a disk.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use engine::VolumeId;
use messages::{ErrorKind, Failure};
use nbd_client::NbdTarget;
use seam::Address;
use seam::real::{KernelNbdDevice, PathCall, PathHung, has_client, resolve_links};

use state::State;

/// Prefix of the text that `hotset attach` writes on a device, before the volume's identity.
const BACKEND_PREFIX: &str = "hotset:";

/// Identities of this daemon's volumes.
#[derive(Clone, Debug, Default)]
pub struct OwnVolumes(Vec<VolumeId>);

impl OwnVolumes {
    /// The volumes of this daemon's records.
    pub fn new(state: &State) -> OwnVolumes {
        OwnVolumes(state.volumes.iter().map(|record| record.volume_id).collect())
    }

    /// Refuses a disk at `path` that lies on an NBD device of the kernel whose server is this daemon.
    pub fn check(&self, path: &dyn std::fmt::Display, nbd_devices_below: &[KernelNbdDevice]) -> Result<(), String> {
        let is_own = |device: &&KernelNbdDevice| {
            let volume = device.backend.as_deref().and_then(volume_of);
            volume.is_some_and(|volume| self.0.contains(&volume)) || device.pid.is_some_and(has_client)
        };
        match nbd_devices_below.iter().find(is_own) {
            Some(device) => Err(format!(
                "{path} is on /dev/{}, which is an export of this daemon itself; use storage that does not depend on \
                 the daemon",
                device.name
            )),
            None => Ok(()),
        }
    }
}

/// The volume ID in the text that `hotset attach` wrote on a device.
fn volume_of(backend: &str) -> Option<VolumeId> {
    let (volume_id, _) = backend.strip_prefix(BACKEND_PREFIX)?.split_once('/')?;
    u64::from_str_radix(volume_id, 16).ok().map(VolumeId)
}

/// Refuses an export at one of `own_listeners`, the addresses where this daemon listens or will listen. Fails if the
/// path of the export's socket has not answered for `limit`.
pub async fn check_export(
    target: &NbdTarget,
    own_listeners: Vec<Address>,
    limit: Duration,
) -> Result<Result<(), Failure>, PathHung> {
    let address = target.address.clone();
    let is_own = match &target.address {
        Address::Unix(path) => {
            let resolving =
                PathCall::start(path, move |_| own_listeners.iter().any(|own| reaches_listener(own, &address)));
            resolving.answer(limit, tokio::time::sleep).await?
        }
        Address::Tcp(..) => own_listeners.iter().any(|own| reaches_listener(own, &address)),
    };
    Ok(match is_own {
        true => Err(Failure::new(
            ErrorKind::Conflict,
            format!(
                "its backing {target} is an export of this daemon itself; specify the volume's own storage as its \
                 backing"
            ),
        )),
        false => Ok(()),
    })
}

/// True when a connection to `target` reaches the listener at `own`. Host names are not resolved; the connection itself
/// reveals such cases.
fn reaches_listener(own: &Address, target: &Address) -> bool {
    match (own, target) {
        (Address::Unix(own), Address::Unix(target)) => resolve_links(own) == resolve_links(target),
        (Address::Tcp(own, port), Address::Tcp(target, target_port)) if port == target_port => {
            match (ip_of(own), ip_of(target)) {
                (Some(own), Some(target)) => own == target || (own.is_unspecified() && target.is_loopback()),
                _ => own == target,
            }
        }
        _ => false,
    }
}

fn ip_of(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok().map(|address: IpAddr| address.to_canonical()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_listener_are_the_same() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        assert!(
            reaches_listener(&tcp("0.0.0.0", 1), &tcp("127.0.0.1", 1))
                && reaches_listener(&tcp("::", 1), &tcp("::1", 1))
        );
        assert!(
            reaches_listener(&tcp("127.0.0.1", 1), &tcp("localhost", 1))
                && reaches_listener(&tcp("::", 1), &tcp("localhost", 1))
        );
        assert!(reaches_listener(&tcp("store", 1), &tcp("store", 1)));
        assert!(
            !reaches_listener(&tcp("0.0.0.0", 1), &tcp("127.0.0.1", 2))
                && !reaches_listener(&tcp("0.0.0.0", 1), &tcp("192.0.2.1", 1))
        );
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).expect("the folder can be written");
        std::os::unix::fs::symlink(&real, &link).expect("the folder can be written");
        let future_socket = folder.path().join("to-come");
        std::os::unix::fs::symlink("link/s", &future_socket).expect("the folder can be written");
        let [real, link, other] = [real.join("s"), link.join("s"), link.join("t")].map(Address::Unix);
        assert!(reaches_listener(&real, &link) && !reaches_listener(&real, &other));
        assert!(reaches_listener(&real, &Address::Unix(future_socket)), "a link to a socket that does not exist yet");
    }

    #[test]
    fn disk_on_an_attached_volume_of_this_daemon_is_refused() {
        let device = |backend: &str| KernelNbdDevice { name: "nbd3".into(), backend: Some(backend.into()), pid: None };
        let own = OwnVolumes(vec![VolumeId(0xab)]);
        let refused = own
            .check(&"/dev/dm-1", &[device("hotset:00000000000000ab/v")])
            .expect_err("the disk is this daemon's export");
        assert!(refused.contains("/dev/dm-1 is on /dev/nbd3"), "{refused}");
        for foreign in ["hotset:00000000000000ac/v", "hotset:nonsense", "qemu"] {
            assert_eq!(own.check(&"/dev/dm-1", &[device(foreign)]), Ok(()), "{foreign}");
        }
    }
}
