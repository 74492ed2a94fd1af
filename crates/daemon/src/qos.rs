//! Quality of service of volumes, and their datastores, as the file gives it or as commands have changed it.

use std::collections::BTreeMap;
use std::rc::Rc;

use control::{ErrorKind, Failure};
use engine::{DatastoreSpec, ReservationError};

use super::cores::{Cores, Local, core_gone};
use super::daemon::Daemon;
use super::reload::Said;
use super::volumes::{Known, Placed};
use config::volume_qos::{BURST_BYTES, BURST_IOPS, KEYS, LIMIT_BYTES, LIMIT_IOPS, RESERVATION_IOPS, SHARES, VolumeQos};
use config::{QosRule, VolumeConfig};
use state::{State, VolumeRecord, effective};
use terminal::log;

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
        let config = self.volumes.config_of(name)?;
        let mut state = self.records.view().clone();
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
        apply(&self.cores, &config, placed, &state).await?;
        let noted = self.records.note_overrides(placed, &state, &KEYS);
        noted.inspect(|()| log::info(format!("volume {name}: its quality of service was changed by command")))
    }

    /// Applies the quality of service that the file now gives a volume.
    pub(super) async fn reload_qos(&self, placed: &Placed, now: &VolumeConfig) -> Result<(), Failure> {
        let mut state = self.records.view().clone();
        for key in KEYS {
            state.expire_override(placed.incarnation, key, &now.setting(key));
        }
        apply(&self.cores, now, placed, &state).await?;
        self.records.note_overrides(placed, &state, &KEYS)
    }

    /// Sends new and changed datastores to the cores; returns a message for each.
    pub(super) async fn reload_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) -> Vec<String> {
        let before = |spec: &DatastoreSpec| old.iter().find(|old| old.name == spec.name);
        let changed: Vec<_> = fresh.iter().filter(|spec| before(spec) != Some(*spec)).cloned().collect();
        if let Err(failure) = self.cores.tell_datastores(&changed).await {
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

    /// Moves a volume to the datastore that the file now names.
    pub(super) async fn reload_datastore(&self, now: &VolumeConfig) -> Result<(), Failure> {
        let (name, datastore) = (now.name.clone(), now.datastore.clone());
        let placed = self.volumes.placed(&name)?;
        let call = async move |local: Rc<Local>| {
            if let Some(volume) = local.engine.find(&name) {
                volume.set_datastore(&datastore);
            }
        };
        let called = self.cores[placed.core].call(call).await;
        called.map_err(|gone| Failure::new(ErrorKind::Failed, format!("volume {}: {gone}", now.name)))
    }

    /// Applies `[[qos]]` to volumes that were added by command.
    pub(super) async fn reload_added(&self, rules: &[QosRule]) -> Vec<Said> {
        let changed = |known: &Known| {
            let now = known.config.clone().by_rules(rules);
            (!known.from_file && now.qos != known.config.qos).then_some(now)
        };
        let changed: Vec<_> = self.volumes.map(changed).into_iter().flatten().collect();
        let mut said = Vec::new();
        for now in changed {
            let name = &now.name;
            warn_of(&now);
            let applied = match (self.volumes.begin(name), self.volumes.placed(name)) {
                (Err(failure), _) => Err(failure),
                (Ok(_busy), Ok(placed)) => self.reload_qos(&placed, &now).await,
                // A volume that is not served gets it when it is attached.
                (Ok(_), Err(_)) => Ok(()),
            };
            said.push(match applied {
                Ok(()) => {
                    self.volumes.set_qos(name, now.qos);
                    Said::Volume(name.clone(), "what [[qos]] gives it was taken over".to_owned())
                }
                Err(failure) => Said::Failed(name.clone(), failure),
            });
        }
        said
    }
}

/// Warns of values that rules give a volume and that cannot take effect.
pub fn warn_of(config: &VolumeConfig) {
    if let Some((_, what, remedy)) = config.qos.fault(!config.datastore.is_empty(), false) {
        log::warn(format!("volume {}: {what}, so it counts for nothing; {remedy}", config.name));
    }
}

/// Gives a volume on its core the quality of service that `state` and its configuration say.
async fn apply(cores: &Cores, config: &VolumeConfig, placed: &Placed, state: &State) -> Result<(), Failure> {
    let qos = qos_of(state.by_name(&config.name), config.qos).of_engine();
    let volume = config.name.clone();
    let call = async move |local: Rc<Local>| match local.engine.find(&volume) {
        Some(volume) => volume.set_qos(qos),
        None => Ok(()),
    };
    let done: Result<(), ReservationError> = cores[placed.core].call(call).await.map_err(core_gone)?;
    done.map_err(|error| {
        let text = format!("volume {} keeps the quality of service that it has: {error}", config.name);
        Failure::new(ErrorKind::Conflict, text)
    })
}
