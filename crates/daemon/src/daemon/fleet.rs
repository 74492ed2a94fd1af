//! `fleet move`, `drain` and `take-over`: the ownership of images that several hosts reach.

use control::ProgressSender;
use futures_util::{StreamExt, stream};
use messages::report::FleetReport;
use messages::{Answer, ErrorKind, Failure};
use rbd::{Claim, ImageSpec, Release, StandbyReport};

use super::super::cores::{CachedData, ConnectedClients, Handover};
use super::super::foreign_log::{ForeignData, destage_foreign_log};
use super::super::rbd_helper::{HeldHelper, HelperPlan, hold};
use super::super::volumes::{KnownVolume, Placement, VolumeStatus, standby_text};
use super::Daemon;
use config::{BackingSpec, VolumeConfig};
use logging::{self as log, VOLUME};
use state::{Acceptance, UNDESTAGED_ELSEWHERE, VolumeRecord, effective_policy};
use units::show_bytes;

/// Volumes that are taken over at a time: each needs helper processes, and waits for a lease.
const TAKE_OVERS_MAX: usize = 16;
/// Volumes that a drain moves at a time: each needs helper processes on both hosts.
const MOVES_MAX: usize = 16;

impl Daemon {
    /// `fleet move`: releases the image of a volume for the host `to`, or for any, and waits until a host that the link
    /// reaches serves the volume. On standby it asks the owner.
    pub async fn move_volume(
        &self,
        name: &str,
        to: Option<&str>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let arrived = self.volumes.get(name)?;
        if let Some(report) = arrived.standby() {
            return self.request_release(name, report, to, progress).await;
        }
        let _guard = self.volumes.wait_for_change(name).await?;
        if let Some(report) = self.volumes.get(name)?.standby() {
            let text = format!("volume {name} has moved meanwhile: {}", standby_text(report));
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        self.check_target(name, to).await?;
        let image = self.release_volume(name, to, ConnectedClients::Disconnect, progress).await?;
        let served_by = self.offer(name, &image, to).await?;
        self.note_next_owner(name, served_by.as_deref());
        self.show(name).await
    }

    /// Destages while clients are served, detaches the volume as a removal does, and releases its image for the host
    /// `to`, or for any. On an error the volume is in service as before, unless its image is released. Returns the
    /// image's identity.
    pub(super) async fn release_volume(
        &self,
        name: &str,
        to: Option<&str>,
        clients: ConnectedClients,
        progress: &ProgressSender,
    ) -> Result<String, Failure> {
        let known = self.volumes.get(name)?;
        let (image, placement) = self.check_movable(&known, to).await?;
        // Most of the data is destaged while clients are served.
        self.flush(name, progress).await?;
        self.release_detached((&known, &placement), &image, &Release::new(to), clients, progress).await?;
        let to = to.map_or("any host".to_owned(), |host| format!("host {host}"));
        log::info!(target: VOLUME, volume = name, "volume {name}: its image is released for {to}");
        Ok(placement.identity)
    }

    /// `fleet drain`: moves all volumes whose images other hosts can own.
    pub async fn drain_host(&self, progress: &ProgressSender) -> Result<Answer, Failure> {
        let is_moved = |known: &KnownVolume| {
            let is_served = matches!(known.status, VolumeStatus::Serving(_));
            (is_served && matches!(known.config.backing, BackingSpec::Rbd(_))).then(|| known.config.name.clone())
        };
        let names: Vec<String> = self.volumes.map(is_moved).into_iter().flatten().collect();
        let move_volume = async |name: String| {
            let moved = self.move_volume(&name, None, progress).await;
            (name, moved)
        };
        let moved: Vec<_> = stream::iter(names).map(move_volume).buffer_unordered(MOVES_MAX).collect().await;
        let (mut messages, mut failures) = (Vec::new(), Vec::new());
        for (name, moved) in moved {
            let known = self.volumes.find(&name);
            let standby = known.as_ref().and_then(KnownVolume::standby).filter(|standby| standby.release.is_none());
            match (moved, standby) {
                (Ok(_), Some(standby)) => messages.push(format!("volume {name} is served by host {}", standby.owner)),
                (Ok(_), None) => messages.push(format!("volume {name} is released")),
                // A client of another host has moved it meanwhile.
                (Err(_), Some(standby)) => messages.push(format!("volume {name} is served by host {}", standby.owner)),
                (Err(failure), _) if failure.message.contains(&name) => failures.push(failure.message),
                (Err(failure), _) => failures.push(format!("volume {name} stays here: {failure}")),
            }
        }
        if messages.is_empty() && failures.is_empty() {
            messages.push("no volume in service lies on an image that other hosts can own".to_owned());
        }
        outcome_of_all(messages, failures)
    }

    /// `fleet take-over`: claims the image of a volume on standby. The owner's client is blocked; the host `from` has
    /// to be the owner. The end of its lease is not waited for if that host `is_fenced`: it is known to be off.
    pub async fn take_over(
        &self,
        name: &str,
        from: Option<String>,
        give_up: Option<String>,
        is_fenced: bool,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let _guard = self.volumes.wait_for_change(name).await?;
        let known = self.volumes.get(name)?;
        check_take_over(&known, from.as_deref())?;
        let (owner, before) = (known.standby().map(|report| report.owner.clone()), known.status.clone());
        self.volumes.order_claim(name, Claim::Command { from, is_fenced });
        let accept = Acceptance { give_up, ..Acceptance::default() };
        let requested = (known.config, known.from_file);
        let mut attached = self.attachments.attach(requested.0.clone(), requested.1, accept.clone()).await;
        if accept.give_up.is_none() && attached.as_ref().is_err_and(is_undestaged) {
            // Its state stays as it was while the log is read.
            let refused = self.volumes.find(name).map(|known| known.status);
            self.volumes.set_status(name, before.clone());
            attached = match self.destage_log_of_owner(&requested.0, true, progress).await {
                Ok(()) => self.attachments.attach(requested.0, requested.1, accept).await,
                Err(failure) => {
                    refused.into_iter().for_each(|refused| self.volumes.set_status(name, refused));
                    Err(failure)
                }
            };
        }
        self.volumes.end_claim(name);
        self.standbys.forget(name);
        if let Err(failure) = attached {
            let kind = if failure.kind == ErrorKind::Unavailable { ErrorKind::Conflict } else { failure.kind };
            let known = self.volumes.find(name);
            self.volumes.stay_on_standby(name, &failure, before);
            let message = match known.as_ref().and_then(KnownVolume::standby) {
                Some(report) => format!("volume {name} was not taken over: {} now", standby_text(report)),
                None => failure.message,
            };
            return Err(Failure { kind, message, ..failure });
        }
        self.flash.discard_given_up().await?;
        let former = owner.map_or(String::new(), |owner| format!(" from host {owner}"));
        log::warn!(target: VOLUME, volume = name, "volume {name}: taken over{former} by command");
        self.show(name).await
    }

    /// `fleet take-over --host`: takes over all volumes on standby that a host owns and has not released, and the
    /// refused ones of which it has undestaged data.
    pub async fn take_over_host(
        &self,
        host: &str,
        is_fenced: bool,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let is_left = |known: &KnownVolume| {
            let report = self.fleet_report(known, None).filter(|report| report.is_left_by(host))?;
            Some((report.undestaged_host.is_some(), known.config.name.clone()))
        };
        let mut names: Vec<(bool, String)> = self.volumes.map(is_left).into_iter().flatten().collect();
        if names.is_empty() {
            let text = format!("no volume on standby is owned by host {host}; see `hotset fleet status`");
            return Err(Failure::new(ErrorKind::NotFound, text));
        }
        // Volumes with data in its log are the last ones: they wait for each other.
        names.sort();
        let take_over = async |(_, name): (bool, String)| {
            let taken = self.take_over(&name, Some(host.to_owned()), None, is_fenced, progress).await;
            (name, taken)
        };
        let taken: Vec<_> = stream::iter(names).map(take_over).buffer_unordered(TAKE_OVERS_MAX).collect().await;
        let (mut messages, mut failures) = (Vec::new(), Vec::new());
        for (name, taken) in taken {
            match taken {
                Ok(_) => messages.push(format!("volume {name} is taken over")),
                Err(_) if self.volumes.placement(&name).is_ok() => {
                    messages.push(format!("volume {name} is in service by another command"));
                }
                Err(failure) => failures.push(failure.message),
            }
        }
        outcome_of_all(messages, failures)
    }

    /// Destages the data of a volume that is in the log of its owner, if that lies on an image, by the claim that is
    /// ordered for the volume.
    pub(super) async fn destage_log_of_owner(
        &self,
        config: &VolumeConfig,
        is_ordered: bool,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let (name, claim) = (config.name.clone(), self.volumes.claim_of(&config.name).unwrap_or_default());
        if let (BackingSpec::Rbd(image), Some(mark)) = (&config.backing, self.volumes.mark_of(&name)) {
            let plan = HelperPlan { claim, reads_log: true, ..self.attachments.helper_plan(config, image) };
            let data = ForeignData { volume: name.clone(), plan, mark: mark.clone(), is_ordered };
            let destaged = destage_foreign_log(data, &self.log_turns, progress.clone());
            if let Some(replayed) = self.stop.interrupt(destaged).await? {
                let bytes = replayed.data_blocks * seam::BLOCK_BYTES as u64;
                log::warn!(
                    target: VOLUME, volume = name,
                    "volume {name}: {} of flushed data and {} zeroed blocks of host {} were destaged from its log",
                    show_bytes(bytes), replayed.zero_blocks, mark.host
                );
            }
        }
        Ok(())
    }

    /// The ownership of a volume on an image that several hosts can own.
    pub(super) fn fleet_report(&self, known: &KnownVolume, record: Option<&VolumeRecord>) -> Option<FleetReport> {
        if !matches!(known.config.backing, BackingSpec::Rbd(_)) {
            return None;
        }
        let config = &known.config;
        let host = self.settings.current().fleet.host.clone();
        let mark = known.standby().map_or_else(|| self.volumes.mark_of(&config.name), |standby| standby.mark.clone());
        let (undestaged_host, undestaged_data) = mark.map(|mark| (mark.host, rbd::show_mark_id(mark.id))).unzip();
        let report = FleetReport {
            host: host.clone(),
            undestaged_host,
            undestaged_data,
            requested_policy: effective_policy(record, config.policy).to_string(),
            take_over: config.take_over.mode.name().to_owned(),
            take_over_after_seconds: config.take_over.after.as_secs(),
            ..FleetReport::default()
        };
        Some(match (known.placement(), known.standby()) {
            (Some(placement), _) => FleetReport {
                owner: host.clone(),
                is_owner: true,
                ownership: placement.ownership.unwrap_or(0),
                undestaged_host: record.is_some_and(|record| record.dirty_on_flash.is_some()).then_some(host),
                undestaged_data: None,
                ..report
            },
            (None, Some(standby)) => {
                let StandbyReport { image: _, owner, epoch, has_client, release, mark: _, claim: _ } = standby.clone();
                let released_to = release.map(|release| release.host().unwrap_or("any").to_owned());
                FleetReport { owner, ownership: epoch, owner_has_image_open: Some(has_client), released_to, ..report }
            }
            (None, None) => report,
        })
    }

    /// The image and the placement of a volume that can be moved.
    async fn check_movable(&self, known: &KnownVolume, to: Option<&str>) -> Result<(ImageSpec, Placement), Failure> {
        let name = &known.config.name;
        let conflict = |text: String| Failure::new(ErrorKind::Conflict, text);
        let BackingSpec::Rbd(image) = &known.config.backing else {
            let text = format!("volume {name} lies on {}, which no other host can own", known.config.backing);
            return Err(conflict(text));
        };
        let placement = self.volumes.placement(name)?;
        let host = &self.settings.current().fleet.host;
        if to == Some(host.as_str()) {
            return Err(conflict(format!("host {host} owns the image of volume {name} already")));
        }
        if self.cores.lost_bytes(name, placement.core).await.is_some() {
            let text = format!("volume {name} has lost its image, so it cannot be moved: hotset volume remove {name}");
            return Err(conflict(text));
        }
        Ok((image.clone(), placement))
    }

    /// Detaches a volume, and releases its image.
    async fn release_detached(
        &self,
        (known, placement): (&KnownVolume, &Placement),
        image: &ImageSpec,
        release: &Release,
        clients: ConnectedClients,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let name = known.config.name.as_str();
        let held = hold(image).ok_or_else(|| {
            let text = format!("volume {name}: the helper process of its image is being started; try again");
            Failure::new(ErrorKind::Conflict, text)
        })?;
        self.volumes.set_status(name, VolumeStatus::Removing(placement.clone()));
        if let Err(failure) =
            self.attachments.detach_from(clients, CachedData::Retain, name, placement.core, progress).await
        {
            self.volumes.set_status(name, VolumeStatus::Serving(placement.clone()));
            return Err(failure);
        }
        // The volume's record stays, for its settings and its LUN.
        self.records.change_or_log(|state| state.mark_clean(placement.volume_id));
        let reason = match held.release(release).await {
            Ok(version) => return self.record_released(known, placement, release, version).await,
            Err(reason) => reason,
        };
        self.cores.drop_retained(name, placement.core).await;
        // The image decides: its helper finds the release there, or goes on with the volume.
        match self.attachments.attach(known.config.clone(), known.from_file, Acceptance::default()).await {
            Err(failure) if self.is_on_standby(name) => {
                log::debug!(target: VOLUME, volume = name, "{}", failure.message);
                Ok(())
            }
            attached => {
                let state = attached.map_or_else(|failure| failure.message, |()| "it stays in service".to_owned());
                let text = format!("volume {name}: its image was not released ({reason}); {state}");
                Err(Failure::new(ErrorKind::Failed, text))
            }
        }
    }

    /// Records the release of a volume's image, whose header got this version by it: the volume is on standby, and its
    /// cached blocks are kept for the next owner.
    async fn record_released(
        &self,
        known: &KnownVolume,
        placement: &Placement,
        release: &Release,
        header_version: Option<u64>,
    ) -> Result<(), Failure> {
        let (name, image, ownership) =
            (&known.config.name, placement.identity.clone(), placement.ownership.unwrap_or(0));
        match header_version.filter(|_| !self.fleet_link.peers().is_empty()) {
            Some(header_version) => {
                let handover = Handover { image: image.clone(), ownership, header_version };
                self.cores.keep_for_next_owner(name, placement.core, handover).await;
            }
            None => self.cores.drop_retained(name, placement.core).await,
        }
        // The next host waits for this one no longer; the next look at the image finds its owner.
        let report = StandbyReport {
            image,
            owner: self.settings.current().fleet.host.clone(),
            epoch: ownership,
            has_client: false,
            release: Some(release.clone()),
            mark: None,
            claim: None,
        };
        self.attachments.record_released(known, report).await;
        Ok(())
    }

    /// A hold on the helper process of a volume that is to be removed, if its image can be owned by another host.
    pub(super) fn hold_image(&self, config: &VolumeConfig) -> Option<HeldHelper> {
        match &config.backing {
            BackingSpec::Rbd(image) => hold(image),
            _ => None,
        }
    }

    fn is_on_standby(&self, name: &str) -> bool {
        self.volumes.find(name).is_some_and(|known| known.standby().is_some())
    }
}

/// The outcome of an action on several volumes: the messages, or one failure that has all of them.
fn outcome_of_all(mut messages: Vec<String>, failures: Vec<String>) -> Result<Answer, Failure> {
    if failures.is_empty() {
        return Ok(Answer::Said(messages));
    }
    messages.extend(failures);
    Err(Failure::new(ErrorKind::Failed, messages.join("; ")))
}

/// True for the refusal of an image that lacks flushed data of another host.
pub fn is_undestaged(failure: &Failure) -> bool {
    failure.refusal.as_deref() == Some(UNDESTAGED_ELSEWHERE)
}

/// Releases the image of a removed volume, which is complete, for any host.
pub async fn release_removed(name: &str, held: Option<HeldHelper>) {
    let Some(held) = held else { return };
    if let Err(reason) = held.release(&Release::Any).await {
        log::warn!(
            target: VOLUME, volume = name,
            "volume {name}: its image was not released for other hosts ({reason}): there, take it over by command"
        );
    }
}

/// Refuses a take-over that is none, or of another owner than the one that was seen.
fn check_take_over(known: &KnownVolume, from: Option<&str>) -> Result<(), Failure> {
    let name = &known.config.name;
    let conflict = |text: String| Err(Failure::new(ErrorKind::Conflict, text));
    if !matches!(known.config.backing, BackingSpec::Rbd(_)) {
        return conflict(format!("volume {name} lies on {}, which no other host can own", known.config.backing));
    }
    match (&known.status, known.standby()) {
        (_, Some(StandbyReport { owner, .. })) => match from.filter(|from| from != owner) {
            Some(from) => conflict(format!(
                "host {owner} owns the image of volume {name}, and not host {from}: look at `hotset fleet status`, and \
                 repeat the command if that host is to be taken over from"
            )),
            None => Ok(()),
        },
        (VolumeStatus::Refused(_), None) => Ok(()),
        (VolumeStatus::Serving(_) | VolumeStatus::Removing(_) | VolumeStatus::Standby(..), None) => {
            conflict(format!("this host owns the image of volume {name} already"))
        }
    }
}
