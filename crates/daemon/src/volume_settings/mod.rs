//! Settings of served volumes: policy, mode, quality of service, quotas and LUN settings; changed by command or by
//! a reload, applied on the core and saved.

mod qos;
mod quotas;
mod reload;

use std::collections::BTreeMap;
use std::rc::Rc;

use control::ProgressSender;
use engine::{CacheMode, Volume, WritePolicy};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;

pub use self::qos::{qos_of, warn_of_conflicts};
pub use self::quotas::{flash_quota_of, memory_quota_of};
use super::cores::Cores;
use super::flash::FlashLog;
use super::iscsi_units::Units;
use super::records::Records;
use super::settings::Settings;
use super::volumes::{Placement, Volumes};
use config::keys::{KEYS, find_key, set_by_command};
use config::nearest;
use logging::{self as log, FLASH, VOLUME};
use state::{DECLARED_LOST, MODE, POLICY, effective_policy};

/// Settings of served volumes. A clone is another handle to them.
#[derive(Clone)]
pub struct VolumeSettings {
    settings: Rc<Settings>,
    records: Rc<Records>,
    cores: Rc<Cores>,
    volumes: Rc<Volumes>,
    flash: Rc<FlashLog>,
    units: Rc<Units>,
}

/// The changes that a `volume set` requests.
pub struct Changes<'a> {
    settings: &'a BTreeMap<String, String>,
    policy: Option<WritePolicy>,
    declared_lost: Option<bool>,
}

impl<'a> Changes<'a> {
    /// Checks the keys and the values that need no volume.
    pub fn parse(settings: &'a BTreeMap<String, String>) -> Result<Changes<'a>, Failure> {
        let invalid = |text| Failure::new(ErrorKind::Invalid, text);
        if let Some(key) = settings.keys().find(|key| !set_by_command().any(|known| known == *key)) {
            return Err(invalid(unknown_key_message(key)));
        }
        if settings.is_empty() {
            let known: Vec<_> = set_by_command().collect();
            return Err(invalid(format!("no setting given; write KEY=VALUE, where KEY is {}", known.join(" or "))));
        }
        let policy = settings.get(POLICY).map(|policy| policy.parse::<WritePolicy>()).transpose().map_err(invalid)?;
        let declared_lost = settings.get(DECLARED_LOST).map(|lost| lost.parse::<bool>()).transpose();
        let declared_lost = declared_lost
            .map_err(|_| invalid(format!("{DECLARED_LOST} is true or false; write {DECLARED_LOST}=true")))?;
        Ok(Changes { settings, policy, declared_lost })
    }
}

/// The settings with these keys, in the keys' order.
fn requested_settings<'a>(
    keys: &[&'static str],
    settings: &'a BTreeMap<String, String>,
) -> Vec<(&'static str, &'a String)> {
    keys.iter().filter_map(|key| Some((*key, settings.get(*key)?))).collect()
}

impl VolumeSettings {
    /// Settings of the volumes in `volumes`.
    pub fn new(
        settings: Rc<Settings>,
        records: Rc<Records>,
        cores: Rc<Cores>,
        volumes: Rc<Volumes>,
        flash: Rc<FlashLog>,
        units: Rc<Units>,
    ) -> VolumeSettings {
        VolumeSettings { settings, records, cores, volumes, flash, units }
    }

    /// Applies the changes of a `volume set` one after the other; fails at the first that cannot be applied.
    pub async fn apply(
        &self,
        name: &str,
        placement: &Placement,
        changes: &Changes<'_>,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        self.set_qos(name, placement, changes.settings).await?;
        self.set_quotas(name, placement, changes.settings).await?;
        if let Some(lost) = changes.declared_lost {
            let file = self.volumes.setting(name, DECLARED_LOST).unwrap_or_default();
            self.units.set_declared_lost(name, placement, lost, &file).await?;
        }
        match changes.policy {
            Some(policy) => self.set_policy(name, placement, policy, progress).await,
            None => Ok(()),
        }
    }

