//! Opening the backings of volumes that are to be attached, and the messages if one cannot be opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use messages::{ErrorKind, Failure};
use pool::GroupContent;
use rbd::{Claim, ImageSpec, Mark, StandbyReport, TakeOver, parse_mark_id};
use seam::DiskError;
use seam::real::{PATH_TIMEOUT, PathCall};

use super::super::cores::{BackingTarget, OpenFacts, OpenPlan, OpenedBacking, PoolTarget, PoolVolume, heat_path};
use super::super::overlap::{OwnVolumes, check_export};
use super::super::rbd_helper::{HelperPlan, helpers_folder};
use super::super::records::Records;
use super::super::settings::Settings;
use super::super::volumes::open_attempts::remedy;
use super::super::volumes::{KnownVolume, RequestedVolume, STANDBY, standby_text};
use super::Attachments;
use config::{BackingSpec, FlashConfig, TakeOverMode, VolumeConfig, is_device};
use state::{Acceptance, Refusal, State};

/// Time without an image after which requests of its volume fail until it is served again.
const BACKING_FAILS_AFTER: Duration = Duration::from_secs(60);

impl Attachments {
    /// Opens all backings, each on its volume's home core. A path that has not answered for `limit` counts as hung.
    pub(super) async fn open_all(
        &self,
        requested: &[RequestedVolume],
        accept: &Acceptance,
        limit: Duration,
    ) -> Vec<Result<OpenedBacking, Failure>> {
        let home_cores = self.volumes.choose_cores(requested, self.cores.count());
        let plans = join_all(requested.iter().map(|volume| self.open_plan(volume, accept, limit))).await;
        let mut opened: Vec<_> = plans.into_iter().map(|plan| plan.map(Some)).collect();
        let mut results: BTreeMap<usize, Result<OpenedBacking, Failure>> = BTreeMap::new();
        for core in self.cores.iter() {
            let on_core = opened.iter_mut().enumerate().filter(|(index, _)| home_cores[*index] == core.index());
            let (indices, plans): (Vec<usize>, Vec<OpenPlan>) =
                on_core.filter_map(|(index, plan)| Some((index, plan.as_mut().ok()?.take()?))).unzip();
            match self.cores.open(core.index(), plans).await {
                Ok(on_core) => results.extend(indices.into_iter().zip(on_core).map(|(index, result)| {
                    let result = result.map_err(|error| self.open_failure(&requested[index], &error, requested));
                    (index, result.map(|(backing_key, facts)| OpenedBacking { core: core.index(), backing_key, facts }))
                })),
                Err(failure) => results.extend(indices.into_iter().map(|index| (index, Err(failure.clone())))),
            }
        }
        let own_volumes = OwnVolumes::new(&self.records.view());
        let mut checked = Vec::with_capacity(requested.len());
        for (index, plan) in opened.into_iter().enumerate() {
            let result = plan.and_then(|_| results.remove(&index).expect("every volume has a core"));
            checked.push(match result {
                Ok(opened) => match own_volumes.check(&requested[index].0.backing, &opened.facts.nbd_devices_below) {
                    Err(text) => Err(self.cores.close(&opened, Failure::new(ErrorKind::Conflict, text)).await),
                    Ok(()) => match self.check_group_content(&requested[index].0, &opened.facts) {
                        Err(failure) => Err(self.cores.close(&opened, failure).await),
                        Ok(()) => Ok(opened),
                    },
                },
                Err(failure) => Err(failure),
            });
        }
        checked
    }

    /// Refuses a device of a pool: writes of a volume would destroy the pool's data. The disk of a known volume may
    /// hold superblocks that its client wrote, which name the disk as the client sees it.
    fn check_group_content(&self, config: &VolumeConfig, facts: &OpenFacts) -> Result<(), Failure> {
        let is_known = self.records.view().by_name(&config.name).is_some();
        match facts.group_content {
            GroupContent::NoGroup => return Ok(()),
            GroupContent::GroupElsewhere if is_known => return Ok(()),
            GroupContent::Group | GroupContent::GroupElsewhere => {}
        }
        let text = format!(
            "its backing {} is a device of a pool, whose data a volume on it would destroy: take it out of the \
             [[volume]]; if that pool is gone for good, erase its superblocks first, the 4 KiB at 0 and at 64 KiB",
            config.backing
        );
        Err(Failure::new(ErrorKind::Conflict, text))
    }

