//! The daemon among the other hosts of the fleet: the view of all hosts, and moves between two of them over the link.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use control::{Actor, Handler, ProgressSender};
use fleet_link::{Peer, Tunnels};
use messages::report::{FleetHostReport, FleetVolumeReport};
use messages::{Answer, ErrorKind, Failure, Request};
use rbd::{Claim, StandbyReport};

use tokio::net::UnixStream;

use super::super::cores::ConnectedClients;
use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, FLEET, VOLUME};
use state::Acceptance;

/// Time for the answers of other hosts about their volumes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the owner to destage, and to release an image, for a client that waits here as long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Pauses after a request for the ownership that has failed: the first, and the longest.
const REQUEST_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Time for another host to serve a volume whose image was released. Its own polls find the release as well.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests that other hosts may make: they can read each volume that this host owns, and stop it here by asking
/// for its image.
pub struct LinkHandler(pub Rc<Daemon>);

impl Handler for LinkHandler {
    async fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> Result<Answer, Failure> {
        log::debug!(target: FLEET, client = actor.show(), "request: {request:?}");
        match request {
            Request::FleetHost {}
            | Request::FleetForward { .. }
            | Request::FleetDestage { .. }
            | Request::FleetRelease { .. }
            | Request::FleetReleased { .. } => self.0.execute_for(&actor, request, &progress).await,
            _ => Err(Failure::new(ErrorKind::Invalid, "a host may not request this of another one")),
        }
    }
}

impl Tunnels for LinkHandler {
    async fn open(self: Rc<Self>, request: Request) -> Result<(UnixStream, Answer), Failure> {
        let Request::FleetForward { image, ownership } = request else {
            return Err(Failure::new(ErrorKind::Invalid, "no tunnel leads there"));
        };
        let (name, core) = self.0.owned_volume(&image, ownership)?;
        let failed = |error: io::Error| Failure::new(ErrorKind::Failed, format!("no tunnel can be opened: {error}"));
        let (here, there) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        here.set_nonblocking(true).map_err(failed)?;
        let stream = UnixStream::from_std(here).map_err(failed)?;
        self.0.cores.serve_tunnel(core, &name, there.into()).await?;
        Ok((stream, Answer::Said(vec![name])))
    }
}

