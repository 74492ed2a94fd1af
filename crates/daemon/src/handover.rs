//! NBD clients over a restart: those who stand between two requests when the daemon has stopped are kept by the service manager, and the next
//! daemon goes on with them.
//!
//! They are given away when all that was acknowledged is on the backings or in the flash log, and not before: a client whose daemon ended
//! sooner has to see that. And they are taken back from the service manager before the first of their requests is read, or one that
//! belongs to a daemon that died would be handed to the next as it stood long ago.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nbd::{Handed, NoWay, Terms};
use rustix::net::{Shutdown, shutdown};
use seam::real::RealStream;

use super::daemon::Daemon;
use super::data_core::Local;
use terminal::log;

/// Time that the service manager has to hear what it is told: it may be about to read all its units again.
const HEARING_PATIENCE: Duration = Duration::from_secs(60);

/// A client's connection, and its [`Terms`] as text.
pub type Kept = (String, OwnedFd);

/// What the service manager gave this process, if it is of ours.
pub fn inherited() -> Vec<Kept> {
    let mut kept = seam::real::inherited();
    kept.retain(|(name, _)| name.parse::<Terms>().is_ok());
    kept
}

/// Clients on their way to the service manager.
pub fn to_keep(handed: Vec<Handed<seam::real::RealSeam>>) -> Vec<Kept> {
    handed.into_iter().map(|client| (client.terms.to_string(), client.stream.into_fd())).collect()
}

impl Daemon {
    /// Gives the clients of a daemon that has stopped, with nothing left in it, to the service manager.
    pub(super) async fn keep_clients(&self, kept: Vec<Kept>) {
        if kept.is_empty() {
            return;
        }
        for (name, fd) in &kept {
            self.notifier.keep(fd.as_fd(), name);
        }
        match self.notifier.heard(HEARING_PATIENCE).await {
            true => log::info(format!("NBD clients that wait for the next start: {}", kept.len())),
            false => log::warn(format!("NBD clients that may not find the next start: {}", kept.len())),
        }
    }

    /// Goes on with the clients of the last daemon.
    pub(super) async fn take_over_clients(&self, kept: Vec<Kept>) {
        let names: BTreeSet<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return;
        }
        names.iter().for_each(|name| self.notifier.forget(name));
        if !self.notifier.heard(HEARING_PATIENCE).await {
            // It may still have them: their connections end for all who do.
            for (_, fd) in &kept {
                // One that has ended already is no concern.
                let _ = shutdown(fd, Shutdown::Both);
            }
            let text = "NBD clients of the last daemon are hung up on: the service manager does not let go of them";
            return log::error(text);
        }
        let clients: Vec<(Terms, OwnedFd)> =
            kept.into_iter().filter_map(|(name, fd)| Some((name.parse().ok()?, fd))).collect();
        let count = clients.len();
        let take = async move |local: Rc<Local>| {
            let take = |(terms, fd)| {
                let client = Handed { stream: RealStream::from_fd(fd), terms };
                local.server.take_over(client).map_err(|why: NoWay| (terms, why))
            };
            clients.into_iter().map(take).filter_map(Result::err).collect::<Vec<_>>()
        };
        // A core that is gone takes everything with it.
        let Ok(refused) = self.cores[0].call(take).await else { return };
        log::info(format!("NBD clients of the last daemon that go on: {}", count - refused.len()));
        let mut reasons: BTreeMap<(u64, String), usize> = BTreeMap::new();
        for (terms, why) in refused {
            *reasons.entry((terms.incarnation, why.to_string())).or_default() += 1;
        }
        for ((incarnation, why), count) in reasons {
            log::warn(format!("NBD clients of volume {incarnation:016x} that were hung up on: {count}; {why}"));
        }
    }
}