    /// The plan for opening a volume's backing. A missing file is created only if a size is given and no volume of that
    /// name was ever served, also not by `adopt`. Otherwise the file may be on a file system that is not mounted, and
    /// an empty file would be served in its place.
    async fn open_plan(
        &self,
        volume: &RequestedVolume,
        accept: &Acceptance,
        limit: Duration,
    ) -> Result<OpenPlan, Failure> {
        let (config, _) = volume;
        let content_file = || content_file(self.records.directory().join("sim"), &config.name);
        let backing = match &config.backing {
            BackingSpec::Path(path) => BackingTarget::Path(path.clone()),
            BackingSpec::Nbd(target) => {
                let own_listeners = self.settings.current().nbd.listen.clone();
                check_export(target, own_listeners, limit).await.map_err(|_| self.hung(volume))??;
                BackingTarget::Nbd(target.clone())
            }
            BackingSpec::Rbd(image) => {
                let by_adoption = accept.adopt.then_some(Claim::Adoption);
                let ordered = self.volumes.claim_of(&config.name);
                // The watch has seen the release. An attempt without an order may find the owner as before.
                let by_watch = ordered == Some(Claim::Record);
                let claim = ordered.or(by_adoption).unwrap_or_default();
                let plan = self.helper_plan(config, image);
                BackingTarget::Rbd(HelperPlan { claim, by_watch, gives_up: accept.give_up.clone(), ..plan })
            }
            BackingSpec::Sim(array, _) => BackingTarget::OwnArray { array: *array, content: content_file().await? },
            BackingSpec::SimArray(name) => {
                let settings = self.settings.current();
                let array = settings.arrays.iter().find(|array| array.name == *name).map(|array| array.spec);
                let unknown_array = || {
                    Failure::new(
                        ErrorKind::Invalid,
                        format!("no [[array]] is named \"{name}\"; add it to the configuration"),
                    )
                };
                BackingTarget::SharedArray {
                    name: name.clone(),
                    array: array.ok_or_else(unknown_array)?,
                    content: content_file().await?,
                }
            }
            BackingSpec::Pool(name) => {
                let unknown_pool = || {
                    let text = format!("no [[pool]] is named \"{name}\"; add it to the configuration");
                    Failure::new(ErrorKind::Invalid, text)
                };
                BackingTarget::Pool(PoolVolume {
                    pool: pool_target(&self.settings, &self.records, name).ok_or_else(unknown_pool)?,
                    volume: config.name.clone(),
                    tier_policy: config.tier_policy.clone(),
                    provisioning: config.provisioning,
                })
            }
        };
        let may_create = match &config.backing {
            BackingSpec::Path(path) => {
                let state = self.records.view();
                let is_known = state.by_name(&config.name).is_some() || state.displaced(&config.name).is_some();
                !is_device(path) && !is_known
            }
            // A pool without the volume may be another one, on devices that were exchanged.
            BackingSpec::Pool(_) => {
                let state = self.records.view();
                state.by_name(&config.name).is_none() && state.displaced(&config.name).is_none()
            }
            _ => true,
        };
        let size_bytes = config.size_bytes.filter(|_| may_create);
        Ok(OpenPlan { backing, size_bytes, read_only: config.read_only, limit })
    }

    /// The helper of an image that this host claims by its record alone.
    pub fn helper_plan(&self, config: &VolumeConfig, image: &ImageSpec) -> HelperPlan {
        HelperPlan {
            image: image.clone(),
            folder: helpers_folder(&self.records.directory()),
            host: self.settings.current().fleet.host.clone(),
            claim: Claim::Record,
            by_watch: false,
            take_over: match config.take_over.mode {
                TakeOverMode::Command => TakeOver::Command,
                TakeOverMode::Automatic => TakeOver::After(config.take_over.after),
            },
            gives_up: None,
            reads_log: false,
            log: self.settings.current().flash.as_ref().and_then(FlashConfig::log_image).map(|image| image.place()),
            fails_after: Some(BACKING_FAILS_AFTER),
        }
    }

