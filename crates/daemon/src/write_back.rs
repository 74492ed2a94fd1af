//! The return of volumes to write-back once flash keeps enough copies.

use std::rc::Rc;
use std::time::Duration;

use control::ProgressSender;
use engine::WritePolicy;

use super::daemon::Daemon;
use super::flash::Seen;
use state::effective_policy;
use terminal::log;

/// Interval of the checks.
const PAUSE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Monitors the flash devices until the log is closed.
    pub async fn watch_flash(self: Rc<Self>) {
        let mut seen = Seen::default();
        while self.flash.check(&mut seen).await {
            if !self.stop.is_stopping() {
                self.flash.keep_two_copies().await;
                self.back_to_write_back().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Changes volumes that run as write-through for lack of a second copy back to write-back once there is one.
    async fn back_to_write_back(&self) {
        for name in self.flash.written_through().await {
            let known = self.volumes.find(&name);
            let wanted = known.map(|known| effective_policy(self.records.view().by_name(&name), known.config.policy));
            // A change of the volume that is under way takes precedence.
            let (Some(WritePolicy::WriteBack), Ok(_busy), Ok(placed)) =
                (wanted, self.volumes.begin(&name), self.volumes.placed(&name))
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
}
