//! Monitoring of the flash log: volumes leave and return to write-back with the number of its copies.

use std::rc::Rc;
use std::time::Duration;

use super::super::flash::Seen;
use super::Daemon;

/// Interval of the checks.
const PAUSE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Monitors the flash devices until the log is closed.
    pub async fn watch_flash(self: Rc<Self>) {
        let mut seen = Seen::default();
        while self.flash.check(&mut seen).await {
            if !self.stop.is_stopping() {
                self.flash.keep_two_copies().await;
                self.volume_settings.restore_write_back().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
