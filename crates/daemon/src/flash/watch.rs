//! Monitoring of the flash devices: devices that leave service are logged, and no flush relies on one copy where that
//! is not allowed.

use std::rc::Rc;

use engine::{Volume, WritePolicy};
use flash::{MemberReport, MemberStatus, MembershipGeneration};
use seam::Seam;

use super::super::cores::CoreLocal;
use super::{Flash, FlashLog};
use logging::{self as log, FLASH};

/// Number of checks after which the bytes written to each device are saved.
const CHECKS_PER_WEAR_SAVE: u64 = 60;

/// The members at the last check, and the number of checks.
#[derive(Default)]
pub struct LastCheck {
    members: Vec<MemberReport>,
    checks: u64,
}

/// Status of the log at a check.
struct LogStatus {
    members: Vec<MemberReport>,
    generation: MembershipGeneration,
    /// The reason why the map of clean pages cannot be written any more, if any.
    map_failure: Option<String>,
    /// A map that replaces the one from before the start is durable.
    has_new_map: bool,
}

impl FlashLog {
    /// Changes write-back volumes to write-through, if a single copy is left and not allowed; returns their number.
    /// Their dirty blocks are destaged in the background.
    pub async fn enforce_two_copies(&self) -> usize {
        if self.store().is_none() || self.settings.allows_single_copy() {
            return 0;
        }
        let change = async |local: Rc<CoreLocal>| {
            if local.engine.log().is_none_or(|log| log.copies() != 1) {
                return 0;
            }
            // A change in progress ends first; the next check finds its result.
            let needs_change = |volume: &Volume<_>| {
                volume.has_log() && volume.policy() == WritePolicy::WriteBack && !volume.is_changing()
            };
            let volumes: Vec<_> = local.engine.volumes().into_iter().filter(needs_change).collect();
            let count = volumes.len();
            for volume in volumes {
                local.seam.spawn(async move {
                    // On an error the volume stays write-back, and the next check tries again.
                    if let Err(error) = volume.set_policy(WritePolicy::WriteThrough).await {
                        log::error!(
                            target: FLASH, volume = volume.name(),
                            "volume {}: the change to write-through is delayed: {error}",
                            volume.name()
                        );
                    }
                });
            }
            count
        };
        let changed = self.core().call(change).await.unwrap_or(0);
        if changed > 0 {
            log::warn!(target: FLASH, "{}", super::ONE_COPY);
        }
        changed
    }

    /// The volumes that run as write-through; none if too few copies are in service for write-back.
    pub async fn write_through_volumes(&self) -> Vec<String> {
        let read = async |local: Rc<CoreLocal>| {
            let copies = local.engine.log().map_or(0, |log| log.copies());
            let volumes = local.engine.volumes();
            // The change of a volume whose backing hangs does not delay the other volumes.
            let is_write_through =
                |volume: &&Volume<_>| volume.policy() == WritePolicy::WriteThrough && !volume.is_changing();
            let write_through = volumes.iter().filter(is_write_through);
            (copies, write_through.map(|volume| volume.name().to_owned()).collect::<Vec<_>>())
        };
        let copies_needed = if self.settings.allows_single_copy() { 1 } else { 2 };
        match self.core().call(read).await {
            Ok((copies, names)) if copies >= copies_needed => names,
            _ => Vec::new(),
        }
    }

    /// Abandons the map of clean pages: writes to backings wait for a dirty-region mark that cannot be written. They
    /// continue once it is durable that the map is unusable.
    pub async fn abandon_map(&self, reason: &str) {
        match self.record_map_unusable(true) {
            Ok(()) => {
                let abandon =
                    async |local: Rc<CoreLocal>| local.engine.pages().into_iter().for_each(|pages| pages.abandon());
                // The call fails only if the core has ended, and then it writes nothing.
                let _ = self.core().call(abandon).await;
            }
            Err(failure) => log::error!(
                target: FLASH,
                "the map of clean pages failed ({reason}), and this could not be recorded: {}",
                failure.message
            ),
        }
    }

    /// True when no volume may become write-back now.
    pub async fn lacks_second_copy(&self) -> bool {
        if self.store().is_none() || self.settings.allows_single_copy() {
            return false;
        }
        let is_single = async |local: Rc<CoreLocal>| local.engine.log().is_some_and(|log| log.copies() < 2);
        self.core().call(is_single).await.unwrap_or(false)
    }

    /// Begins to monitor the devices; false while they are monitored already.
    pub fn begin_watch(&self) -> bool {
        !self.is_watched.replace(true)
    }

    /// Ends the monitoring.
    pub fn end_watch(&self) {
        self.is_watched.set(false);
    }

    /// Checks the devices; false when the log is closed. To be called every second.
    pub async fn check(&self, last: &mut LastCheck) -> bool {
        // The devices may have changed since the last check.
        let Flash::Open(opened) = self.state.borrow().clone() else { return false };
        let Ok(Some(status)) = self.core().call(async |local: Rc<CoreLocal>| log_status(&local)).await else {
            return false;
        };
        if let Some(reason) = status.map_failure {
            self.abandon_map(&reason).await;
        } else if status.has_new_map
            && let Err(failure) = self.record_map_unusable(false)
        {
            log::error!(target: FLASH, "{}", failure.message);
        }
        if let Err(failure) = self.records.record_generation(&opened.store, status.generation) {
            log::error!(target: FLASH, "{}", failure.message);
        }
        for member in status.members.iter().filter(|member| !last.members.contains(*member)) {
            if let MemberStatus::Lost(reason) = &member.status {
                let device = opened.path_of(member).unwrap_or_else(|| format!("number {}", member.member));
                let reason = opened.reason_of(member, reason);
                log::error!(target: FLASH, device, "flash device {device} is out of service: {reason}");
            }
        }
        last.members = status.members;
        self.record_drops().await;
        last.checks += 1;
        if last.checks.is_multiple_of(CHECKS_PER_WEAR_SAVE) {
            self.save_wear().await;
        }
        true
    }
}

fn log_status(local: &CoreLocal) -> Option<LogStatus> {
    let log = local.engine.log()?;
    // Only if no copy is in service: a closed store reports its map as failed, too.
    let map_failure = local.engine.pages().and_then(|pages| pages.unusable_reason()).filter(|_| log.copies() == 0);
    let has_new_map = map_failure.is_none() && local.engine.map_loaded().is_some();
    Some(LogStatus { members: log.members(), generation: log.generation(), map_failure, has_new_map })
}
