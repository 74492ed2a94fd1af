//! The daemon among the other hosts of the fleet: the view of all hosts, and moves between two of them over the link.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use control::{Actor, Handler, ProgressSender};
use fleet_link::Tunnels;
use messages::report::{FleetHostReport, FleetVolumeReport};
use messages::{Answer, ErrorKind, Failure, Request};
use rbd::{Claim, ImageSpec, StandbyReport};

use tokio::net::UnixStream;

use super::super::cores::ConnectedClients;
use super::super::volumes::KnownVolume;
use super::Daemon;
use config::BackingSpec;
use logging::{self as log, FLEET, VOLUME};
use state::Acceptance;

/// Time for the answers of other hosts about their volumes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for another host to serve a volume whose image was released. Its own polls find the release as well.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests that other hosts may make. They need no other right, since the image of a volume decides which host may
/// serve it.
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
        let (own, others) = futures_util::join!(self.host_report(), self.fleet_link.ask_all(&request, REPORT_TIMEOUT));
        let other = |(peer, answer): (fleet_link::Peer, Result<Answer, Failure>)| {
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

    /// `fleet move` on a host on standby: asks the owner to release the image, and serves the volume if this host may
    /// claim it.
    pub(super) async fn request_release(
        &self,
        known: &KnownVolume,
        report: &StandbyReport,
        to: Option<&str>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let (name, host) = (known.config.name.as_str(), self.settings.current().fleet.host.clone());
        let BackingSpec::Rbd(image) = &known.config.backing else { return Err(Failure::no_volume(name)) };
        let owner = report.owner.as_str();
        if to == Some(owner) {
            let text = format!("host {owner} owns the image of volume {name} already");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let peer = self.fleet_link.peer(owner).map_err(|failure| Failure {
            message: format!("host {owner} owns the image of volume {name}: {}", failure.message),
            ..failure
        })?;
        let request = Request::FleetRelease {
            image: image.place(),
            ownership: report.epoch,
            to: to.map(str::to_owned),
            keeps_clients: false,
        };
        self.fleet_link.ask(&peer, &request, progress).await?;
        if to.is_none_or(|to| to == host) {
            self.serve_released(known).await?;
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
        let (name, _) = self.owned_volume(image, ownership)?;
        let _guard = self.volumes.lock_for_change(&name)?;
        self.release_volume(&name, to, clients, progress).await?;
        let served_by = match actor {
            // It claims the image for itself.
            Actor::Host(host) if to.is_none_or(|to| to == host) => Some(host.clone()),
            _ => self.offer(image, to).await,
        };
        self.note_successor(&name, served_by.as_deref());
        Ok(Answer::Said(vec![format!("volume {name} is released")]))
    }

    /// The name and the core of the volume on this image, which this host owns with this ownership.
    pub(super) fn owned_volume(&self, image: &str, ownership: u64) -> Result<(String, usize), Failure> {
        let owned = |known: &KnownVolume| {
            let placement = known.placement().filter(|placement| placement.ownership == Some(ownership))?;
            (place_of(known).as_deref() == Some(image)).then(|| (known.config.name.clone(), placement.core))
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
            let (Some(report), Some(image)) = (known.standby().cloned(), place_of(&known)) else { continue };
            let name = known.config.name.clone();
            if report.release.is_some() || !self.forwarding.is_due(&name, &report) {
                continue;
            }
            let Ok(peer) = self.fleet_link.peer(&report.owner) else { continue };
            let daemon = Rc::clone(self);
            self.volumes.spawn_change(&name.clone(), async move {
                match daemon.forwarding.start(&known.config, &image, &report, peer).await {
                    Ok(()) => drop(tokio::task::spawn_local(daemon.take_ownership_if_wanted(name))),
                    Err(failure) => log::debug!(target: FLEET, volume = name, "volume {name}: {}", failure.message),
                }
            });
        }
    }

    /// Waits until a client wants to change a volume on standby, and takes the ownership over from its owner.
    async fn take_ownership_if_wanted(self: Rc<Self>, name: String) {
        if !self.forwarding.wait_for_change(&name).await {
            return;
        }
        if let Err(failure) = self.take_ownership(&name).await {
            log::warn!(
                target: FLEET, volume = name,
                "volume {name}: a client wants to change it, but its owner has not handed it over: {}",
                failure.message
            );
        }
    }

    async fn take_ownership(&self, name: &str) -> Result<(), Failure> {
        let _guard = self.volumes.wait_for_change(name).await?;
        let known = self.volumes.get(name)?;
        let (Some(report), Some(image)) = (known.standby(), place_of(&known)) else { return Ok(()) };
        let (peer, began_at) = (self.fleet_link.peer(&report.owner)?, Instant::now());
        // No read may wait for the owner while it gives the image up.
        self.forwarding.end(name).await?;
        let to = Some(self.settings.current().fleet.host.clone());
        let request = Request::FleetRelease { image, ownership: report.epoch, to, keeps_clients: true };
        // No client watches the progress.
        let (progress, _) = ProgressSender::new();
        self.fleet_link.ask(&peer, &request, &progress).await?;
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
        let of_image =
            |known: &KnownVolume| (place_of(known).as_deref() == Some(image)).then(|| known.config.name.clone());
        let name = self.volumes.map(of_image).into_iter().flatten().next().ok_or_else(|| {
            Failure::new(ErrorKind::NotFound, format!("no volume of this host lies on image {image}"))
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
            // No client watches the progress.
            let (progress, _) = ProgressSender::new();
            match tokio::time::timeout(CLAIM_TIMEOUT, self.fleet_link.ask(&peer, &request, &progress)).await {
                Ok(Ok(_)) => return Some(peer.host),
                Ok(Err(failure)) => log::debug!(target: FLEET, "image {image}: {failure}"),
                Err(_) => log::debug!(target: FLEET, "image {image}: host {} has not answered", peer.host),
            }
        }
        None
    }

    /// Notes the host that serves a volume which this host has released, until this host's next look at its image.
    pub(super) fn note_successor(&self, name: &str, host: Option<&str>) {
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

/// The image of a volume in its cluster.
fn place_of(known: &KnownVolume) -> Option<String> {
    match &known.config.backing {
        BackingSpec::Rbd(image) => Some(ImageSpec::place(image)),
        _ => None,
    }
}
