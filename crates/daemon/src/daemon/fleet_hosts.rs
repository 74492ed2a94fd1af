//! The hosts of the fleet: the view of all of them, and moves between two of them that a command orders.

use std::time::Duration;

use control::ProgressSender;
use fleet_link::Peer;
use messages::report::{FleetHostReport, FleetVolumeReport};
use messages::{Answer, ErrorKind, Failure, Request};
use rbd::{Claim, StandbyReport};

use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, VOLUME};
use state::Acceptance;

/// Time for the answers of other hosts about their volumes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for another host to serve a volume whose image was released. Its own polls find the release as well.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);

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
        if owner == host {
            let text = format!(
                "volume {name}: this host has released its image, and no host serves it; serve it here again: hotset \
                 fleet take-over {name}"
            );
            return Err(conflict(text));
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

    /// Fails if the link reaches no host that could serve a volume which is to move `to` that one, or to any.
    pub(super) async fn check_target(&self, name: &str, to: Option<&str>) -> Result<(), Failure> {
        let mut reason = None;
        for peer in self.peers_for(to)? {
            match self.fleet_link.ask_within(REPORT_TIMEOUT, &peer, &Request::FleetHost {}).await {
                Ok(_) => return Ok(()),
                Err(failure) => reason = Some(failure.message),
            }
        }
        let text = |reason| format!("volume {name} stays here, because no host could serve it: {reason}");
        reason.map_or(Ok(()), |reason| Err(Failure::new(ErrorKind::Conflict, text(reason))))
    }

    /// The hosts that may serve a volume which moves `to` that one, or to any; none without a link.
    fn peers_for(&self, to: Option<&str>) -> Result<Vec<Peer>, Failure> {
        let peers = self.fleet_link.peers();
        match to {
            Some(to) if !peers.is_empty() => Ok(vec![self.fleet_link.peer(to)?]),
            _ => Ok(peers),
        }
    }

    /// Tells the other hosts that the image of a volume is released; returns the host that serves the volume now.
    /// Without a link it returns none: hosts on standby find the release by their own looks.
    pub(super) async fn offer(&self, name: &str, image: &str, to: Option<&str>) -> Result<Option<String>, Failure> {
        let request = Request::FleetReleased { image: image.to_owned() };
        let mut reason = None;
        for peer in self.peers_for(to)? {
            match self.fleet_link.ask_within(CLAIM_TIMEOUT, &peer, &request).await {
                Ok(_) => return Ok(Some(peer.host)),
                Err(failure) => reason = Some(failure.message),
            }
        }
        let text = |reason| {
            format!(
                "volume {name}: its image is released, but no host serves it: {reason}. Once that is mended, the host \
                 claims the image; or serve the volume here again: hotset fleet take-over {name}"
            )
        };
        reason.map_or(Ok(None), |reason| Err(Failure::new(ErrorKind::Failed, text(reason))))
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
    pub(super) async fn serve_released(&self, known: &KnownVolume) -> Result<(), Failure> {
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
                self.start_transfer(name, known.standby());
                Ok(())
            }
            Err(failure) => {
                self.volumes.stay_on_standby(name, &failure, before);
                Err(failure)
            }
        }
    }
}
