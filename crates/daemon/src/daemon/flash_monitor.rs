//! Monitoring of the flash log: volumes run as write-through while a single copy is left, and return to write-back when
//! there are two.

use std::rc::Rc;
use std::time::Duration;

use super::super::flash::LastCheck;
use super::Daemon;

/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Daemon {
    /// Monitors the flash devices until the log is closed; returns at once if they are monitored already.
    pub async fn watch_flash(self: Rc<Self>) {
        if !self.flash.begin_watch() {
            return;
        }
        let mut last = LastCheck::default();
        while self.flash.check(&mut last).await {
            if !self.stop.is_stopping() {
                self.flash.enforce_two_copies().await;
                self.volume_settings.restore_write_back().await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        self.flash.end_watch();
    }
}
