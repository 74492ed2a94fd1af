//! Files with the heat of pools: written every hour and at a stop, read when a pool is opened.
//!
//! Heat is a forecast. A file that cannot be written or read costs a few hours of worse plans, so problems are logged
//! and nothing waits for them.

use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use messages::unix_time;

use super::super::cores::heat_path;
use super::Daemon;

/// Interval of the writes.
const SAVE_INTERVAL: Duration = Duration::from_secs(3_600);
/// Time that a stop gives to the last write.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Daemon {
    /// Saves the heat of the open pools every hour until a stop is requested.
    pub async fn keep_pool_heat(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SAVE_INTERVAL).await;
            if self.stop.is_stopping() {
                return;
            }
            self.save_pool_heat().await;
        }
    }

    /// Saves the heat of the open pools before the cores end.
    pub async fn save_pool_heat_at_stop(&self) {
        if tokio::time::timeout(STOP_TIMEOUT, self.save_pool_heat()).await.is_err() {
            logging::warn!("the load of the pools' slices could not be saved within {STOP_TIMEOUT:?}");
        }
    }

    async fn save_pool_heat(&self) {
        let directory = self.records.directory();
        for (pool, image) in self.cores.heat_images(unix_time::now().as_secs()).await {
            let path = heat_path(&directory, &pool);
            let written = tokio::task::spawn_blocking(move || replace_file(&path, &image)).await;
            let problem = match written {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            logging::warn!("pool {pool}: the load of its slices cannot be saved: {problem}");
        }
    }
}

/// Replaces a file. A crash leaves the former one, the new one, or one that its checksum refuses.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let spare = path.with_extension("heat.new");
    fs::write(&spare, bytes)?;
    fs::rename(&spare, path)
}
