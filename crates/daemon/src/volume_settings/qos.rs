//! Quality of service of volumes, and their datastores, as the file gives it or as commands have changed it.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::ReservationError;
use messages::{ErrorKind, Failure};

use super::super::cores::{CoreLocal, Cores, core_ended};
use super::super::volumes::Placement;
use super::{VolumeSettings, requested_settings};
use config::VolumeConfig;
use config::volume_qos::{BURST_BYTES, BURST_IOPS, KEYS, LIMIT_BYTES, LIMIT_IOPS, RESERVATION_IOPS, SHARES, VolumeQos};
use logging::{self as log, QOS};
use state::{State, VolumeRecord, effective};

/// The quality of service in force: the values in `file`, unless a command has overridden them.
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

impl VolumeSettings {
    /// Changes a volume's quality of service and saves it; fails if it cannot be guaranteed.
    pub(super) async fn set_qos(
        &self,
        name: &str,
        placement: &Placement,
        settings: &BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let changes = requested_settings(&KEYS, settings);
        if changes.is_empty() {
            return Ok(());
        }
        let config = self.volumes.config_of(name)?;
        let mut state = self.records.view().clone();
        let mut qos = qos_of(state.by_name(name), config.qos);
        let has_datastore = !config.datastore.is_empty();
        let fault_before = qos.fault(has_datastore, false);
        for (key, value) in &changes {
            qos.set(key, value).map_err(|text| Failure::new(ErrorKind::Invalid, text))?;
            let (value, file) = (qos.setting(key).unwrap_or_default(), config.setting(key));
            state.set_override(placement.volume_id, key, &value, &file);
        }
        let sets_burst = changes.iter().any(|(key, _)| [BURST_IOPS, BURST_BYTES].contains(key));
        // A contradiction that a rule or the file causes does not block a change of other keys.
        let is_new_fault = |key: &str| fault_before.is_none() || changes.iter().any(|(other, _)| *other == key);
        if let Some((_, fault, remedy)) = qos.fault(has_datastore, sets_burst).filter(|(key, ..)| is_new_fault(key)) {
            return Err(Failure::new(ErrorKind::Invalid, format!("volume {name}: {fault}; {remedy}")));
        }
        apply(&self.cores, &config, placement, &state).await?;
        let saved = self.records.save_overrides(placement, &state, &KEYS);
        saved.inspect(|()| {
            log::info!(
                target: QOS, volume = name,
                "volume {name}: quality of service changed by command"
            )
        })
    }

    /// Applies the quality of service that the file now gives a volume.
    pub(super) async fn reload_qos(&self, placement: &Placement, fresh: &VolumeConfig) -> Result<(), Failure> {
        let mut state = self.records.view().clone();
        for key in KEYS {
            state.expire_override(placement.volume_id, key, &fresh.setting(key));
        }
        apply(&self.cores, fresh, placement, &state).await?;
        self.records.save_overrides(placement, &state, &KEYS)
    }
}

/// Warns of values from rules that cannot take effect on a volume.
pub fn warn_of_conflicts(config: &VolumeConfig) {
    if let Some((_, fault, remedy)) = config.qos.fault(!config.datastore.is_empty(), false) {
        log::warn!(
            target: QOS, volume = config.name,
            "volume {}: {fault}, so it has no effect; {remedy}",
            config.name
        );
    }
}

/// Applies the quality of service in `state` and the configuration to a volume on its core.
async fn apply(cores: &Cores, config: &VolumeConfig, placement: &Placement, state: &State) -> Result<(), Failure> {
    let qos = qos_of(state.by_name(&config.name), config.qos).of_engine();
    let volume = config.name.clone();
    let call = async move |local: Rc<CoreLocal>| match local.engine.find(&volume) {
        Some(volume) => volume.set_qos(qos),
        None => Ok(()),
    };
    let result: Result<(), ReservationError> = cores[placement.core].call(call).await.map_err(core_ended)?;
    result.map_err(|error| {
        let text = format!("volume {} keeps its quality of service: {error}", config.name);
        Failure::new(ErrorKind::Conflict, text)
    })
}
