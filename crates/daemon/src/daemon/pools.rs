//! Actions on pools that involve the records of the daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use messages::report::{JobKind, JobReport, PoolReport};
use messages::{Answer, ErrorKind, Failure};

use super::super::attachments::pool_target;
use super::super::cores::NewDevice;
use super::Daemon;
use crate::device_paths::are_same;
use config::{BackingSpec, check_name};

/// Prefix of the ID of a drain.
const DRAIN_ID_PREFIX: &str = "drain-";

/// The drains of pools as jobs.
pub(super) fn drain_jobs(pools: &[PoolReport]) -> Vec<JobReport> {
    let mut jobs = Vec::new();
    for pool in pools {
        for group in pool.tiers.iter().flat_map(|tier| &tier.groups) {
            let Some(drain) = &group.drain else { continue };
            jobs.push(JobReport {
                id: format!("{DRAIN_ID_PREFIX}{}-{}", pool.name, group.number),
                kind: JobKind::PoolDrain,
                subject: group.device.clone(),
                done_bytes: drain.done_bytes,
                total_bytes: drain.total_bytes,
                left_seconds: drain.left_seconds,
                paused: drain.paused,
            });
        }
    }
    jobs
}

/// The pool and the group of a drain's ID.
fn parse_drain_id(id: &str) -> Option<(&str, &str)> {
    id.strip_prefix(DRAIN_ID_PREFIX)?.rsplit_once('-')
}

impl Daemon {
    /// The state of a pool, as the answer to a request.
    pub(super) fn pool_answer(&self, report: PoolReport) -> Answer {
        Answer::Pool(Box::new(self.pool_trends.add_to(vec![report]).remove(0)))
    }

    /// Opens a pool of the configuration, if it is not open. Notes that the records under its name are those of this
    /// pool.
    pub async fn open_pool(&self, name: &str) -> Result<(), Failure> {
        match pool_target(&self.settings, &self.records, name) {
            Some(target) if !self.stop.is_stopping() => self.cores.open_pool(target).await?,
            _ => return Ok(()),
        }
        let identity = self.cores.pool_identity(name).await?;
        let is_noted = self.records.view().pool_identities.get(name) == Some(&identity);
        if !is_noted {
            self.records.change_or_log(|state| state.claim_pool_records(name, &identity));
        }
        Ok(())
    }

    /// Opens the pools of the configuration that no volume has opened.
    pub async fn open_pools(self: Rc<Self>) {
        let names: Vec<_> = self.settings.current().pools.iter().map(|pool| pool.name.clone()).collect();
        for name in names {
            if let Err(failure) = self.open_pool(&name).await {
                logging::warn!("{}", failure.message);
            }
        }
    }

    /// `pool pause`. The record comes first: the pause holds across a restart.
    pub async fn pause_pool(&self, name: &str) -> Result<PoolReport, Failure> {
        self.cores.pool(name).await?;
        self.records.change(|state| state.paused_pools.insert(name.to_owned()))?;
        self.cores.pause_pool(name).await
    }

    /// `pool resume`.
    pub async fn resume_pool(&self, name: &str) -> Result<PoolReport, Failure> {
        self.cores.pool(name).await?;
        self.records.change(|state| state.paused_pools.remove(name))?;
        self.cores.resume_pool(name).await
    }

    /// `pool add`.
    pub async fn add_pool_device(&self, name: &str, tier: &str, device: NewDevice) -> Result<PoolReport, Failure> {
        let path = device.path.clone();
        let recorded = self.record_pool_device(name, &path).await?;
        let added = self.cores.add_pool_device(name, tier, device).await;
        if added.is_err() && recorded {
            self.records.change(|state| remove_device(state, name, &path))?;
        }
        added
    }

    /// `pool import`.
    pub async fn import_pool_device(
        &self,
        name: &str,
        tier: &str,
        device: NewDevice,
        volume: &str,
    ) -> Result<PoolReport, Failure> {
        check_name(volume).map_err(|error| Failure::new(ErrorKind::Invalid, error))?;
        let path = device.path.clone();
        let _guard = self.volumes.lock_for_change(volume)?;
        let recorded = self.record_pool_device(name, &path).await?;
        let imported = match self.check_import(name, &path, volume).await {
            Ok(()) => self.cores.import_pool_device(name, tier, device, volume).await,
            Err(failure) => Err(failure),
        };
        // An import that has got as far as its superblocks ends at the next start, which needs the record.
        if imported.is_err() && recorded && !self.is_device_of(name, &path).await? {
            self.records.change(|state| remove_device(state, name, &path))?;
        }
        imported
    }