    /// The reason why a backing could not be opened, and the remedy.
    fn unavailable(&self, volume: &RequestedVolume, error: &DiskError) -> Failure {
        let (config, _) = volume;
        let state = self.records.view();
        let (has_size, is_known) = (config.size_bytes.is_some(), state.by_name(&config.name).is_some());
        let text = match error {
            // The error itself names the remedy: the holder of the lock has to close the disk.
            DiskError::Busy(_) => match self.holder_of_image(config) {
                Some(holder) => format!("{error}; volume {holder} has an image {} too", show_place(&config.backing)),
                None => error.to_string(),
            },
            _ => format!("{error}; {}", remedy(&config.backing, has_size, is_known, is_retried(volume, &state))),
        };
        Failure::new(ErrorKind::Unavailable, text)
    }

    /// The reason why a backing cannot be opened, with the name of the present holder of its storage.
    fn open_failure(&self, volume: &RequestedVolume, error: &DiskError, requested: &[RequestedVolume]) -> Failure {
        let (path, other, on) = match error {
            DiskError::Hung(_) => return self.hung(volume),
            DiskError::Standby { owner, report } => {
                return match StandbyReport::parse(report) {
                    Some(report) => self.on_standby(&volume.0, report),
                    None => standby_failure(format!("host {owner} owns its image")),
                };
            }
            DiskError::Undestaged { data, host, log } => {
                if let Some(id) = parse_mark_id(data) {
                    self.volumes.note_mark(&volume.0.name, Mark { id, host: host.clone(), log: log.clone() });
                }
                return undestaged_elsewhere(&volume.0, data, host);
            }
            DiskError::Shared { path, other, on } => (path, other, on),
            _ => return self.unavailable(volume, error),
        };
        if path == other && self.is_left_by_attempt(&volume.0, requested) {
            return self.hung(volume);
        }
        let text = format!(
            "its backing {} lies on the same storage as {} ({on}), which {} uses; two writers destroy the data: give \
             it a backing of its own",
            path.display(),
            other.display(),
            self.name_of_device(other, requested)
        );
        Failure::new(ErrorKind::Conflict, text)
    }

    /// Records that this host has released the image of a volume, which is detached.
    pub async fn record_released(&self, KnownVolume { config, from_file, .. }: &KnownVolume, report: StandbyReport) {
        self.units.report_absent(std::iter::once(config)).await;
        let failure = self.on_standby(config, report);
        self.volumes.record_attached((config.clone(), *from_file), Err(failure));
    }

    /// The failure of a volume whose image another host owns, and a note of that owner.
    fn on_standby(&self, config: &VolumeConfig, report: StandbyReport) -> Failure {
        let failure = standby_failure(standby_text(&report));
        self.volumes.note_owner(&config.name, report);
        failure
    }

    /// The name of another volume with an image of the same name, possibly in another cluster.
    fn holder_of_image(&self, config: &VolumeConfig) -> Option<String> {
        let place = show_place(&config.backing);
        let has_image = |known: &KnownVolume| {
            let is_same = !place.is_empty() && show_place(&known.config.backing) == place;
            (is_same && known.config.name != config.name).then(|| known.config.name.clone())
        };
        self.volumes.map(has_image).into_iter().flatten().next()
    }

    /// The failure of a volume whose backing does not answer.
    pub(super) fn hung(&self, volume: &RequestedVolume) -> Failure {
        hung(volume, &self.records.view())
    }

    /// True if no volume or flash device uses the storage at the path of a refused volume. An earlier attempt has then
    /// opened it, and the unanswered requests of that attempt keep it open.
    fn is_left_by_attempt(&self, config: &VolumeConfig, requested: &[RequestedVolume]) -> bool {
        let BackingSpec::Path(path) = &config.backing else { return false };
        let is_refused = self.volumes.find(&config.name).is_some_and(|known| known.refusal().is_some());
        let serves = |known: &KnownVolume| known.placement().is_some() && is_at(&known.config.backing, path);
        let is_served = self.volumes.map(serves).contains(&true) || self.flash.devices().contains(path);
        is_refused && !is_served && requested.iter().filter(|(other, _)| is_at(&other.backing, path)).count() == 1
    }

