//! The service manager's patience: data cores feed its watchdog themselves, and a start that takes long asks for more time while they
//! answer.
//!
//! What is proven is that clients are served. So the control thread has no part in the feeding: it may stand still, and that is no reason
//! to end a daemon that serves.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seam::{Nanos, Seam};

use super::daemon::Daemon;
use super::data_core::Local;
use super::notify::Notifier;

/// How often a start that takes long asks for more time.
const START_PAUSE: Duration = Duration::from_secs(10);
/// Rounds of each core in the time within which the watchdog has to be fed.
const ROUNDS: u32 = 4;

impl Daemon {
    /// Feeds the watchdog, where there is one, as long as every data core comes round.
    pub async fn feed_watchdog(&self) {
        let Some(time) = Notifier::watchdog_time() else { return };
        let pause = Nanos::from_micros(u64::try_from((time / ROUNDS).as_micros()).unwrap_or(u64::MAX));
        // Who has come round since it was fed last; who completes them feeds it.
        let rounds: Arc<Vec<AtomicBool>> = Arc::new(self.cores.iter().map(|_| AtomicBool::new(false)).collect());
        for core in &self.cores {
            let (rounds, index) = (rounds.clone(), core.index());
            let begin = async move |local: Rc<Local>| {
                let (seam, notifier) = (local.seam.clone(), Notifier::that_never_waits());
                local.seam.spawn(async move {
                    loop {
                        rounds[index].store(true, Ordering::Relaxed);
                        if rounds.iter().all(|round| round.load(Ordering::Relaxed)) {
                            rounds.iter().for_each(|round| round.store(false, Ordering::Relaxed));
                            notifier.say("WATCHDOG=1");
                        }
                        seam.sleep(pause).await;
                    }
                });
            };
            // A core that is gone ends the daemon anyway.
            let _ = core.call(begin).await;
        }
    }

    /// Does `work`, and has the service manager wait for it while every data core answers.
    pub async fn patiently<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let all_answer = async {
                tokio::time::sleep(START_PAUSE).await;
                for core in &self.cores {
                    if core.call(async |_| ()).await.is_err() {
                        return std::future::pending().await;
                    }
                }
            };
            tokio::select! {
                done = &mut work => return done,
                () = all_answer => self.notifier.more_time(),
            }
        }
    }
}
