//! The hosts of the fleet: the view of all of them, and moves between two of them that a command orders.

use std::time::Duration;

use control::ProgressSender;
use fleet_link::Peer;
use messages::report::{FleetHostReport, FleetVolumeReport};
use messages::{Answer, ErrorKind, Failure, Request};
use rbd::{Claim, StandbyReport};

use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, FLEET, VOLUME};
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
