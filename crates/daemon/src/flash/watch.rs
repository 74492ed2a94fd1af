//! Monitoring of the flash devices: devices that leave service are logged, and no flush relies on one copy where that
//! is not allowed.

use std::rc::Rc;
use std::time::Duration;

use control::ProgressSender;
use engine::WritePolicy;
use flash::MemberStatus;
use seam::Seam;

use super::super::daemon::Daemon;
use super::super::data_core::Local;
use super::Flash;
use logging::{self as log, FLASH};
use state::effective_policy;

/// Interval of the checks.
const PAUSE: Duration = Duration::from_secs(1);
/// Checks after which the bytes written are saved.
const WEAR_LOOKS: u64 = 60;

impl Daemon {
    /// Changes write-back volumes to write-through until the next start, if a single copy is left and not allowed;
    /// returns their number. Their dirty blocks are destaged in the background.
    pub async fn keep_two_copies(&self) -> usize {
        if self.flash_store().is_none() || self.allows_single_copy() {
            return 0;
        }
        let change = async |local: Rc<Local>| {
            if local.engine.log().is_none_or(|log| log.copies() != 1) {
                return 0;
            }
            let volumes = local.engine.volumes().into_iter().filter(|volume| volume.policy() == WritePolicy::WriteBack);
            let volumes: Vec<_> = volumes.collect();
            let count = volumes.len();
            for volume in volumes {
                local.seam.spawn(async move {
                    // On an error the volume stays write-back, and the next check tries again.
                    if let Err(error) = volume.set_policy(WritePolicy::WriteThrough).await {
                        log::error!(
                            target: FLASH, volume = volume.name(),
                            "volume {}: cannot become write-through yet: {error}",
                            volume.name()
                        );
                    }
                });
            }
            count
        };
        let changed = self.flash_core().call(change).await.unwrap_or(0);
        if changed > 0 {
            log::warn!(target: FLASH, "{}", super::ONE_COPY);
        }
        changed
    }

    /// Changes volumes that run as write-through for lack of a second copy back to write-back once there is one.
    async fn back_to_write_back(&self) {
        let copies = async |local: Rc<Local>| {
            let log = local.engine.log().map_or(0, |log| log.copies());
            let volumes = local.engine.volumes();
            let through = volumes.iter().filter(|volume| volume.policy() == WritePolicy::WriteThrough);
            (log, through.map(|volume| volume.name().to_owned()).collect::<Vec<_>>())
        };
        let Ok((copies, through)) = self.flash_core().call(copies).await else { return };
        if copies < if self.allows_single_copy() { 1 } else { 2 } {
            return;
        }
        for name in through {
            let wanted = {
                let (volumes, state) = (self.volumes.borrow(), self.state.borrow());
                volumes.get(&name).map(|known| effective_policy(state.state().by_name(&name), known.config.policy))
            };
            // A change of the volume that is under way takes precedence.
            let (Some(WritePolicy::WriteBack), Ok(_busy), Ok(placed)) = (wanted, self.begin(&name), self.placed(&name))
            else {
                continue;
            };
            let (progress, _) = ProgressSender::new();
            match self.change_policy(&name, &placed, WritePolicy::WriteBack, &progress).await {
                Ok(()) => log::info!(
                    target: FLASH, volume = name,
                    "volume {name}: write-back again, flash keeps enough copies"
                ),
                Err(failure) => log::error!(target: FLASH, volume = name, "{}", failure.message),
            }
        }
    }

    /// Gives up the map of clean pages: writes to backings wait for a dirty-region mark that cannot be written. They
    /// continue once it is durable that the map is void.
    pub(in super::super) async fn give_up_map(&self, why: &str) {
        match self.note_map(true) {
            Ok(()) => {
                let abandon =
                    async |local: Rc<Local>| local.engine.pages().into_iter().for_each(|pages| pages.abandon());
                // The call fails only if the core has ended, and then it writes nothing.
                let _ = self.flash_core().call(abandon).await;
            }
            Err(failure) => log::error!(
                target: FLASH,
                "the clean pages on flash are lost ({why}): {}",
                failure.message
            ),
        }
    }

    fn allows_single_copy(&self) -> bool {
        self.config.borrow().flash.as_ref().is_some_and(|flash| flash.allow_single_copy)
    }

    /// True when no volume may become write-back now.
    pub async fn wants_two_copies(&self) -> bool {
        if self.flash_store().is_none() || self.allows_single_copy() {
            return false;
        }
        let one = async |local: Rc<Local>| local.engine.log().is_some_and(|log| log.copies() < 2);
        self.flash_core().call(one).await.unwrap_or(false)
    }

    /// Monitors the devices until the daemon ends.
    pub async fn watch_flash(self: Rc<Self>) {
        let mut before = Vec::new();
        for look in 0_u64.. {
            // The devices may have changed since the last check.
            let Flash::Open(opened) = self.flash.borrow().clone() else { return };
            let ask = async |local: Rc<Local>| {
                let log = local.engine.log()?;
                // Only if no copy is in service: a closed store reports its map as failed, too.
                let map = local.engine.pages().and_then(|pages| pages.failed()).filter(|_| log.copies() == 0);
                let is_new = map.is_none() && local.engine.map_loaded().is_some();
                Some((log.members(), log.generation(), map, is_new))
            };
            let Ok(Some((members, generation, map, is_new))) = self.flash_core().call(ask).await else { return };
            if let Some(why) = map {
                self.give_up_map(&why).await;
            } else if is_new && let Err(failure) = self.note_map(false) {
                log::error!(target: FLASH, "{}", failure.message);
            }
            if let Err(failure) = self.note_generation(&opened.store, generation) {
                log::error!(target: FLASH, "{}", failure.message);
            }
            for member in members.iter().filter(|member| !before.contains(*member)) {
                if let MemberStatus::Lost(why) = &member.status {
                    let device = member.device.as_deref().map(|device| opened.names.show(device));
                    let device = device.unwrap_or_else(|| format!("number {}", member.member));
                    log::error!(target: FLASH, device, "flash device {device} is out of service: {why}");
                }
            }
            before = members;
            self.note_drops().await;
            if look % WEAR_LOOKS == WEAR_LOOKS - 1 {
                self.save_wear().await;
            }
            if !self.stop.is_stopping() {
                self.keep_two_copies().await;
                self.back_to_write_back().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