    /// Refuses the backing of a volume that the daemon knows, and a device whose content is incomplete: it was the
    /// backing of a volume with dirty data. Refuses the name of a volume that the daemon knows.
    async fn check_import(&self, name: &str, path: &Path, volume: &str) -> Result<(), Failure> {
        let conflict = |text: String| Err(Failure::new(ErrorKind::Conflict, text));
        if self.volumes.find(volume).is_some() {
            return conflict(format!("a volume {volume} is known to the daemon already; choose another name"));
        }
        let identities = self.cores.identities_of_device(name, path).await?;
        for owner in self.names_on(&identities) {
            if self.volumes.contains(&owner) {
                return conflict(format!(
                    "{} is the backing of volume {owner}, which the daemon knows and would serve from it again; remove \
                     the volume first: `hotset volume remove {owner}`",
                    path.display()
                ));
            }
            let is_dirty = !self.memory.persisted_images_of(&owner).await?.is_empty()
                || self.records.may_be_on_flash(&owner)
                || self.attachments.has_blocks_in_log(&owner).await?;
            if is_dirty {
                return conflict(format!(
                    "{} was the backing of volume {owner}, and the flash log or persisted memory holds dirty data of \
                     it; serve it again and remove it with `hotset volume remove {owner}`, which destages that data",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// The names of all volumes whose backing has one of these identities, or had it before another name adopted it.
    fn names_on(&self, identities: &[String]) -> BTreeSet<String> {
        let state = self.records.view();
        let displaced = state.displaced.iter().filter(|record| state.displaced(&record.name).is_some());
        let records = state.volumes.iter().chain(displaced);
        let on_device = records.filter(|record| identities.contains(&record.backing_identity));
        on_device.map(|record| record.name.clone()).collect()
    }

    /// True if a device is part of an open pool, or being imported.
    async fn is_device_of(&self, name: &str, path: &Path) -> Result<bool, Failure> {
        let devices = self.devices_of(name).await?;
        Ok(are_same(&devices, path).await.contains(&true))
    }

    /// The devices of an open pool that have not left it.
    async fn devices_of(&self, name: &str) -> Result<Vec<PathBuf>, Failure> {
        let pool = self.cores.pool(name).await?;
        let groups = pool.tiers.iter().flat_map(|tier| &tier.groups).filter(|group| !has_left(&group.state));
        Ok(groups.map(|group| PathBuf::from(&group.device)).collect())
    }

    /// The name that an open pool has for the device of a command, which may be another path to it. The number of a
    /// group, and a device that the pool does not have, stay as they are.
    async fn device_as_named(&self, name: &str, device: &str) -> Result<String, Failure> {
        let path = Path::new(device);
        let devices = self.devices_of(name).await?;
        if !path.is_absolute() || devices.iter().any(|known| known == path) {
            return Ok(device.to_owned());
        }
        let is_same = are_same(&devices, path).await;
        let known = devices.iter().zip(is_same).find(|(_, is_same)| *is_same);
        Ok(known.map_or_else(|| device.to_owned(), |(known, _)| known.display().to_string()))
    }

    /// `pool drain`, or the cancellation of one.
    pub async fn drain_pool_device(&self, name: &str, device: &str, cancel: bool) -> Result<PoolReport, Failure> {
        let device = self.device_as_named(name, device).await?;
        self.cores.drain_pool_device(name, &device, cancel).await
    }

    /// `pool replace`.
    pub async fn replace_pool_device(
        &self,
        name: &str,
        device: &str,
        new: Option<NewDevice>,
        lost: bool,
    ) -> Result<PoolReport, Failure> {
        let device = &self.device_as_named(name, device).await?;
        let Some(new) = new else { return self.cores.replace_pool_device(name, device, None, lost).await };
        let path = new.path.clone();
        let recorded = self.record_pool_device(name, &path).await?;
        let replaced = self.cores.replace_pool_device(name, device, Some(new), lost).await;
        if replaced.is_err() && recorded {
            // The device may have joined before the failure.
            if !self.is_device_of(name, &path).await? {
                self.records.change(|state| remove_device(state, name, &path))?;
            }
        }
        replaced
    }

    /// Records a device before it is added: a start without the record would open the pool without it. Refuses one that
    /// serves another purpose. Returns whether it was not recorded before.
    async fn record_pool_device(&self, name: &str, path: &Path) -> Result<bool, Failure> {
        if !path.is_absolute() {
            let text = format!("{} is no absolute path", path.display());
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        self.cores.pool(name).await?;
        let backings = self.volumes.map(|known| match &known.config.backing {
            BackingSpec::Path(backing) => {
                Some((backing.clone(), format!("the backing of volume {}", known.config.name)))
            }
            _ => None,
        });
        let flash = self.flash.devices().into_iter().map(|device| (device, "a flash device".to_owned()));
        let (used, uses): (Vec<_>, Vec<_>) = backings.into_iter().flatten().chain(flash).unzip();
        let is_same = are_same(&used, path).await;
        if let Some((used_as, _)) = uses.iter().zip(is_same).find(|(_, is_same)| *is_same) {
            let text = format!("{} is {used_as}; use each device for one purpose", path.display());
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        self.records.change(|state| state.pool_devices.entry(name.to_owned()).or_default().insert(path.to_owned()))
    }

    /// `pool delete-volume`.
    pub async fn delete_pool_volume(&self, name: &str, volume: &str) -> Result<PoolReport, Failure> {
        let conflict = |text: String| Err(Failure::new(ErrorKind::Conflict, text));
        let _guard = self.volumes.lock_for_change(volume)?;
        self.cores.pool(name).await?;
        if self.volumes.find(volume).is_some_and(|known| known.config.backing.pool() == Some(name)) {
            return conflict(format!(
                "volume {volume} is served from pool {name}, or will be; remove it first: `hotset volume remove \
                 {volume}`"
            ));
        }
        // A volume of the same name may lie elsewhere.
        let identity = self.cores.pool_volume_identity(name, volume).await?;
        let is_recorded = self.records.view().by_name(volume).is_some_and(|record| record.backing_identity == identity);
        let is_dirty = is_recorded
            && (!self.memory.persisted_images_of(volume).await?.is_empty()
                || self.records.may_be_on_flash(volume)
                || self.attachments.has_blocks_in_log(volume).await?);
        if is_dirty {
            return conflict(format!(
                "the flash log or persisted memory holds dirty data of volume {volume}; serve it again and remove it \
                 with `hotset volume remove {volume}`, which destages that data"
            ));
        }
        let report = self.cores.delete_pool_volume(name, volume).await?;
        // A later volume of the same name is a new one.
        self.records.change(|state| {
            let record = state.by_name(volume).filter(|record| record.backing_identity == identity);
            if let Some(volume_id) = record.map(|record| record.volume_id) {
                state.forget(volume_id);
            }
        })?;
        logging::info!("volume {volume} was deleted from pool {name} by command");
        Ok(report)
    }

    /// Cancels a drain by its ID as a job; `None` for another ID.
    pub async fn cancel_drain_job(&self, id: &str) -> Option<Result<Answer, Failure>> {
        let (pool, group) = parse_drain_id(id)?;
        Some(self.cores.drain_pool_device(pool, group, true).await.map(|_| {
            Answer::Said(vec![format!("{id}: cancelled; the device takes slices again, and keeps those that it has")])
        }))
    }

    /// Forgets added devices that have left their pools.
    pub fn forget_removed_devices(&self, pools: &[PoolReport]) {
        for pool in pools {
            let removed = pool.tiers.iter().flat_map(|tier| &tier.groups).filter(|group| has_left(&group.state));
            for path in removed.map(|group| PathBuf::from(&group.device)) {
                let is_recorded = self.records.view().pool_devices.get(&pool.name).is_some_and(|of| of.contains(&path));
                // A device may have joined again as another group.
                let is_member = pool
                    .tiers
                    .iter()
                    .flat_map(|tier| &tier.groups)
                    .any(|group| !has_left(&group.state) && path.as_os_str() == group.device.as_str());
                if is_recorded && !is_member {
                    self.records.change_or_log(|state| remove_device(state, &pool.name, &path));
                }
            }
        }
    }
}

/// True for a group that is no member of its pool any more.
fn has_left(state: &str) -> bool {
    matches!(state, "removed" | "lost")
}

fn remove_device(state: &mut state::State, pool: &str, path: &Path) {
    if let Some(devices) = state.pool_devices.get_mut(pool) {
        devices.remove(path);
        if devices.is_empty() {
            state.pool_devices.remove(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_id_names_pool_and_group_even_with_hyphens() {
        assert_eq!(parse_drain_id("drain-big-tank-12"), Some(("big-tank", "12")));
        assert_eq!(parse_drain_id("flush-1"), None);
    }
}