    /// Changes and saves the policy; a failed change is undone in the records.
    async fn set_policy(
        &self,
        name: &str,
        placement: &Placement,
        policy: WritePolicy,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let has_log = self.cores.with_volume(name, placement, |volume| volume.has_log()).await?;
        if policy == WritePolicy::WriteBack && has_log && self.flash.lacks_second_copy().await {
            let text = format!(
                "volume {name} keeps its policy: fewer than two flash devices are in service, and allow_single_copy is \
                 not set"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let file = self.volumes.setting(name, POLICY).unwrap_or_default();
        let state_before = self.records.view().clone();
        self.records.change(|state| {
            state.set_override(placement.volume_id, POLICY, &policy.to_string(), &file);
        })?;
        if let Err(failure) = self.change_policy(name, placement, policy, progress).await {
            self.records.change(|state| {
                let replaced = state_before.by_name(name).and_then(|record| record.overrides.get(POLICY).cloned());
                let value = replaced.map_or_else(|| file.clone(), |replaced| replaced.value);
                state.set_override(placement.volume_id, POLICY, &value, &file);
            })?;
            return Err(failure);
        }
        log::info!(target: VOLUME, volume = name, "volume {name}: policy {policy} by command");
        Ok(())
    }

    /// Changes the policy. The mark "dirty on flash" is set before a change to write-back and cleared after a change
    /// from it to another policy, so that the flash log never holds dirty data of a volume without the mark.
    pub async fn change_policy(
        &self,
        name: &str,
        placement: &Placement,
        policy: WritePolicy,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let read_only = self.volumes.find(name).is_some_and(|known| known.config.read_only);
        let has_log = !read_only && self.cores.with_volume(name, placement, |volume| volume.has_log()).await?;
        if policy == WritePolicy::WriteBack {
            self.flash.mark_policy_on_flash(placement, policy, has_log)?;
        }
        if policy.defers_writes() && !read_only {
            self.records.mark_deferring(placement)?;
        }
        let work = async move |volume: Volume<RealSeam>| volume.set_policy(policy).await;
        self.cores.on_volume(name, placement, "changing the policy", progress, work).await?;
        self.flash.mark_policy_on_flash(placement, policy, has_log)
    }

    /// `volume pause`, `freeze` and `resume`.
    pub async fn set_mode(
        &self,
        name: &str,
        placement: &Placement,
        mode: CacheMode,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let work = async move |volume: Volume<RealSeam>| volume.set_mode(mode).await;
        self.cores.on_volume(name, placement, "changing the mode", progress, work).await?;
        self.records.change(|state| {
            state.set_override(placement.volume_id, MODE, &mode.to_string(), &CacheMode::Active.to_string());
        })?;
        log::info!(target: VOLUME, volume = name, "volume {name}: {mode} by command");
        Ok(())
    }

    /// Changes volumes that run as write-through for lack of a second copy on flash back to write-back once a second
    /// copy exists, each in a task of its own: a backing that does not answer delays no other volume.
    pub async fn restore_write_back(&self) {
        for name in self.flash.write_through_volumes().await {
            let (settings, volume) = (self.clone(), name.clone());
            self.volumes.spawn_change(&name, async move { settings.restore_write_back_of(&volume).await });
        }
    }

    async fn restore_write_back_of(&self, name: &str) {
        let known = self.volumes.find(name);
        let policy_in_force =
            known.map(|known| effective_policy(self.records.view().by_name(name), known.config.policy));
        let (Some(WritePolicy::WriteBack), Ok(placement)) = (policy_in_force, self.volumes.placement(name)) else {
            return;
        };
        let (progress, _) = ProgressSender::new();
        match self.change_policy(name, &placement, WritePolicy::WriteBack, &progress).await {
            Ok(()) => log::info!(
                target: FLASH, volume = name,
                "volume {name}: write-back again: flash has enough copies"
            ),
            Err(failure) => log::error!(target: FLASH, volume = name, "{}", failure.message),
        }
    }
}

fn unknown_key_message(key: &str) -> String {
    match find_key("volume", key) {
        Some(_) => {
            format!(
                "\"{key}\" cannot be changed while the volume is served; change it in the configuration and restart"
            )
        }
        None => match nearest(key, KEYS.iter().filter(|known| known.table == "volume").map(|known| known.name)) {
            Some(near) => format!("a volume has no setting \"{key}\"; did you mean \"{near}\"?"),
            None => {
                let known: Vec<_> = set_by_command().collect();
                format!("a volume has no setting \"{key}\"; `volume set` accepts {}", known.join(", "))
            }
        },
    }
}
