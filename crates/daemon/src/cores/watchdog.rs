//! The service manager's watchdog and start time-out. The watchdog is fed while every data core and the control thread
//! make progress; a slow start requests more time while the data cores answer.
//!
//! A stuck data core serves no client. With a stuck control thread service continues, but nothing is saved, no flash
//! member is taken out, and the daemon cannot be stopped. Neither recovers by itself; a restart helps. Every wait of
//! the control thread is far shorter than the watchdog's time-out.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seam::{Nanos, Seam};

use super::Cores;
use super::data_core::CoreLocal;
use systemd::Notifier;

/// Interval at which a slow start extends its time-out.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);
/// Rounds of each thread within the watchdog's time-out.
const ROUNDS: u32 = 4;

/// Threads that have made a round since the watchdog was last fed: every data core, and the control thread as the last
/// entry.
struct ThreadRounds(Vec<AtomicBool>);

impl ThreadRounds {
    /// Records a round of one thread; the round that completes the set feeds the watchdog.
    fn complete(&self, index: usize, notifier: &Notifier) {
        self.0[index].store(true, Ordering::Relaxed);
        if self.0.iter().all(|round| round.load(Ordering::Relaxed)) {
            self.0.iter().for_each(|round| round.store(false, Ordering::Relaxed));
            notifier.notify("WATCHDOG=1");
        }
    }
}

impl Cores {
    /// Feeds the watchdog, if there is one, as long as every data core and the control thread make progress.
    pub async fn feed_watchdog(&self) {
        let Some(timeout) = Notifier::watchdog_timeout() else { return };
        let pause = timeout / ROUNDS;
        let core_pause = Nanos::from_micros(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX));
        let rounds: Arc<ThreadRounds> =
            Arc::new(ThreadRounds((0..=self.count()).map(|_| AtomicBool::new(false)).collect()));
        for core in self.iter() {
            let (rounds, index) = (rounds.clone(), core.index());
            let start_rounds = async move |local: Rc<CoreLocal>| {
                let (seam, notifier) = (local.seam.clone(), Notifier::nonblocking());
                local.seam.spawn(async move {
                    loop {
                        rounds.complete(index, &notifier);
                        seam.sleep(core_pause).await;
                    }
                });
            };
            // The call fails only if the core has ended, which ends the daemon anyway.
            let _ = core.call(start_rounds).await;
        }
        let (control, notifier) = (self.count(), Notifier::nonblocking());
        tokio::task::spawn_local(async move {
            loop {
                rounds.complete(control, &notifier);
                tokio::time::sleep(pause).await;
            }
        });
    }

    /// Awaits `work`, and extends the service manager's start time-out while every data core answers.
    pub async fn extending_start_timeout<T>(&self, notifier: &Notifier, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let all_answer = async {
                tokio::time::sleep(EXTENSION_INTERVAL).await;
                for core in self.iter() {
                    if core.call(async |_| ()).await.is_err() {
                        return std::future::pending().await;
                    }
                }
            };
            tokio::select! {
                done = &mut work => return done,
                () = all_answer => notifier.extend_timeout(),
            }
        }
    }
}
