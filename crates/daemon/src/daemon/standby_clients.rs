//! Clients of volumes on standby: their reads are forwarded to the owner, and their first change asks the owner for the
//! volume.

use std::rc::Rc;
use std::time::{Duration, Instant};

use fleet_link::Peer;
use messages::{ErrorKind, Failure, Request};
use rbd::StandbyReport;

use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, FLEET};

/// Time for the owner to destage, and to release an image, for a client that waits here as long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Pauses after a request for the ownership that has failed: the first, and the longest.
const REQUEST_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

impl Daemon {
    /// Forwards the reads of volumes on standby to their owners, as far as the link reaches them.
    pub(super) fn forward_due(self: &Rc<Self>) {
        if self.stop.is_stopping() {
            return;
        }
        for known in self.volumes.on_standby() {
            let Some(report) = known.standby().cloned() else { continue };
            let is_due = self.forwarding.is_due(&known.config.name, &report);
            if report.release.is_some() || self.volumes.is_changing(&known.config.name) || !is_due {
                continue;
            }
            let Ok(peer) = self.fleet_link.peer(&report.owner) else { continue };
            tokio::task::spawn_local(Rc::clone(self).forward(known, report, peer));
        }
    }

    /// Forwards the reads of a volume on standby, and waits for a client that wants to change it.
    async fn forward(self: Rc<Self>, known: KnownVolume, report: StandbyReport, peer: Peer) {
        let name = known.config.name.clone();
        let forward = match self.forwarding.connect(&known.config, &report, peer).await {
            Ok(forward) => forward,
            Err(failure) => {
                return log::debug!(target: FLEET, volume = name, "volume {name}: {}", failure.message);
            }
        };
        let number = {
            let guard = self.volumes.lock_for_change(&name);
            let is_owner = |known: KnownVolume| {
                known.standby().is_some_and(|now| (&now.owner, now.epoch) == (&report.owner, report.epoch))
            };
            if guard.is_err() || self.stop.is_stopping() || !self.volumes.find(&name).is_some_and(is_owner) {
                return self.forwarding.close(forward).await;
            }
            match self.forwarding.attach(&name, forward).await {
                Ok(number) => number,
                Err(failure) => {
                    return log::warn!(target: FLEET, volume = name, "volume {name}: {}", failure.message);
                }
            }
        };
        self.request_ownership_if_wanted(&name, number).await;
    }

    /// Asks the owner of a volume on standby for its image each time a client wants to change the volume, until this
    /// forwarding ends.
    async fn request_ownership_if_wanted(&self, name: &str, number: u64) {
        let (mut pause, mut reported) = (REQUEST_PAUSES.0, None);
        while self.forwarding.wait_until_change_wanted(name, number).await {
            let Err(failure) = self.request_ownership(name).await else { return };
            if reported.as_ref() != Some(&failure.message) {
                log::warn!(
                    target: FLEET, volume = name,
                    "volume {name}: a client wants to change it, but its owner has not handed it over: {}",
                    failure.message
                );
                reported = Some(failure.message);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REQUEST_PAUSES.1);
        }
    }

    async fn request_ownership(&self, name: &str) -> Result<(), Failure> {
        let stopping = || Failure::new(ErrorKind::Unavailable, "the daemon is stopping");
        let moved = || Failure::new(ErrorKind::Conflict, "its owner has changed meanwhile");
        let report = self.volumes.get(name)?.standby().cloned().ok_or_else(moved)?;
        let (peer, began_at) = (self.fleet_link.peer(&report.owner)?, Instant::now());
        let (image, ownership) = (report.image.clone(), report.epoch);
        // While the owner destages, it answers reads, and other changes of the volume here do not wait for it.
        let destage = Request::FleetDestage { image: image.clone(), ownership };
        self.fleet_link.ask_within(ANSWER_TIMEOUT, &peer, &destage).await?;
        let _guard = self.volumes.wait_for_change(name).await?;
        if self.stop.is_stopping() {
            return Err(stopping());
        }
        let known = self.volumes.get(name)?;
        if known.standby().is_none_or(|now| (&now.owner, now.epoch) != (&report.owner, ownership)) {
            return Err(moved());
        }
        // No read may wait for the owner while it gives the image up.
        self.forwarding.end(name).await?;
        let to = Some(self.settings.current().fleet.host.clone());
        let release = Request::FleetRelease { image, ownership, to, keeps_clients: true };
        if let Err(failure) = self.fleet_link.ask_within(ANSWER_TIMEOUT, &peer, &release).await {
            self.forwarding.delay(name);
            return Err(failure);
        }
        self.serve_released(&known).await?;
        let (host, waited_ms) = (&peer.host, began_at.elapsed().as_millis());
        log::info!(
            target: FLEET, volume = name, waited_ms,
            "volume {name}: host {host} has handed it over to a client here, which waited {waited_ms} ms"
        );
        Ok(())
    }
}
