//! Flushes that come together share one batch. A run that begins with the first of several clients, each of which was answered a moment
//! ago and asks again, serves that one alone and lets the others wait for the next; so a run waits for as many as the last one
//! served, for a part of the time that the last one took and no longer.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::wait::Signal;

/// Part of the last run's time that the next one waits at most.
const PATIENCE_PART: u64 = 2;
/// The longest wait, however slow the devices are.
const PATIENCE_MAX: Nanos = Nanos::from_micros(500);

/// Who asks for flushes of one shard.
#[derive(Default)]
pub struct Company {
    /// Flushes that have asked and are not answered.
    asking: Cell<u64>,
    /// How many the last run served, and how long it took.
    served: Cell<u64>,
    took: Cell<Nanos>,
    arrived: Signal,
}

/// One who asks, until it is dropped.
pub struct Asking<'a>(&'a Company);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.set(self.0.asking.get() - 1);
    }
}

impl Company {
    /// One more asks.
    pub fn ask(&self) -> Asking<'_> {
        self.asking.set(self.asking.get() + 1);
        self.arrived.notify();
        Asking(self)
    }

    /// Waits until as many ask as were served together last, or a moment has passed.
    pub async fn gather(&self, seam: &impl Seam) {
        let complete = || self.asking.get() >= self.served.get();
        if !complete() {
            let patience = Nanos(self.took.get().0 / PATIENCE_PART).min(PATIENCE_MAX);
            let mut arrivals = pin!(self.arrived.wait_for(|| complete().then_some(())));
            let mut limit = pin!(seam.sleep(patience));
            poll_fn(|context| match arrivals.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => limit.as_mut().poll(context),
            })
            .await;
        }
        self.served.set(self.asking.get());
    }

    /// A run is over that took so long.
    pub fn ran(&self, took: Nanos) {
        self.took.set(took);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use seam::sim::{World, WorldSpec};

    use super::*;

    /// When a run that begins at once ends its wait, while others ask after so many microseconds each.
    fn gathered_after(company: &Rc<Company>, others: &[u64]) -> u64 {
        let world = World::new(WorldSpec::new(1));
        let (seam, company) = (world.seam(), Rc::clone(company));
        for pause in others.iter().copied() {
            let (seam, company) = (seam.clone(), Rc::clone(&company));
            seam.clone().spawn(async move {
                seam.sleep(Nanos::from_micros(pause)).await;
                let asking = company.ask();
                seam.sleep(Nanos::from_secs(1)).await;
                drop(asking);
            });
        }
        let run = async move {
            let begun = seam.now();
            let asking = company.ask();
            company.gather(&seam).await;
            let waited = seam.now().since(begun).as_micros();
            company.ran(Nanos::from_micros(400));
            // All are answered together.
            seam.sleep(Nanos::from_secs(2)).await;
            drop(asking);
            waited
        };
        world.block_on(run)
    }

    #[test]
    fn a_run_waits_for_as_many_as_the_last_one_served_and_not_for_long() {
        let company = Rc::new(Company::default());
        assert_eq!(gathered_after(&company, &[]), 0, "nobody was served before");
        assert_eq!(gathered_after(&company, &[]), 0, "one alone never waits");
        company.served.set(3);
        assert_eq!(gathered_after(&company, &[50, 120]), 120);
        assert_eq!(gathered_after(&company, &[50]), 200, "half of what the last run took");
        assert_eq!(gathered_after(&company, &[50]), 50, "one fewer is expected from then on");
    }
}
