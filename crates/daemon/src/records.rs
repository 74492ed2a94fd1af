//! The state directory as the control thread uses it: each change is durable before the call returns.

use std::cell::{Ref, RefCell};
use std::path::PathBuf;

use engine::{VolumeId, WritePolicy};
use messages::{ErrorKind, Failure};

use super::volumes::Placement;
use config::VolumeConfig;
use flash::MembershipGeneration;
use logging::{self as log, DAEMON};
use state::{Refusal, State, StateDir, StateError, effective_policy};

/// The daemon's durable records.
pub struct Records(RefCell<StateDir>);

/// The failure of an action whose record could not be saved.
pub fn state_failed(error: StateError) -> Failure {
    Failure::new(ErrorKind::Failed, error.to_string())
}

impl Records {
    /// The records of an open state directory.
    pub fn new(directory: StateDir) -> Records {
        Records(RefCell::new(directory))
    }

    /// The records as they are now. The view must be dropped before the next change, so it never spans an await.
    pub fn view(&self) -> Ref<'_, State> {
        Ref::map(self.0.borrow(), StateDir::state)
    }

    /// Changes the records durably. After a failure they are as before.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, Failure> {
        self.0.borrow_mut().change(change).map_err(state_failed)
    }

    /// Like [`Records::change`], but logs a failure; true on success. After a failure the next start recovers as after
    /// a crash.
    pub fn change_or_log(&self, change: impl FnOnce(&mut State)) -> bool {
        let saved = self.change(change);
        if let Err(failure) = &saved {
            log::error!(target: DAEMON, "{}", failure.message);
        }
        saved.is_ok()
    }

    /// Saves a refusal. A state directory that was found to be an older copy is treated as one until its records are
    /// rebuilt, even if the store that revealed it is removed.
    pub fn record_refusal(&self, refusal: &Refusal) -> Result<(), Failure> {
        self.change(|state| state.record_store_refusal(refusal))
    }

    /// Saves the membership generation, so that a removed member is never mistaken for the last one in service.
    pub fn record_generation(&self, store: &str, generation: MembershipGeneration) -> Result<(), Failure> {
        let change = |state: &mut State| state.store_mut(store).generation = generation;
        self.change(change)
    }

    /// Moves wear records from the names that earlier versions gave devices to their present names.
    pub fn rename_devices(&self, renamed: &[(String, String)]) -> Result<(), Failure> {
        let has_wear = |former: &String| self.view().wear.contains_key(former);
        if !renamed.iter().any(|(former, _)| has_wear(former)) {
            return Ok(());
        }
        let change = |state: &mut State| {
            for (former, present) in renamed {
                if let Some(written) = state.wear.remove(former) {
                    state.wear.entry(present.clone()).or_insert(written);
                }
            }
        };
        self.change(change)
    }

    /// The generation of the daemon before which acknowledged writes to a volume may be lost; 0 for an unknown volume.
    pub fn lost_before(&self, name: &str) -> u64 {
        self.view().by_name(name).map_or(0, |record| record.lost_before)
    }

    /// Name of a volume, or its volume ID if no record has it.
    pub fn show_volume(&self, volume_id: VolumeId) -> String {
        let name = self.view().by_id(volume_id).map(|record| record.name.clone());
        name.unwrap_or_else(|| format!("volume ID {volume_id:016x}"))
    }

    /// True when the volume's backing may be incomplete because of dirty data on flash.
    pub fn may_be_on_flash(&self, name: &str) -> bool {
        self.view().by_name(name).is_some_and(|record| record.dirty_on_flash.is_some())
    }

    /// True when the policy of a volume with that configuration lets the flash log answer its flushes.
    pub fn policy_allows_log(&self, config: &VolumeConfig) -> bool {
        let policy = effective_policy(self.view().by_name(&config.name), config.policy);
        policy == WritePolicy::WriteBack && !config.read_only
    }

    /// Records that a volume defers writes from now on: a kill loses some.
    pub fn mark_deferring(&self, placement: &Placement) -> Result<(), Failure> {
        self.change(|state| {
            if let Some(record) = state.by_id_mut(placement.volume_id) {
                record.durable_writes = false;
            }
        })
    }

    /// Saves the overrides of these keys of the volume as they are in `fresh`.
    pub fn save_overrides(&self, placement: &Placement, fresh: &State, keys: &[&str]) -> Result<(), Failure> {
        let override_of = |key: &str| {
            let record = fresh.volumes.iter().find(|record| record.volume_id == placement.volume_id);
            record.and_then(|record| record.overrides.get(key).cloned())
        };
        self.change(|state| {
            let Some(record) = state.by_id_mut(placement.volume_id) else { return };
            for key in keys {
                match override_of(key) {
                    Some(entry) => drop(record.overrides.insert((*key).to_owned(), entry)),
                    None => drop(record.overrides.remove(*key)),
                }
            }
        })
    }

    /// The state directory.
    pub fn directory(&self) -> PathBuf {
        self.0.borrow().path().to_owned()
    }

    /// The reason why the records cannot be written now, if any.
    pub fn write_error(&self) -> Option<String> {
        self.0.borrow_mut().write_error()
    }
}