impl Daemon {
    /// This host, with its volumes that several hosts can have.
    pub(super) async fn host_report(&self) -> FleetHostReport {
        FleetHostReport {
            host: self.settings.current().fleet.host.clone(),
            address: self.fleet_link.address(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            error: None,
            volumes: FleetVolumeReport::of(&self.volume_reports().await),
        }
    }

    /// `fleet hosts`: this host, then the others.
    pub(super) async fn host_reports(&self) -> Vec<FleetHostReport> {
        let request = Request::FleetHost {};
        let (own, others) = futures_util::join!(self.host_report(), self.fleet_link.ask_all(REPORT_TIMEOUT, &request));
        let other = |(peer, answer): (Peer, Result<Answer, Failure>)| {
            let error = match answer {
                Ok(Answer::FleetHost(report)) if report.host == peer.host => return *report,
                Ok(_) => format!("host {} has given another answer than that about its volumes", peer.host),
                Err(failure) => failure.message,
            };
            let (host, error) = (peer.host.clone(), Some(error));
            FleetHostReport { host, address: peer.show_address(), error, ..FleetHostReport::default() }
        };
        std::iter::once(own).chain(others.into_iter().map(other)).collect()
    }

    /// `fleet move` on a host on standby: asks the owner to release the image for the host `to`, and serves the volume
    /// if that is this host. Other changes of the volume do not wait for the owner.
    pub(super) async fn request_release(
        &self,
        name: &str,
        report: &StandbyReport,
        to: Option<&str>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let (host, owner) = (self.settings.current().fleet.host.clone(), report.owner.as_str());
        let conflict = |text: String| Failure::new(ErrorKind::Conflict, text);
        let Some(to) = to else {
            let text = format!("host {owner} owns the image of volume {name}; name the host to move it to with --to");
            return Err(conflict(text));
        };
        if to == owner {
            return Err(conflict(format!("host {owner} owns the image of volume {name} already")));
        }
        let peer = self.fleet_link.peer(owner).map_err(|failure| Failure {
            message: format!("host {owner} owns the image of volume {name}: {}", failure.message),
            ..failure
        })?;
        let request = Request::FleetRelease {
            image: report.image.clone(),
            ownership: report.epoch,
            to: Some(to.to_owned()),
            keeps_clients: false,
        };
        self.fleet_link.ask(&peer, &request, progress).await?;
        if to == host {
            let _guard = self.volumes.wait_for_change(name).await?;
            let known = self.volumes.get(name)?;
            if known.standby().is_some() {
                self.serve_released(&known).await?;
            }
        }
        self.show(name).await
    }

    /// Releases the image of a volume for another host, which has asked for it over the link.
    pub(super) async fn release_for(
        &self,
        actor: &Actor,
        (image, ownership): (&str, u64),
        to: Option<&str>,
        clients: ConnectedClients,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        if let Some(to) = to.filter(|to| !self.fleet_link.peers().iter().any(|peer| peer.host == *to)) {
            let text = format!("host {to} is not among the other hosts in [fleet] hosts of this host");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let (name, _) = self.owned_volume(image, ownership)?;
        let _guard = self.volumes.lock_for_change(&name)?;
        self.release_volume(&name, to, clients, progress).await?;
        let served_by = match actor {
            // It claims the image for itself.
            Actor::Host(host) if to.is_none_or(|to| to == host) => Some(host.clone()),
            _ => self.offer(image, to).await,
        };
        self.note_next_owner(&name, served_by.as_deref());
        Ok(Answer::Said(vec![format!("volume {name} is released")]))
    }

    /// The name and the core of the volume on this image, which this host owns with this ownership.
    pub(super) fn owned_volume(&self, image: &str, ownership: u64) -> Result<(String, usize), Failure> {
        let owned = |known: &KnownVolume| {
            let placement = known.placement().filter(|placement| placement.ownership == Some(ownership))?;
            (placement.identity == image).then(|| (known.config.name.clone(), placement.core))
        };
        self.volumes.map(owned).into_iter().flatten().next().ok_or_else(|| {
            let text = format!("ownership {ownership} of image {image} is not that of this host, or has ended");
            Failure::new(ErrorKind::Conflict, text)
        })
    }

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

    /// Serves the volume on this image, which its owner says that it has released.
    pub(super) async fn claim_released(&self, image: &str) -> Result<Answer, Failure> {
        let of_image = |known: &KnownVolume| {
            let standby = known.standby().filter(|standby| standby.image == image);
            standby.map(|_| known.config.name.clone())
        };
        let name = self.volumes.map(of_image).into_iter().flatten().next().ok_or_else(|| {
            Failure::new(ErrorKind::NotFound, format!("no volume on standby here lies on image {image}"))
        })?;
        let _guard = self.volumes.wait_for_change(&name).await?;
        let known = self.volumes.get(&name)?;
        if known.standby().is_some() {
            self.serve_released(&known).await?;
        }
        match self.volumes.placement(&name) {
            Ok(_) => Ok(Answer::Said(vec![format!("volume {name} is in service")])),
            Err(failure) => Err(failure),
        }
    }

    /// Tells the other hosts that an image is released; returns the host that serves its volume now.
    pub(super) async fn offer(&self, image: &str, to: Option<&str>) -> Option<String> {
        let request = Request::FleetReleased { image: image.to_owned() };
        for peer in self.fleet_link.peers().into_iter().filter(|peer| to.is_none_or(|to| to == peer.host)) {
            match self.fleet_link.ask_within(CLAIM_TIMEOUT, &peer, &request).await {
                Ok(_) => return Some(peer.host),
                Err(failure) => log::debug!(target: FLEET, "image {image}: {failure}"),
            }
        }
        None
    }

    /// Notes the host that serves a volume which this host has released, until this host's next look at its image.
    pub(super) fn note_next_owner(&self, name: &str, host: Option<&str>) {
        let standby = self.volumes.find(name).and_then(|known| known.standby().cloned());
        if let (Some(host), Some(standby)) = (host, standby) {
            let owner = host.to_owned();
            let report = StandbyReport { owner, epoch: standby.epoch + 1, release: None, claim: None, ..standby };
            self.volumes.update_owner(name, report);
        }
    }

    /// Claims the image of a volume on standby, which its owner has released, and serves the volume.
    async fn serve_released(&self, known: &KnownVolume) -> Result<(), Failure> {
        let (name, before) = (known.config.name.as_str(), known.status.clone());
        self.volumes.order_claim(name, Claim::Record);
        let attached = self.attachments.attach(known.config.clone(), known.from_file, Acceptance::default()).await;
        self.volumes.end_claim(name);
        self.standbys.forget(name);
        match attached {
            Ok(()) => {
                log::info!(
                    target: VOLUME, volume = name,
                    "volume {name}: this host owns its image now; the volume is in service"
                );
                Ok(())
            }
            Err(failure) => {
                self.volumes.stay_on_standby(name, &failure, before);
                Err(failure)
            }
        }
    }
}
