//! Quality of service of volumes, and their datastores, as the file gives it or as commands have changed it.

use std::collections::BTreeMap;
use std::rc::Rc;

use control::report::DatastoreReport;
use control::{ErrorKind, Failure, moment};
use engine::{DatastoreSpec, DatastoreStats, FLASH_DATASTORE, ReservationError};
use seam::Nanos;

use super::daemon::{Daemon, Known, Placed, core_gone};
use super::data_core::Local;
use config::volume_qos::{BURST_BYTES, BURST_IOPS, KEYS, LIMIT_BYTES, LIMIT_IOPS, RESERVATION_IOPS, SHARES, VolumeQos};
use config::{QosRule, VolumeConfig};
use logging::{self as log, QOS};
use state::{State, VolumeRecord, effective};

/// A difference between the clocks above this means that the machine's clock was set.
const CLOCK_SET_MS: u64 = 500;

/// The quality of service in force, where `file` is the file's.
pub fn qos_of(record: Option<&VolumeRecord>, file: VolumeQos) -> VolumeQos {
    VolumeQos {
        shares: effective(record, SHARES, file.shares),
        limit_iops: effective(record, LIMIT_IOPS, file.limit_iops),
        limit_bytes: effective(record, LIMIT_BYTES, file.limit_bytes),
        burst_iops: effective(record, BURST_IOPS, file.burst_iops),
        burst_bytes: effective(record, BURST_BYTES, file.burst_bytes),
        reservation_iops: effective(record, RESERVATION_IOPS, file.reservation_iops),
    }
}

impl Daemon {
    /// Sends the datastores to the cores. Volumes attached later join them by name.
    pub(super) async fn tell_datastores(&self, datastores: &[DatastoreSpec]) -> Result<(), Failure> {
        for core in &self.cores {
            let datastores = datastores.to_vec();
            let tell =
                async move |local: Rc<Local>| datastores.iter().for_each(|spec| local.engine.set_datastore(spec));
            core.call(tell).await.map_err(core_gone)?;
        }
        Ok(())
    }

    /// Reports of a core's datastores, as of the time `now` of the core's clock.
    pub(super) fn datastore_reports(&self, seen: Vec<DatastoreStats>, now: Nanos) -> Vec<DatastoreReport> {
        let epoch_ms = (moment::since_1970().as_millis() as u64).saturating_sub(now.as_millis());
        // Dates in reports stay constant unless the machine's clock was set.
        if epoch_ms.abs_diff(self.epoch_ms.get()) > CLOCK_SET_MS {
            self.epoch_ms.set(epoch_ms);
        }
        let epoch_ms = self.epoch_ms.get();
        let report = |stats: DatastoreStats| {
            let is_flash = stats.name == FLASH_DATASTORE;
            DatastoreReport::new(stats, is_flash, epoch_ms)
        };
        seen.into_iter().map(report).collect()
    }

    /// Changes a volume's quality of service and saves it; fails if it cannot be guaranteed.
    pub(super) async fn set_qos(
        &self,
        name: &str,
        placed: &Placed,
        settings: &BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let wanted: Vec<_> = KEYS.iter().filter_map(|key| Some((*key, settings.get(*key)?))).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let config = self.config_of(name)?;
        let mut state = self.state.borrow().state().clone();
        let mut qos = qos_of(state.by_name(name), config.qos);
        let has_datastore = !config.datastore.is_empty();
        let before = qos.fault(has_datastore, false);
        for (key, value) in &wanted {
            qos.set(key, value).map_err(|text| Failure::new(ErrorKind::Invalid, text))?;
            let (value, file) = (qos.setting(key).unwrap_or_default(), config.setting(key));
            state.set_override(placed.incarnation, key, &value, &file);
        }
        let bursts = wanted.iter().any(|(key, _)| [BURST_IOPS, BURST_BYTES].contains(key));
        // A contradiction that a rule or the file causes does not block a change of other keys.
        let by_this = |key: &str| before.is_none() || wanted.iter().any(|(other, _)| *other == key);
        if let Some((_, what, remedy)) = qos.fault(has_datastore, bursts).filter(|(key, ..)| by_this(key)) {
            return Err(Failure::new(ErrorKind::Invalid, format!("volume {name}: {what}; {remedy}")));
        }
        self.apply_qos(&config, placed, &state).await?;
        let noted = self.note_overrides(placed, &state, &KEYS);
        noted.inspect(|()| {
            log::info!(
                target: QOS, volume = name,
                "volume {name}: its quality of service was changed by command"
            )
        })
    }

