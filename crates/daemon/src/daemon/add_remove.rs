//! `volume add`, `remove` and `adopt`.

use control::ProgressSender;
use engine::VolumeId;
use messages::{Answer, ErrorKind, Failure};

use super::super::volume_settings::warn_of_conflicts;
use super::super::volumes::{STANDBY, VolumeStatus};
use super::Daemon;
use super::fleet::release_removed;
use super::new_file::NewFile;
use config::{BackingSpec, VolumeConfig, check_name, parse_placement};
use logging::{self as log, VOLUME};
use state::{Acceptance, AddedVolume, is_of_new_volume, may_have_shrunk, show_volume_id};

/// Smallest unit of a volume's size in bytes.
const SECTOR: u64 = seam::SECTOR_BYTES as u64;

impl Daemon {
    /// `volume add`. On an error it leaves neither a volume nor a record nor a file.
    pub async fn add(
        &self,
        name: &str,
        backing: &str,
        size_bytes: Option<u64>,
        (policy, read_only): (Option<&str>, bool),
        (tier_policy, provisioning): (Option<&str>, Option<&str>),
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let invalid = |error: String| Failure::new(ErrorKind::Invalid, error);
        check_name(name).map_err(invalid)?;
        if let Some(bytes) = size_bytes.filter(|bytes| *bytes == 0 || !bytes.is_multiple_of(SECTOR)) {
            let text = format!("a volume of {bytes} bytes cannot be; specify a multiple of {SECTOR} bytes, above 0");
            return Err(invalid(text));
        }
        let _guard = self.volumes.lock_for_change(name)?;
        if self.volumes.contains(name) {
            return Err(Failure::new(ErrorKind::Conflict, format!("a volume named \"{name}\" already exists")));
        }
        let spec = BackingSpec::parse(backing, std::path::Path::new("/")).map_err(invalid)?;
        let policy = policy.unwrap_or("write-back").parse::<engine::WritePolicy>().map_err(invalid)?;
        let settings = self.settings.current();
        let pool = settings.pools.iter().find(|pool| spec.pool() == Some(pool.name.as_str()));
        let is_placed = tier_policy.is_some() || provisioning.is_some();
        let (tier_policy, provisioning) = parse_placement(tier_policy, provisioning, pool).map_err(invalid)?;
        if let Some(pool) = pool.filter(|_| is_placed)
            && self.cores.has_pool_volume(&pool.name, name).await?
        {
            let text = format!(
                "pool {} has a volume \"{name}\" already, which keeps its tier policy and provisioning: add it without \
                 them",
                pool.name
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let config = VolumeConfig { policy, size_bytes, read_only, ..VolumeConfig::new(name, spec) };
        let config = VolumeConfig { tier_policy, provisioning, ..config };
        let config = config.with_rules(&self.settings.current().qos);
        warn_of_conflicts(&config);
        let ids_before: Vec<_> = self.records.view().volumes.iter().map(|record| record.volume_id).collect();
        let path = match &config.backing {
            BackingSpec::Path(path) => Some(path.clone()),
            _ => None,
        };
        let file = NewFile::check(path.filter(|_| size_bytes.is_some())).await;
        let attached = self.attachments.attach(config, false, Acceptance::default()).await;
        if let Err(failure) = attached {
            self.undo_add(name, &ids_before, file).await;
            // A backing that cannot be opened is an error in the request.
            let is_backing_failure = matches!(failure.kind, ErrorKind::Failed | ErrorKind::Unavailable);
            let kind = if is_backing_failure { ErrorKind::Conflict } else { failure.kind };
            let message = match failure.refusal.as_deref() {
                Some(STANDBY) => format!("{}. {LIST_FOR_STANDBY}", failure.message),
                Some(code) if is_of_new_volume(code) => format!("{}. {LIST_BEFORE_ADOPT}", failure.message),
                _ => failure.message,
            };
            return Err(Failure { kind, message, ..failure });
        }
        let placement = self.volumes.placement(name)?;
        let added = AddedVolume { backing: backing.to_owned(), size_bytes, policy: policy.to_string(), read_only };
        // The "removed" mark of an entry in the file stays: the added volume keeps the name across a restart.
        let in_file = self.settings.current().volumes.iter().any(|volume| volume.name == name);
        let recorded = self.records.change(|state| {
            if !in_file {
                state.removed.remove(name);
            }
            if let Some(record) = state.by_id_mut(placement.volume_id) {
                record.added = Some(added);
            }
        });
        if let Err(failure) = recorded {
            // Clients may have written already: the backing gets their data, or the volume stays in service.
            if let Err(error) = self.attachments.detach(name, placement.core, progress).await {
                let text = format!("{failure}; volume {name} stays in service until a restart, because {error}");
                return Err(Failure { message: text, ..failure });
            }
            self.undo_add(name, &ids_before, file).await;
            return Err(failure);
        }
        log::info!(target: VOLUME, volume = name, "volume {name} added by command");
        self.show(name).await
    }

    /// Removes what a failed `volume add` has created: the volume, its LUN, its record if the volume ID is not among
    /// `ids_before`, and a file without data.
    async fn undo_add(&self, name: &str, ids_before: &[VolumeId], file: NewFile) {
        let lun = self.units.remove_absent(name).await;
        self.volumes.remove(name);
        let created = self.records.view().by_name(name).map(|record| record.volume_id);
        let forgotten = match created.filter(|created| !ids_before.contains(created)) {
            Some(created) => self.records.change(|state| state.forget(created)),
            None => Ok(()),
        };
        let is_forgotten = forgotten.is_ok();
        for failure in [lun.err(), forgotten.err()].into_iter().flatten() {
            log::warn!(
                target: VOLUME, volume = name,
                "volume {name} could not be added, and its record stays: {failure}"
            );
        }
        // If the record stays, the next start needs the file.
        if is_forgotten {
            file.remove_if_empty().await;
        }
    }

    /// `volume remove`: afterwards the backing alone holds the complete data. Of a volume that is not served, or whose
    /// backing is lost, dirty data in the flash log and in memory is lost; it must be named in `give_up`.
    pub async fn remove(
        &self,
        name: &str,
        give_up: Option<&str>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        let Some(known) = self.volumes.find(name) else { return self.remove_record(name, give_up).await };
        let lost_bytes = match &known.status {
            VolumeStatus::Serving(placement) => self.cores.lost_bytes(name, placement.core).await,
            _ => None,
        };
        let standing = match lost_bytes {
            Some(bytes) => Standing::Lost { is_dirty: bytes > 0 },
            None if known.refusal().is_some() => Standing::Refused,
            None => Standing::Served,
        };
        let lost_data = self.confirm_loss(name, give_up, standing).await?;
        if let VolumeStatus::Serving(placement) = &known.status {
            self.volumes.set_status(name, VolumeStatus::Removing(placement.clone()));
            let held = self.hold_image(&known.config).filter(|_| lost_bytes.is_none());
            let detached = match standing {
                Standing::Lost { .. } => self.attachments.detach_lost(name, placement.core, progress).await,
                _ => self.attachments.detach(name, placement.core, progress).await,
            };
            if let Err(failure) = detached {
                self.volumes.set_status(name, VolumeStatus::Serving(placement.clone()));
                return Err(failure);
            }
            release_removed(name, held).await;
        }
        self.forwarding.remove(name).await?;
        self.units.remove_absent(name).await?;
        self.volumes.remove(name);
        self.records.change(|state| {
            lost_data.into_iter().for_each(|volume_id| state.give_up(volume_id));
            let (recorded_id, status) = (state.by_name(name).map(|record| record.volume_id), &known.status);
            match (status, recorded_id) {
                (VolumeStatus::Serving(placement), _) => state.forget(placement.volume_id),
                (_, Some(volume_id)) => state.forget(volume_id),
                _ => {}
            }
            state.forget_displaced(name);
            if known.from_file {
                state.removed.insert(name.to_owned(), known.config.entry());
            }
        })?;
        self.discard_lost(lost_data).await?;
        log::info!(target: VOLUME, volume = name, "volume {name} removed by command");
        let backing = &known.config.backing;
        let mut messages = vec![match known.status {
            _ if lost_data.is_some() => {
                format!("volume {name} is removed; its dirty data is discarded, and its backing {backing} is unchanged")
            }
            VolumeStatus::Serving(_) if lost_bytes.is_some() => {
                format!("volume {name} is removed; its backing {backing}, which is lost, has all of its data")
            }
            VolumeStatus::Refused(_) => {
                format!("volume {name} is removed; it was not served, and its backing {backing} is unchanged")
            }
            _ => format!("volume {name} is removed; its backing {backing} is complete"),
        }];
        if known.from_file {
            messages.push(
                "it stays removed across restarts until backing, size, policy or read_only of its entry change"
                    .to_owned(),
            );
        }
        Ok(Answer::Said(messages))
    }

    /// `volume remove` of a name that only the records know: its entry has left the file, and it was not stopped
    /// cleanly.
    async fn remove_record(&self, name: &str, give_up: Option<&str>) -> Result<Answer, Failure> {
        let record = self.records.view().by_name(name).map(|record| record.volume_id);
        let Some(volume_id) = record else { return Err(Failure::no_volume(name)) };
        let lost_data = self.confirm_loss(name, give_up, Standing::Unlisted).await?;
        self.records.change(|state| {
            lost_data.into_iter().for_each(|volume_id| state.give_up(volume_id));
            state.forget(volume_id);
            state.forget_displaced(name);
        })?;
        self.discard_lost(lost_data).await?;
        log::info!(target: VOLUME, volume = name, "record of volume {name} removed by command");
        let discarded = if lost_data.is_some() { "; its dirty data is discarded" } else { "" };
        let text = format!("the record of volume {name} is removed{discarded}; its backing is unchanged");
        Ok(Answer::Said(vec![text]))
    }

    /// The volume's data that its removal loses; an error unless `give_up` names exactly this data.
    async fn confirm_loss(
        &self,
        name: &str,
        give_up: Option<&str>,
        standing: Standing,
    ) -> Result<Option<VolumeId>, Failure> {
        let images = self.memory.persisted_images_of(name).await?;
        let is_in_cache = matches!(standing, Standing::Lost { is_dirty: true })
            || !images.is_empty()
            || self.records.may_be_on_flash(name)
            || self.attachments.has_blocks_in_log(name).await?;
        let volume_id = self.records.view().by_name(name).map(|record| record.volume_id);
        let lost_data = volume_id.filter(|_| standing != Standing::Served && is_in_cache);
        if lost_data.map(show_volume_id).as_deref() != give_up {
            return Err(Failure::new(ErrorKind::Conflict, describe_removal_loss(name, standing, lost_data, &images)));
        }
        Ok(lost_data)
    }

    /// Discards given-up data of a removed volume from the flash devices.
    async fn discard_lost(&self, lost_data: Option<VolumeId>) -> Result<(), Failure> {
        if lost_data.is_some() {
            self.flash.discard_given_up().await?;
            self.flash.save_manifest().await;
        }
        Ok(())
    }

    /// `volume adopt`: declares the backing's present content to be the volume's data. Data that this may lose must be
    /// named in `give_up`; `discard_dirty` gives up dirty data past the end of a shrunk backing alone.
    pub async fn adopt(&self, name: &str, give_up: Option<String>, discard_dirty: bool) -> Result<Answer, Failure> {
        let _guard = self.volumes.wait_for_change(name).await?;
        let known = self.volumes.get(name)?;
        let Some(refusal) = known.refusal() else {
            let text = format!("volume {name} is served, so it has nothing to adopt");
            return Err(Failure::new(ErrorKind::Conflict, text));
        };
        if known.standby().is_some() {
            let text = format!(
                "volume {name} is on standby: {}. To take it over from there: hotset fleet take-over {name}",
                refusal.message
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if let Some(conflict) = discard_conflict(name, refusal, give_up.is_some()).filter(|_| discard_dirty) {
            return Err(conflict);
        }
        let given_up = match (&give_up, discard_dirty) {
            (Some(data), _) => format!(", data {data} was discarded"),
            (None, true) => ", dirty data past its end was discarded".to_owned(),
            (None, false) => String::new(),
        };
        let gives_up = give_up.is_some();
        let accept = Acceptance { adopt: true, give_up, discard_past_end: discard_dirty };
        self.attachments.attach(known.config, known.from_file, accept).await?;
        if gives_up {
            self.flash.discard_given_up().await?;
        }
        log::warn!(target: VOLUME, volume = name, "volume {name}: backing adopted by command{given_up}");
        self.show(name).await
    }
}

/// The reason why `volume adopt --discard-dirty` is no answer to a refusal: the command gives up all dirty data, or the
/// refusal has not told how much dirty data lies past the end of a shrunk backing.
fn discard_conflict(name: &str, refusal: &Failure, gives_up: bool) -> Option<Failure> {
    if gives_up {
        let text = "--give-up discards all dirty data, --discard-dirty only the data past the end of a shrunk backing: \
                    specify one of them";
        return Some(Failure::new(ErrorKind::Invalid, text));
    }
    let is_of_size = refusal.refusal.as_deref().is_some_and(may_have_shrunk);
    let text = format!(
        "volume {name} is refused for another reason than a smaller backing, so --discard-dirty does not apply; `hotset \
         volume show {name}` has the reason and the choices"
    );
    (!is_of_size).then(|| Failure::new(ErrorKind::Conflict, text))
}

/// Remedy for a volume that an `add` could not serve before its adoption.
const LIST_BEFORE_ADOPT: &str =
    "The volume was not added: before it can be adopted, list it in the configuration and reload (SIGHUP)";

/// Remedy for a volume that an `add` could not serve because another host owns its image.
const LIST_FOR_STANDBY: &str = "The volume was not added: remove or move it there first (`hotset fleet move`); or list \
                                it in the configuration here, reload, and take it over (`hotset fleet take-over`)";

/// Relation of a volume that is to be removed to the daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// In service: its removal destages its data.
    Served,
    /// In service, but its backing is lost: its removal discards its dirty data.
    Lost {
        /// It has dirty data.
        is_dirty: bool,
    },
    /// Refused.
    Refused,
    /// Known from the records alone.
    Unlisted,
}

/// The reason why a volume is not removed: its dirty data in the flash log or in these memory images is not named, or
/// other data is.
fn describe_removal_loss(name: &str, standing: Standing, lost_data: Option<VolumeId>, images: &[String]) -> String {
    let place = match images {
        [] => "the flash log".to_owned(),
        images => format!("the flash log or the memory of a killed daemon ({})", images.join(", ")),
    };
    let remedy = match standing {
        Standing::Unlisted => "list it in the configuration file again".to_owned(),
        Standing::Lost { .. } => "restart the daemon, which compares the backing with its records".to_owned(),
        _ => format!("remove the cause of the refusal (`hotset volume show {name}`)"),
    };
    match (standing, lost_data.map(show_volume_id)) {
        (_, Some(data)) => format!(
            "volume {name} is not served, and {place} may hold its only copy of dirty data; {remedy}, or discard that \
             data: `hotset volume remove {name} --give-up {data}`"
        ),
        (Standing::Served, None) => {
            format!("volume {name} is served: its removal destages its data; repeat the command without --give-up")
        }
        _ => format!("volume {name} has no dirty data to give up; repeat the command without --give-up"),
    }
}