    /// Name of the volume or of the flash log that uses the storage at that path.
    fn name_of_device(&self, path: &Path, requested: &[RequestedVolume]) -> String {
        if self.flash.devices().iter().any(|device| device == path) {
            return "the flash log".to_owned();
        }
        let starting = || {
            let starting = requested.iter().map(|(config, _)| config).find(|config| is_at(&config.backing, path));
            starting.map(|config| config.name.clone())
        };
        let holder = self.volumes.name_at_path(path).or_else(starting);
        holder.map_or_else(|| "this daemon".to_owned(), |name| format!("volume {name}"))
    }
}

/// The pool of that name, to be opened; `None` if the configuration does not name it.
pub fn pool_target(settings: &Settings, records: &Records, name: &str) -> Option<PoolTarget> {
    let config = settings.current().pools.iter().find(|pool| pool.name == *name).cloned()?;
    let state = records.view();
    Some(PoolTarget {
        config,
        is_paused: state.paused_pools.contains(name),
        added_devices: state.pool_devices.get(name).cloned().unwrap_or_default(),
        recorded_identity: state.pool_identities.get(name).cloned(),
        heat_path: heat_path(&records.directory(), name),
    })
}

/// True if a failed attach of the volume is retried: it is in the file, or was added by command before. A failed
/// `volume add` leaves no volume.
fn is_retried((config, from_file): &RequestedVolume, state: &State) -> bool {
    *from_file || state.by_name(&config.name).is_some_and(|record| record.added.is_some())
}

fn standby_failure(text: String) -> Failure {
    Failure { kind: ErrorKind::Conflict, ..Failure::refused(STANDBY, text) }
}

/// The failure of a volume whose backing lacks flushed writes that another host may have.
fn undestaged_elsewhere(config: &VolumeConfig, data: &str, host: &str) -> Failure {
    let (name, backing) = (config.name.clone(), config.backing.to_string());
    let refusal = Refusal::UndestagedElsewhere { name, backing, data: data.to_owned(), host: host.to_owned() };
    // Retried: that host may destage its data and release the backing.
    Failure { kind: ErrorKind::Unavailable, ..Failure::refused(refusal.code(), refusal.to_string()) }
}

/// As [`Attachments::hung`], while the records are being changed.
pub(super) fn hung(volume: &RequestedVolume, state: &State) -> Failure {
    let backing = &volume.0.backing;
    let refusal = Refusal::BackingHung { backing: backing.to_string() };
    let text = match is_retried(volume, state) {
        true => refusal.to_string(),
        false => format!(
            "its backing {backing} does not answer: its file system or device hangs. Check the file server, the \
             connection to the disk and the kernel's messages (dmesg), then repeat the command"
        ),
    };
    Failure { kind: ErrorKind::Unavailable, ..Failure::refused(refusal.code(), text) }
}

/// The file with the content of a volume's modelled array, in `folder`, which is created if it is missing.
async fn content_file(folder: PathBuf, volume: &str) -> Result<PathBuf, Failure> {
    let create = PathCall::start(&folder, {
        let folder = folder.clone();
        move |_| std::fs::create_dir_all(folder)
    });
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(ErrorKind::Failed, format!("{}: {error}", folder.display()));
    create
        .answer(PATH_TIMEOUT, tokio::time::sleep)
        .await
        .map_err(|hung| failed(&hung))?
        .map_err(|error| failed(&error))?;
    Ok(folder.join(format!("{volume}.img")))
}

/// The image of a backing on RBD; empty for another one.
fn show_place(backing: &BackingSpec) -> String {
    match backing {
        BackingSpec::Rbd(image) => image.place(),
        _ => String::new(),
    }
}

/// True if the backing is the file or device at that path.
fn is_at(backing: &BackingSpec, other: &Path) -> bool {
    matches!(backing, BackingSpec::Path(path) if path == other)
}
