//! The requests of other hosts over the link.

use std::io;
use std::rc::Rc;

use control::{Actor, Handler, ProgressSender};
use fleet_link::Tunnels;
use messages::{Answer, ErrorKind, Failure, Request};
use tokio::net::UnixStream;

use super::super::cores::{ConnectedClients, Handover};
use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, FLEET};

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
        let failed = |error: io::Error| Failure::new(ErrorKind::Failed, format!("no tunnel can be opened: {error}"));
        let (here, there) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        here.set_nonblocking(true).map_err(failed)?;
        let stream = UnixStream::from_std(here).map_err(failed)?;
        let name = match request {
            Request::FleetForward { image, ownership } => {
                let (name, core) = self.0.owned_volume(&image, ownership)?;
                self.0.cores.serve_tunnel(core, &name, there.into()).await?;
                name
            }
            Request::FleetTransfer { image, ownership, header_version } => {
                let handover = Handover { image, ownership, header_version };
                self.0.cores.send_retained(&handover, there.into()).await?
            }
            _ => return Err(Failure::new(ErrorKind::Invalid, "no tunnel leads there")),
        };
        Ok((stream, Answer::Said(vec![name])))
    }
}

impl Daemon {
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
        let claimant = match actor {
            // It claims the image for itself.
            Actor::Host(host) if to.is_none_or(|to| to == host) => Some(host.clone()),
            _ => None,
        };
        if claimant.is_none() {
            self.check_target(&name, to).await?;
        }
        self.release_volume(&name, to, clients, progress).await?;
        let served_by = match claimant {
            Some(host) => Some(host),
            None => self.offer(&name, image, to).await?,
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
            let text = format!(
                "this host does not own image {image} by ownership {ownership} any more: repeat the request in 5 s"
            );
            Failure::new(ErrorKind::Conflict, text)
        })
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
}
