//! A log that fills: what lies in its oldest segments goes to the backings before anybody has to wait for room, of a few volumes at a time and
//! without haste. What was written again since lies in newer segments, and stays.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef};

/// Blocks that are brought at once, where memory has room for them.
const AT_ONCE: usize = 256;
/// Blocks that are on their way in all haste: enough for an array's disks to choose from, while the next portion is read from flash.
const UNDER_WAY_MAX: usize = 1_024;
/// Records that are looked at in one go.
const LOOK_MAX: usize = 4_096;
/// Pause before the same segments are looked at again for a volume.
const PAUSE: Nanos = Nanos::from_secs(1);
/// Parts of a volume that are not all written yet: one that is sent, and one of which the last is on its way.
const PARTS_MAX: u32 = 2;
/// Longest wait for a backing, before another volume has its turn.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// How often is looked whether there is more haste, or room.
const LOOK_EACH: Nanos = Nanos::from_millis(50);

/// What bringing a block is taken to cost until it has been seen: one of a disk's random writes.
const ASSUMED_NS: u64 = 3_000_000;
/// A pace is known after so much work.
const PACE_NS: u64 = 20_000_000;

/// How fast blocks lately reached the backing while something was done about it.
#[derive(Default)]
struct Pace {
    /// Parts that are at it, and since when any is, or since the pace was measured last.
    at_work: Cell<u32>,
    since: Cell<Nanos>,
    /// Nanoseconds of work before that, and blocks, since then.
    worked_ns: Cell<u64>,
    done: Cell<u64>,
    /// Nanoseconds that a block lately took; 0 = not known.
    block_ns: Cell<u64>,
}

impl Pace {
    fn begin(&self, now: Nanos) {
        if self.at_work.replace(self.at_work.get() + 1) == 0 {
            self.since.set(now);
        }
    }

    fn end(&self, now: Nanos) {
        self.at_work.set(self.at_work.get() - 1);
        if self.at_work.get() == 0 {
            self.worked_ns.set(self.worked_ns.get() + now.since(self.since.get()).0);
        }
    }

    /// `blocks` more are there; to be called while at work.
    fn note_done(&self, blocks: u64, now: Nanos) {
        let (done, worked) = (self.done.get() + blocks, self.worked_ns.get() + now.since(self.since.get()).0);
        self.done.set(done);
        if done > 0 && worked >= PACE_NS {
            let (latest, old) = (worked / done, self.block_ns.get());
            self.block_ns.set(if old == 0 { latest.max(1) } else { (3 * old + latest).div_ceil(4) });
            self.since.set(now);
            self.worked_ns.set(0);
            self.done.set(0);
        }
    }
}

/// What a volume has in the oldest segments of the log, on its way to the backing.
#[derive(Default)]
pub struct Ahead {
    /// Segments whose part is being brought or lately was, and when that ended.
    brought: RefCell<Vec<(Rc<BTreeSet<u32>>, Option<Nanos>)>>,
    /// A part is being sent.
    sending: Cell<bool>,
    /// Parts that are not all written yet.
    parts: Cell<u32>,
    /// Something was in the segments that were looked at last.
    holds_oldest: Cell<bool>,
    pace: Pace,
}

impl Ahead {
    /// True when something was in the oldest segments as they were looked at last: the log may wait for this volume.
    pub fn holds_oldest(&self) -> bool {
        self.holds_oldest.get()
    }

    /// How far apart a volume's writes of a block may come: from nothing where there is no `strain` to one and a half times the pace at which blocks
    /// are brought at 1,000.
    pub fn spacing(&self, strain: u64) -> u64 {
        let block_ns = Some(self.pace.block_ns.get()).filter(|known| *known > 0).unwrap_or(ASSUMED_NS);
        block_ns.saturating_mul(3 * strain) / 2_000
    }

    /// The next part of these segments that was not brought lately.
    fn next_part(&self, oldest: &[u32], now: Nanos) -> Option<Rc<BTreeSet<u32>>> {
        let mut brought = self.brought.borrow_mut();
        brought.retain(|(_, ended)| ended.is_none_or(|ended| now.since(ended) < PAUSE));
        let is_new = |segment: &&u32| !brought.iter().any(|(some, _)| some.contains(segment));
        let part: BTreeSet<u32> = oldest.iter().filter(is_new).take(oldest.len().div_ceil(2)).copied().collect();
        if part.is_empty() {
            return None;
        }
        let part = Rc::new(part);
        brought.push((Rc::clone(&part), None));
        Some(part)
    }

    fn note_end(&self, part: &Rc<BTreeSet<u32>>, now: Nanos) {
        let mut brought = self.brought.borrow_mut();
        brought.iter_mut().filter(|(other, _)| Rc::ptr_eq(other, part)).for_each(|(_, ended)| *ended = Some(now));
    }
}

/// What was sent and may not be written yet, in the order in which it was sent: who waits for it, and how many blocks they are.
#[derive(Default)]
struct UnderWay {
    waits: VecDeque<(Rc<WriteWait>, usize)>,
    blocks: usize,
    /// Anything was sent at all.
    any: bool,
}

