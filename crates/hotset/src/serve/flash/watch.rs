//! Devices that leave service while volumes are served: told of, and no flush relies on one copy where that is not allowed.

use std::rc::Rc;
use std::time::Duration;

use engine::WritePolicy;
use flash::MemberStatus;
use seam::Seam;

use super::super::daemon::Daemon;
use super::super::data_core::Local;
use super::Flash;
use crate::log;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

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
        let Flash::Open(opened) = self.flash.borrow().clone() else { return };
        let mut before = Vec::new();
        loop {
            let ask = async |local: Rc<Local>| local.engine.log().map(|log| (log.members(), log.generation()));
            let Ok(Some((members, generation))) = self.flash_core().call(ask).await else { return };
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
            if !self.stop.is_stopping() {
                self.keep_two_copies().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
