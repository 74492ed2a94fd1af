//! Sampling: once a second, one status report goes to the event stream of the HTTP interface, to the history and to the
//! alerts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use history::Subject;
use messages::{ErrorKind, Failure, StatusSample, unix_time};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::super::descriptor_shortage::DescriptorShortage;
use super::Daemon;

/// Interval of the samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

impl Daemon {
    /// Takes samples until a stop is requested. Each is taken in the middle of a second, so that a slightly late tick
    /// falls into the same second.
    pub async fn sample(self: Rc<Self>) {
        let since_full_second = Duration::from_nanos(unix_time::now().subsec_nanos().into());
        let first = Instant::now() + (SAMPLE_INTERVAL + SAMPLE_INTERVAL / 2).saturating_sub(since_full_second);
        let mut tick = interval_at(first, SAMPLE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut shortage = DescriptorShortage::default();
        while !self.stop.is_stopping() {
            tick.tick().await;
            shortage.report(&self.journal);
            self.journal.begin_sample();
            let mut status = self.collect_status().await;
            let at_unix_ms = unix_time::now().as_millis() as u64;
            self.journal.process_sample(at_unix_ms, &status, &self.settings.alert_limits(self.cores.count()));
            self.report_pool_spaces(&status.pools).await;
            self.forget_removed_devices(&status.pools);
            self.journal.add_alerts(&mut status);
            let events = self.journal.newest();
            let sample = Arc::new(StatusSample { at_unix_ms, status, events });
            self.telemetry.publish(sample);
        }
    }

    /// The subject of a history query, and whether it exists now.
    pub fn subject(
        &self,
        volume: Option<String>,
        datastore: Option<String>,
        pool: Option<String>,
    ) -> Result<(Subject, bool), Failure> {
        match (volume, datastore, pool) {
            (None, None, None) => Ok((Subject::Whole, true)),
            (Some(name), None, None) => {
                let is_known = self.volumes.contains(&name);
                Ok((Subject::Volume(name), is_known))
            }
            (None, Some(name), None) => {
                let is_known =
                    name.is_empty() || self.settings.current().datastores.iter().any(|known| known.name == name);
                Ok((Subject::Datastore(name), is_known))
            }
            (None, None, Some(name)) => {
                let is_known = self.settings.current().pools.iter().any(|known| known.name == name);
                Ok((Subject::Pool(name), is_known))
            }
            _ => {
                let text = "specify one of volume, datastore and pool";
                Err(Failure::new(ErrorKind::Invalid, text))
            }
        }
    }
}
