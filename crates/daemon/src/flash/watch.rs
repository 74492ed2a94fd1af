//! Devices that leave service while volumes are served: told of, and no flush relies on one copy where that is not allowed.

use std::rc::Rc;
use std::time::Duration;

use control::ProgressSender;
use engine::WritePolicy;
use flash::MemberStatus;
use seam::Seam;

use super::super::daemon::Daemon;
use super::super::data_core::Local;
use super::Flash;
use state::effective_policy;
use terminal::log;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks after which it is kept what was written.
const WEAR_LOOKS: u64 = 60;

impl Daemon {
    /// Where one copy is not enough and there is only one, write-back volumes become write-through until the next start; returns how
    /// many. What is dirty goes to their backings in the background.
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
                    // Until it succeeds the volume is write-back, and the next look tries again.
                    if let Err(error) = volume.set_policy(WritePolicy::WriteThrough).await {
                        log::error(format!("volume {}: cannot become write-through yet: {error}", volume.name()));
                    }
                });
            }
            count
        };
        let changed = self.flash_core().call(change).await.unwrap_or(0);
        if changed > 0 {
            log::warn(super::ONE_COPY);
        }
        changed
    }

    /// Volumes that run as write-through for want of a second copy become write-back again when there is one.
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
            // Somebody who changes it just now knows what it shall be.
            let (Some(WritePolicy::WriteBack), Ok(_busy), Ok(placed)) = (wanted, self.begin(&name), self.placed(&name))
            else {
                continue;
            };
            let (progress, _) = ProgressSender::new();
            match self.change_policy(&name, &placed, WritePolicy::WriteBack, &progress).await {
                Ok(()) => log::info(format!("volume {name}: write-back again, flash keeps enough copies")),
                Err(failure) => log::error(failure.message),
            }
        }
    }

    /// Writes to backings wait for a mark that cannot be made: they go on once it is durable that the map is void.
    pub(in super::super) async fn give_up_map(&self, why: &str) {
        match self.note_map(true) {
            Ok(()) => {
                let abandon =
                    async |local: Rc<Local>| local.engine.pages().into_iter().for_each(|pages| pages.abandon());
                // A core that has ended writes nothing.
                let _ = self.flash_core().call(abandon).await;
            }
            Err(failure) => log::error(format!("the clean pages on flash are lost ({why}): {}", failure.message)),
        }
    }

    fn allows_single_copy(&self) -> bool {
        self.config.borrow().flash.as_ref().is_some_and(|flash| flash.allow_single_copy)
    }

    /// True when a volume may not be write-back now.
    pub async fn wants_two_copies(&self) -> bool {
        if self.flash_store().is_none() || self.allows_single_copy() {
            return false;
        }
        let one = async |local: Rc<Local>| local.engine.log().is_some_and(|log| log.copies() < 2);
        self.flash_core().call(one).await.unwrap_or(false)
    }

    /// Looks after the devices until the daemon ends.
    pub async fn watch_flash(self: Rc<Self>) {
        let mut before = Vec::new();
        for look in 0_u64.. {
            // Its devices may have changed since the last look.
            let Flash::Open(opened) = self.flash.borrow().clone() else { return };
            let ask = async |local: Rc<Local>| {
                let log = local.engine.log()?;
                // A store that was closed takes no pages either.
                let map = local.engine.pages().and_then(|pages| pages.failed()).filter(|_| log.copies() == 0);
                let is_new = map.is_none() && local.engine.map_loaded().is_some();
                Some((log.members(), log.generation(), map, is_new))
            };
            let Ok(Some((members, generation, map, is_new))) = self.flash_core().call(ask).await else { return };
            if let Some(why) = map {
                self.give_up_map(&why).await;
            } else if is_new && let Err(failure) = self.note_map(false) {
                log::error(failure.message);
            }
            if let Err(failure) = self.note_generation(&opened.store, generation) {
                log::error(failure.message);
            }
            for member in members.iter().filter(|member| !before.contains(*member)) {
                if let MemberStatus::Lost(why) = &member.status {
                    let device = member.device.as_deref().map(|device| opened.names.show(device));
                    let device = device.unwrap_or_else(|| format!("number {}", member.member));
                    log::error(format!("flash device {device} is out of service: {why}"));
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
