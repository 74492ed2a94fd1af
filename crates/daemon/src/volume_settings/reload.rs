//! Changes of volume settings by a reload of the configuration.

use std::rc::Rc;

use control::ProgressSender;
use messages::{ErrorKind, Failure};

use super::super::cores::CoreLocal;
use super::super::reload_outcome::ReloadOutcome;
use super::super::volumes::KnownVolume;
use super::VolumeSettings;
use super::qos::warn_of_conflicts;
use config::{QosRule, VolumeConfig};

impl VolumeSettings {
    /// Applies the entry `fresh` of a served volume, whose entry was `old`.
    pub async fn reload(&self, old: &VolumeConfig, fresh: &VolumeConfig) -> Vec<ReloadOutcome> {
        let name = &fresh.name;
        let mut applied = old.after_reload(fresh);
        let mut outcomes = VolumeOutcomes { name, outcomes: Vec::new() };
        if applied != *fresh {
            outcomes.add("a changed backing, size, defer, read_only, flash or lun takes effect after a restart");
        }
        if old.policy != fresh.policy {
            let text = format!("policy changed from {} to {}", old.policy, fresh.policy);
            if !outcomes.add_result(self.reload_policy(fresh).await, &text) {
                applied.policy = old.policy;
            }
        }
        let quotas = |config: &VolumeConfig| (config.memory_min, config.memory_max, config.flash_min, config.flash_max);
        if quotas(old) != quotas(fresh) {
            let changed = match self.volumes.placement(name) {
                Ok(placement) => self.reload_quotas(&placement, fresh).await,
                Err(failure) => Err(failure),
            };
            if !outcomes.add_result(changed, "memory and flash quotas applied") {
                (applied.memory_min, applied.memory_max, applied.flash_min, applied.flash_max) = quotas(old);
            }
        }
        if old.datastore != fresh.datastore || old.labels != fresh.labels {
            outcomes.add_result(
                self.reload_datastore(fresh).await,
                "datastore and labels applied; NBD clients see a changed vm label after a restart",
            );
        }
        if old.qos != fresh.qos {
            let changed = match self.volumes.placement(name) {
                Ok(placement) => self.reload_qos(&placement, fresh).await,
                Err(failure) => Err(failure),
            };
            if !outcomes.add_result(changed, "shares, limits and reservation applied") {
                applied.qos = old.qos;
            }
        }
        if old.acl != fresh.acl || old.declared_lost != fresh.declared_lost {
            let changed = match self.volumes.placement(name) {
                Ok(placement) => self.units.reload(&placement, &applied).await,
                Err(failure) => Err(failure),
            };
            if !outcomes.add_result(changed, "LUN access list and declared_lost applied") {
                (applied.acl, applied.declared_lost) = (old.acl.clone(), old.declared_lost);
            }
        }
        let outcomes = outcomes.outcomes;
        self.volumes.reconfigure(applied);
        outcomes
    }

    /// Changes a volume's policy to the one that the file now gives it.
    async fn reload_policy(&self, fresh: &VolumeConfig) -> Result<(), Failure> {
        let (name, policy) = (&fresh.name, fresh.policy);
        let failed = |reason: &str| Failure::new(ErrorKind::Failed, format!("volume {name}: {reason}"));
        let placement = self.volumes.placement(name).map_err(|_| failed("not served"))?;
        let saved = self.records.change(|state| {
            state.expire_override(placement.volume_id, state::POLICY, &policy.to_string());
        });
        let (progress, _) = ProgressSender::new();
        let changed = self.change_policy(name, &placement, policy, &progress).await;
        saved.map_err(|failure| failed(&failure.message)).and(changed)
    }

    /// Moves a volume to the datastore that the file now names.
    async fn reload_datastore(&self, fresh: &VolumeConfig) -> Result<(), Failure> {
        let (name, datastore) = (fresh.name.clone(), fresh.datastore.clone());
        let placement = self.volumes.placement(&name)?;
        let call = async move |local: Rc<CoreLocal>| {
            if let Some(volume) = local.engine.find(&name) {
                volume.set_datastore(&datastore);
            }
        };
        let called = self.cores[placement.core].call(call).await;
        called.map_err(|error| Failure::new(ErrorKind::Failed, format!("volume {}: {error}", fresh.name)))
    }

    /// Applies `[[qos]]` to volumes that were added by command.
    pub async fn reload_rules(&self, rules: &[QosRule]) -> Vec<ReloadOutcome> {
        let changed = |known: &KnownVolume| {
            let fresh = known.config.clone().with_rules(rules);
            (!known.from_file && fresh.qos != known.config.qos).then_some(fresh)
        };
        let changed: Vec<_> = self.volumes.map(changed).into_iter().flatten().collect();
        let mut outcomes = Vec::new();
        for fresh in changed {
            let name = &fresh.name;
            warn_of_conflicts(&fresh);
            let applied = match (self.volumes.lock_for_change(name), self.volumes.placement(name)) {
                (Err(failure), _) => Err(failure),
                (Ok(_guard), Ok(placement)) => self.reload_qos(&placement, &fresh).await,
                // A volume that is not served gets the rules' values when it is attached.
                (Ok(_), Err(_)) => Ok(()),
            };
            outcomes.push(match applied {
                Ok(()) => {
                    self.volumes.set_qos(name, fresh.qos);
                    ReloadOutcome::Volume(name.clone(), "[[qos]] rules applied".to_owned())
                }
                Err(failure) => ReloadOutcome::Failed(name.clone(), failure),
            });
        }
        outcomes
    }
}

/// Outcomes of the changes of one volume.
struct VolumeOutcomes<'a> {
    name: &'a str,
    outcomes: Vec<ReloadOutcome>,
}

impl VolumeOutcomes<'_> {
    fn add(&mut self, text: &str) {
        self.outcomes.push(ReloadOutcome::Volume(self.name.to_owned(), text.to_owned()));
    }

    /// Adds `text` for a change that was applied, or the failure; true when it was applied.
    fn add_result(&mut self, changed: Result<(), Failure>, text: &str) -> bool {
        let is_applied = changed.is_ok();
        match changed {
            Ok(()) => self.add(text),
            Err(failure) => self.outcomes.push(ReloadOutcome::Failed(self.name.to_owned(), failure)),
        }
        is_applied
    }
}
