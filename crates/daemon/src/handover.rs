//! NBD clients over a restart. The service manager keeps the connections of clients that are between two requests when
//! the daemon stops, and the next daemon continues to serve them.
//!
//! Connections are handed over only when all acknowledged writes are on the backings or in the flash log: a client of a
//! daemon that ended earlier must see its connection break. The new daemon removes the connections from the service
//! manager before it reads the first request. Otherwise, if the new daemon died, its successor would receive them in an
//! outdated state.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use engine::VolumeId;
use nbd::{HandedOverClient, NegotiatedTerms, TakeOverError};
use rustix::net::{Shutdown, shutdown};
use seam::real::RealStream;

use super::cores::{Cores, Local};
use logging::{self as log, NBD};
use systemd::Notifier;

/// Time-out for the service manager to process messages: it may be about to reload all its units.
const HEARING_PATIENCE: Duration = Duration::from_secs(60);

/// A client's connection, and its [`NegotiatedTerms`] as text.
pub type Kept = (String, OwnedFd);

/// The client connections that the service manager passed to this process.
pub fn inherited() -> Vec<Kept> {
    let mut kept = seam::real::inherited();
    kept.retain(|(name, _)| name.parse::<NegotiatedTerms>().is_ok());
    kept
}

/// Connections and terms of the clients for the service manager.
pub fn to_keep(handed: Vec<HandedOverClient<seam::real::RealSeam>>) -> Vec<Kept> {
    handed.into_iter().map(|client| (client.terms.to_string(), client.stream.into_fd())).collect()
}

/// Hands the clients of a completely stopped daemon to the service manager.
pub async fn keep_clients(notifier: &Notifier, kept: Vec<Kept>) {
    if kept.is_empty() {
        return;
    }
    for (name, fd) in &kept {
        notifier.keep(fd.as_fd(), name);
    }
    match notifier.heard(HEARING_PATIENCE).await {
        true => log::info!(
            target: NBD, clients = kept.len(),
            "NBD clients that wait for the next start: {}",
            kept.len()
        ),
        false => log::warn!(
            target: NBD, clients = kept.len(),
            "NBD clients that may not find the next start: {}",
            kept.len()
        ),
    }
}

/// Takes over the clients of the last daemon.
pub async fn take_over_clients(notifier: &Notifier, cores: &Cores, kept: Vec<Kept>) {
    let names: BTreeSet<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return;
    }
    names.iter().for_each(|name| notifier.forget(name));
    if !notifier.heard(HEARING_PATIENCE).await {
        // The service manager may still hold the connections: shutting them down ends them for every holder.
        for (_, fd) in &kept {
            // The shutdown fails if the connection has already ended.
            let _ = shutdown(fd, Shutdown::Both);
        }
        let text = "NBD clients of the last daemon are hung up on: the service manager does not let go of them";
        return log::error!(target: NBD, "{text}");
    }
    let clients: Vec<(NegotiatedTerms, OwnedFd)> =
        kept.into_iter().filter_map(|(name, fd)| Some((name.parse().ok()?, fd))).collect();
    let count = clients.len();
    let take = async move |local: Rc<Local>| {
        let take = |(terms, fd)| {
            let client = HandedOverClient { stream: RealStream::from_fd(fd), terms };
            local.server.take_over(client).map_err(|why: TakeOverError| (terms, why))
        };
        clients.into_iter().map(take).filter_map(Result::err).collect::<Vec<_>>()
    };
    // A core that has ended drops the connections.
    let Ok(refused) = cores.first().call(take).await else { return };
    log::info!(
        target: NBD, clients = count - refused.len(),
        "NBD clients taken over from the previous daemon: {}",
        count - refused.len()
    );
    let mut reasons: BTreeMap<(VolumeId, String), usize> = BTreeMap::new();
    for (terms, why) in refused {
        *reasons.entry((terms.incarnation, why.to_string())).or_default() += 1;
    }
    for ((incarnation, why), count) in reasons {
        log::warn!(
            target: NBD, clients = count,
            "NBD clients of volume {incarnation:016x} disconnected: {count}; {why}"
        );
    }
}