    /// Applies the quality of service that the file now gives a volume.
    pub(super) async fn reload_qos(&self, placed: &Placed, now: &VolumeConfig) -> Result<(), Failure> {
        let mut state = self.state.borrow().state().clone();
        for key in KEYS {
            state.expire_override(placed.incarnation, key, &now.setting(key));
        }
        self.apply_qos(now, placed, &state).await?;
        self.note_overrides(placed, &state, &KEYS)
    }

    /// Sends new and changed datastores to the cores; returns a message for each.
    pub(super) async fn reload_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) -> Vec<String> {
        let before = |spec: &DatastoreSpec| old.iter().find(|old| old.name == spec.name);
        let changed: Vec<_> = fresh.iter().filter(|spec| before(spec) != Some(*spec)).cloned().collect();
        if let Err(failure) = self.tell_datastores(&changed).await {
            return vec![failure.message];
        }
        let said = |spec: &DatastoreSpec| match before(spec) {
            None => format!("datastore {}: added", spec.name),
            Some(_) => format!("datastore {}: its threshold and its cost of a write were taken over", spec.name),
        };
        let gone = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let gone = gone.map(|spec| format!("datastore {}: removed", spec.name));
        changed.iter().map(said).chain(gone).collect()
    }

    /// Removes deleted datastores from the cores, once no volume names them.
    pub(super) async fn forget_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) {
        let gone = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let gone: Vec<String> = gone.map(|spec| spec.name.clone()).collect();
        for core in self.cores.iter().filter(|_| !gone.is_empty()) {
            let gone = gone.clone();
            let forget = async move |local: Rc<Local>| {
                gone.iter().for_each(|name| local.engine.remove_datastore(name));
            };
            // The call fails only if the core has ended.
            let _ = core.call(forget).await;
        }
    }

    /// Moves a volume to the datastore that the file now names; returns a message.
    pub(super) async fn reload_datastore(&self, now: &VolumeConfig) -> String {
        let (name, datastore) = (now.name.clone(), now.datastore.clone());
        let placed = match self.placed(&name) {
            Ok(placed) => placed,
            Err(failure) => return failure.message,
        };
        let call = async move |local: Rc<Local>| {
            if let Some(volume) = local.engine.find(&name) {
                volume.set_datastore(&datastore);
            }
        };
        let name = &now.name;
        match self.cores[placed.core].call(call).await {
            Err(gone) => format!("volume {name}: {gone}"),
            Ok(()) => format!(
                "volume {name}: datastore and labels taken over; NBD clients are told of a changed vm after a restart"
            ),
        }
    }

    /// Applies `[[qos]]` to volumes that were added by command.
    pub(super) async fn reload_added(&self, rules: &[QosRule]) -> Vec<String> {
        let changed = |known: &Known| {
            let now = known.config.clone().by_rules(rules);
            (!known.from_file && now.qos != known.config.qos).then_some(now)
        };
        let changed: Vec<_> = self.volumes.borrow().values().filter_map(changed).collect();
        let mut said = Vec::new();
        for now in changed {
            let name = &now.name;
            Daemon::warn_of_qos(&now);
            let applied = match (self.begin(name), self.placed(name)) {
                (Err(failure), _) => Err(failure),
                (Ok(_busy), Ok(placed)) => self.reload_qos(&placed, &now).await,
                // A volume that is not served gets it when it is attached.
                (Ok(_), Err(_)) => Ok(()),
            };
            said.push(match applied {
                Ok(()) => {
                    if let Some(known) = self.volumes.borrow_mut().get_mut(name) {
                        known.config.qos = now.qos;
                    }
                    format!("volume {name}: what [[qos]] gives it was taken over")
                }
                Err(failure) => failure.message,
            });
        }
        said
    }

    /// Warns of values that rules give a volume and that cannot take effect.
    pub(super) fn warn_of_qos(config: &VolumeConfig) {
        if let Some((_, what, remedy)) = config.qos.fault(!config.datastore.is_empty(), false) {
            log::warn!(
                target: QOS, volume = config.name,
                "volume {}: {what}, so it counts for nothing; {remedy}",
                config.name
            );
        }
    }

    async fn apply_qos(&self, config: &VolumeConfig, placed: &Placed, state: &State) -> Result<(), Failure> {
        let qos = qos_of(state.by_name(&config.name), config.qos).of_engine();
        let volume = config.name.clone();
        let call = async move |local: Rc<Local>| match local.engine.find(&volume) {
            Some(volume) => volume.set_qos(qos),
            None => Ok(()),
        };
        let done: Result<(), ReservationError> = self.cores[placed.core].call(call).await.map_err(core_gone)?;
        done.map_err(|error| {
            let text = format!("volume {} keeps the quality of service that it has: {error}", config.name);
            Failure::new(ErrorKind::Conflict, text)
        })
    }
}
