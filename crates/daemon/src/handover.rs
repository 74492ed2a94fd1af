//! NBD clients across a restart. The service manager keeps the connections of clients that are between two requests
//! when the daemon stops, and the next daemon continues to serve them.
//!
//! Connections are handed over only when all acknowledged writes are on the backings or in the flash log. If the daemon
//! ends before that, its clients must see their connections break. The new daemon removes the connections from the
//! service manager before it reads the first request. Otherwise, if the new daemon died, its successor would receive
//! them in an outdated state.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use engine::VolumeId;
use nbd::{HandedOverClient, NegotiatedTerms, TakeOverError};
use rustix::net::{Shutdown, shutdown};
use seam::real::RealStream;

use super::cores::{CoreLocal, Cores};
use logging::{self as log, NBD};
use systemd::Notifier;

/// Time-out for the service manager to process messages: it may be about to reload all its units.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(60);

/// A client's connection, and its [`NegotiatedTerms`] as text.
pub type StoredClient = (String, OwnedFd);

/// The client connections that the service manager passed to this process.
pub fn inherited() -> Vec<StoredClient> {
    let mut stored = seam::real::take_inherited();
    stored.retain(|(name, _)| name.parse::<NegotiatedTerms>().is_ok());
    stored
}

/// Connections and terms of the clients for the service manager.
pub fn to_stored_clients(handed_over: Vec<HandedOverClient<seam::real::RealSeam>>) -> Vec<StoredClient> {
    handed_over.into_iter().map(|client| (client.terms.to_string(), client.stream.into_fd())).collect()
}

/// Hands the clients of a completely stopped daemon to the service manager.
pub async fn store_clients(notifier: &Notifier, stored: Vec<StoredClient>) {
    if stored.is_empty() {
        return;
    }
    for (name, fd) in &stored {
        notifier.store_fd(fd.as_fd(), name);
    }
    match notifier.barrier(BARRIER_TIMEOUT).await {
        true => log::info!(
            target: NBD, clients = stored.len(),
            "NBD client connections stored for the next start: {}",
            stored.len()
        ),
        false => log::warn!(
            target: NBD, clients = stored.len(),
            "NBD client connections that may be lost at the next start: {}",
            stored.len()
        ),
    }
}

/// Takes over the clients of the last daemon.
pub async fn take_over_clients(notifier: &Notifier, cores: &Cores, stored: Vec<StoredClient>) {
    let names: BTreeSet<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return;
    }
    names.iter().for_each(|name| notifier.remove_fds(name));
    if !notifier.barrier(BARRIER_TIMEOUT).await {
        // The service manager may still hold the connections: shutting them down ends them for every holder.
        for (_, fd) in &stored {
            // The shutdown fails if the connection has already ended.
            let _ = shutdown(fd, Shutdown::Both);
        }
        let text = "NBD clients of the previous daemon are disconnected: the service manager did not release their \
                    connections";
        return log::error!(target: NBD, "{text}");
    }
    let clients: Vec<(NegotiatedTerms, OwnedFd)> =
        stored.into_iter().filter_map(|(name, fd)| Some((name.parse().ok()?, fd))).collect();
    let count = clients.len();
    let take_over = async move |local: Rc<CoreLocal>| {
        let take_over_client = |(terms, fd)| {
            let client = HandedOverClient { stream: RealStream::from_fd(fd), terms };
            local.nbd_server.take_over(client).map_err(|reason: TakeOverError| (terms, reason))
        };
        clients.into_iter().map(take_over_client).filter_map(Result::err).collect::<Vec<_>>()
    };
    // If the core has ended, the connections are dropped.
    let Ok(refused) = cores.first().call(take_over).await else { return };
    log::info!(
        target: NBD, clients = count - refused.len(),
        "NBD clients taken over from the previous daemon: {}",
        count - refused.len()
    );
    let mut reasons: BTreeMap<(VolumeId, String), usize> = BTreeMap::new();
    for (terms, reason) in refused {
        *reasons.entry((terms.volume_id, reason.to_string())).or_default() += 1;
    }
    for ((volume_id, reason), count) in reasons {
        log::warn!(
            target: NBD, clients = count,
            "NBD clients of volume {volume_id:016x} disconnected: {count}; {reason}"
        );
    }
}
