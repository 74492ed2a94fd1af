//! Flushes that come together share one batch. Clients that ask again as soon as they are answered fall apart into groups that take
//! turns: each batch carries one group, while the next one waits for it. A run that waits a moment for those who were just answered
//! carries all of them; but clients that come at times of their own would wait in vain. What is worth more is not to be foretold: it
//! depends on clients, devices and processors. So it is tried: a few runs of each patience, and the one that served most in a time is kept,
//! until the next trial of another.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::wait::Signal;

/// How long a run may wait, in percent of the time that the last one took.
const PATIENCE: [u64; 3] = [0, 50, 100];
/// The longest wait, however slow the devices are.
const PATIENCE_MAX: Nanos = Nanos::from_micros(500);
/// Runs of one trial.
const TRIAL_RUNS: u32 = 32;
/// Of so many trials one is of another patience than the best.
const TRIALS_EACH: u32 = 8;
/// How much more a longer patience has to serve than none, in percent: what differs less is chance.
const GAIN_PERCENT: f64 = 7.0;

/// Who asks for flushes of one shard.
#[derive(Default)]
pub struct Company {
    /// Flushes that no run has taken along yet.
    waiting: Cell<u64>,
    /// Flushes that the last run has taken along.
    taken: Cell<u64>,
    /// Flushes that were asked for by the end of the last run and not answered before it.
    clients: Cell<u64>,
    /// When the last run ended, and how long it took.
    ended: Cell<Nanos>,
    took: Cell<Nanos>,
    trial: RefCell<Trial>,
    arrived: Signal,
}

/// Runs of one patience.
#[derive(Default)]
struct Trial {
    /// An index of [`PATIENCE`], and what each has served a nanosecond when it was last tried.
    patience: usize,
    rates: [f64; PATIENCE.len()],
    runs: u32,
    served: u64,
    time: Nanos,
    /// Trials that have ended.
    ended: u32,
}

impl Trial {
    /// A run is over that served so many and came so long after the one before.
    fn add(&mut self, served: u64, time: Nanos) {
        self.runs += 1;
        self.served += served;
        self.time += time;
        if self.runs < TRIAL_RUNS {
            return;
        }
        self.rates[self.patience] = self.served as f64 / self.time.0.max(1) as f64;
        self.ended += 1;
        let others = (self.ended / TRIALS_EACH) as usize % (PATIENCE.len() - 1);
        let worth = |patience: usize| match patience {
            0 => self.rates[0] * (1.0 + GAIN_PERCENT / 100.0),
            _ => self.rates[patience],
        };
        let best = (0..PATIENCE.len()).max_by(|one, other| worth(*one).total_cmp(&worth(*other))).unwrap_or(0);
        self.patience = match self.ended % TRIALS_EACH {
            0 => (best + 1 + others) % PATIENCE.len(),
            _ => best,
        };
        (self.runs, self.served, self.time) = (0, 0, Nanos(0));
    }
}

impl Company {
    /// One more asks.
    pub fn ask(&self) {
        self.waiting.set(self.waiting.get() + 1);
        self.arrived.notify();
    }

    /// Waits for those who were answered or left behind when the last run ended, for as long as that is worth it, and takes all along
    /// who ask by then.
    pub async fn gather(&self, seam: &impl Seam) {
        let all_are_here = || self.waiting.get() >= self.clients.get();
        let patience = Nanos(self.took.get().0 * PATIENCE[self.trial.borrow().patience] / 100).min(PATIENCE_MAX);
        if patience > Nanos(0) && !all_are_here() {
            let mut arrivals = pin!(self.arrived.wait_for(|| all_are_here().then_some(())));
            let mut limit = pin!(seam.sleep(patience));
            poll_fn(|context| match arrivals.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => limit.as_mut().poll(context),
            })
            .await;
        }
        self.taken.set(self.waiting.take());
    }

    /// A run is over that took so long.
    pub fn ran(&self, now: Nanos, took: Nanos) {
        // When nobody asked for long, that was nobody's patience.
        let since = now.since(self.ended.replace(now)).min(Nanos(took.0 * 3));
        self.trial.borrow_mut().add(self.taken.get(), since);
        self.took.set(took);
        self.clients.set(self.taken.get() + self.waiting.get());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use seam::sim::{SimSeam, World, WorldSpec};

    use super::*;

    /// What a run takes, without waiting.
    const RUN: u64 = 400;

    /// Flushes in a second, and the mean of their waits in microseconds, where each client asks again so many microseconds
    /// after its answer, or for `None` at random a thousand times a second.
    fn served(clients: &[Option<u64>]) -> (u64, u64) {
        #[derive(Default)]
        struct Desk {
            company: Company,
            begun: Cell<u64>,
            done: Cell<u64>,
            running: Cell<bool>,
            changed: Signal,
            served: Cell<u64>,
            waited: Cell<u64>,
        }
        async fn flush(desk: &Desk, seam: &SimSeam) {
            let (asked, target) = (seam.now(), desk.begun.get() + 1);
            desk.company.ask();
            while desk.done.get() < target {
                if desk.running.replace(true) {
                    desk.changed.wait_for(|| (!desk.running.get()).then_some(())).await;
                    continue;
                }
                desk.company.gather(seam).await;
                let (number, start) = (desk.begun.get() + 1, seam.now());
                desk.begun.set(number);
                seam.sleep(Nanos::from_micros(RUN)).await;
                desk.company.ran(seam.now(), seam.now().since(start));
                desk.done.set(number);
                desk.running.set(false);
                desk.changed.notify();
            }
            desk.served.set(desk.served.get() + 1);
            desk.waited.set(desk.waited.get() + seam.now().since(asked).as_micros());
        }
        let world = World::new(WorldSpec::new(1));
        let (seam, desk) = (world.seam(), Rc::new(Desk::default()));
        for (number, pause) in clients.iter().copied().enumerate() {
            let (seam, desk) = (seam.clone(), Rc::clone(&desk));
            seam.clone().spawn(async move {
                seam.sleep(Nanos::from_micros(number as u64 * 37)).await;
                loop {
                    match pause {
                        Some(pause) => {
                            flush(&desk, &seam).await;
                            seam.sleep(Nanos::from_micros(pause)).await;
                        }
                        None => {
                            seam.sleep(Nanos::from_micros(seam.random() % 2000)).await;
                            let (seam, desk) = (seam.clone(), Rc::clone(&desk));
                            seam.clone().spawn(async move { flush(&desk, &seam).await });
                        }
                    }
                }
            });
        }
        world.block_on(async move { seam.sleep(Nanos::from_secs(1)).await });
        (desk.served.get(), desk.waited.get() / desk.served.get())
    }

    #[test]
    fn clients_that_ask_again_at_once_share_every_run() {
        let pauses: Vec<_> = (0..8).map(|client| Some(40 + 10 * client)).collect();
        let (served, _) = served(&pauses);
        assert!(served >= 8 * 1_000_000 / (RUN + 110 + 50), "{served} of eight clients");
    }

    #[test]
    fn one_alone_never_waits() {
        assert_eq!(served(&[Some(75)]), (2105, RUN));
    }

    #[test]
    fn nobody_waits_for_those_who_think_for_long() {
        let (_, waited) = served(&[Some(40), Some(5000), Some(7000), Some(9000)]);
        assert!(waited < RUN * 5 / 4, "{waited} us");
    }

    #[test]
    fn those_who_come_at_times_of_their_own_wait_little_longer_than_a_run_and_what_is_left_of_the_one_before() {
        let (_, waited) = served(&[None; 8]);
        assert!(waited < RUN * 7 / 4, "{waited} us");
    }
}