impl<S: Seam> Shard<S> {
    /// Brings what of the volume lies in half of these segments, the oldest of the log, to the backing, in a task of its own. While the last of
    /// that is on its way the other half may begin. False where there is nothing to do, or it cannot be done now.
    pub fn bring_ahead(self: &ShardRef<S>, oldest: &[u32]) -> bool {
        let (now, ahead) = (self.seam().now(), &self.ahead);
        let may = !self.stopping.get() && !self.holding.get() && !self.retry.holds(now) && self.logs();
        // Who waits for a backing that does not answer waits at each block once for each part.
        if !may
            || ahead.sending.get()
            || ahead.parts.get() >= PARTS_MAX
            || self.state.borrow().ledger.len() == 0
            || !self.core.level.begin()
        {
            return false;
        }
        let Some(part) = ahead.next_part(oldest, now) else {
            self.core.level.end();
            return false;
        };
        ahead.sending.set(true);
        ahead.parts.set(ahead.parts.get() + 1);
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            let ahead = &shard.ahead;
            let losses = shard.state.borrow().losses;
            let mut under_way = UnderWay::default();
            shard.send_part(&part, &mut under_way).await;
            ahead.sending.set(false);
            shard.core.level.end();
            ahead.pace.begin(shard.seam().now());
            shard.see_written(&mut under_way, 0, None).await;
            ahead.pace.end(shard.seam().now());
            // Where the backing has lost something in between, it is for the next time to find what is dirty again.
            if under_way.any && !shard.stopping.get() && shard.state.borrow().losses == losses {
                shard.sync().await;
            }
            ahead.parts.set(ahead.parts.get() - 1);
            ahead.note_end(&part, shard.seam().now());
        });
        true
    }

    /// Sends what lies in these segments.
    async fn send_part(self: &ShardRef<S>, oldest: &BTreeSet<u32>, under_way: &mut UnderWay) {
        let mut from = Some(0);
        while let Some(start) = from {
            let (blocks, next) = self.state.borrow().ledger.some_in_segments(oldest, start, LOOK_MAX);
            let at_once = (self.unclean_limit_seen() as usize / 8).clamp(1, AT_ONCE);
            if !blocks.is_empty() {
                self.ahead.holds_oldest.set(true);
            }
            for some in blocks.chunks(at_once) {
                let begun = self.seam().now();
                while !self.stopping.get() && self.is_pressed(self.state.borrow().unclean()) {
                    if self.seam().now().since(begun) >= PATIENCE {
                        return;
                    }
                    self.seam().sleep(LOOK_EACH).await;
                }
                let begun = self.seam().now();
                self.ahead.pace.begin(begun);
                // What cannot be read or written is counted and shown, and tried again after the pause; it holds up nothing else.
                if let Ok(wait) = self.send(some).await {
                    under_way.waits.push_back((wait, some.len()));
                    under_way.blocks += some.len();
                    under_way.any = true;
                }
                let most = if self.core.log_haste_percent() < 100 { 0 } else { (3 * at_once).min(UNDER_WAY_MAX) };
                let goes_on = self.see_written(under_way, most, Some(PATIENCE)).await;
                self.ahead.pace.end(self.seam().now());
                if !goes_on {
                    return;
                }
                self.rest_since(begun).await;
            }
            self.seam().yield_now().await;
            from = next;
        }
        self.ahead.holds_oldest.set(under_way.any);
    }

    /// Waits until no more than `most` blocks are still on their way, for each of them no longer than `patience`. False when that was not enough,
    /// or nobody serves the volume any more.
    async fn see_written(self: &ShardRef<S>, under_way: &mut UnderWay, most: usize, patience: Option<Nanos>) -> bool {
        while under_way.blocks > most && !self.stopping.get() {
            let (wait, blocks) = under_way.waits.front().expect("there is more than `most`");
            let blocks = *blocks;
            if !self.in_time(wait.all(), patience).await {
                return false;
            }
            under_way.waits.pop_front();
            under_way.blocks -= blocks;
            self.ahead.pace.note_done(blocks as u64, self.seam().now());
        }
        !self.stopping.get()
    }

    /// Rests as long as there is no haste, after something that has taken the time since `begun`.
    async fn rest_since(self: &ShardRef<S>, begun: Nanos) {
        let (done, taken) = (self.seam().now(), self.seam().now().since(begun));
        let rest = || {
            let percent = self.core.log_haste_percent().max(1);
            Nanos(taken.0 * (100 - percent) / percent)
        };
        while !self.stopping.get() && self.seam().now().since(done) < rest() {
            self.seam().sleep(rest().min(LOOK_EACH)).await;
        }
    }

    /// Waits no longer than the volume is served, for whoever would be waited for may have gone with it, nor longer than `patience`: a backing may not
    /// answer. False when it was one of these.
    async fn in_time<T>(&self, future: impl Future<Output = T>, patience: Option<Nanos>) -> bool {
        let stopped = self.progress.wait_for(|| self.stopping.get().then_some(()));
        let late = async {
            match patience {
                Some(patience) => self.seam().sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        let (mut stopped, mut future, mut late) = (pin!(stopped), pin!(future), pin!(late));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if stopped.as_mut().poll(context).is_ready() => Poll::Ready(false),
            Poll::Pending => late.as_mut().poll(context).map(|()| false),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_that_of_the_time_at_work_however_many_are_at_it() {
        let (ahead, mut now) = (Ahead::default(), Nanos::from_secs(1));
        let in_us = |ahead: &Ahead, strain| ahead.spacing(strain) / 1_000;
        assert_eq!(in_us(&ahead, 1_000), 4_500, "nothing is known");
        for _ in 0..40 {
            // Two at once bring a hundred each in a second; then there is a minute without work.
            ahead.pace.begin(now);
            ahead.pace.begin(now);
            now += Nanos::from_secs(1);
            ahead.pace.note_done(100, now);
            ahead.pace.end(now);
            ahead.pace.note_done(100, now);
            ahead.pace.end(now);
            now += Nanos::from_secs(60);
        }
        assert!((7_400..7_600).contains(&in_us(&ahead, 1_000)), "{}", in_us(&ahead, 1_000));
    }
}
