//! A log that fills: what lies in its oldest segments goes to the backings before anybody has to wait for room, of a few volumes at a time and
//! without haste. What was written again since lies in newer segments, and stays.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::RequestError;
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
/// Volumes of which something is brought at the same time.
const VOLUMES_MAX: u32 = 8;
/// Longest wait for a backing, before another volume's part is brought.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// How often is looked whether there is more haste, or room.
const LOOK_EACH: Nanos = Nanos::from_millis(50);

/// What is under way, in the order in which it was sent: who waits for it, and how many blocks they are.
type UnderWay = VecDeque<(Rc<WriteWait>, usize)>;

impl<S: Seam> Shard<S> {
    /// Brings what of the volume lies in half of these segments, the oldest of the log, to the backing, in a task of its own. While the last of
    /// that is on its way the other half may begin.
    pub fn bring_ahead(self: &ShardRef<S>, oldest: &[u32]) {
        let now = self.seam().now();
        let may = !self.stopping.get() && !self.holding.get() && !self.retry.holds(now);
        if self.core.bringing.get() >= VOLUMES_MAX
            || self.bringing.get()
            || !may
            || !self.logs()
            || self.state.borrow().ledger.len() == 0
        {
            return;
        }
        let mut brought = self.brought.borrow_mut();
        brought.retain(|(_, ended)| ended.is_none_or(|ended| now.since(ended) < PAUSE));
        let is_new = |segment: &&u32| !brought.iter().any(|(some, _)| some.contains(segment));
        let some: BTreeSet<u32> = oldest.iter().filter(is_new).take(oldest.len().div_ceil(2)).copied().collect();
        if some.is_empty() {
            return;
        }
        let some = Rc::new(some);
        brought.push((Rc::clone(&some), None));
        self.bringing.set(true);
        self.core.bringing.set(self.core.bringing.get() + 1);
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            let losses = shard.state.borrow().losses;
            let mut under_way = UnderWay::new();
            let sent = shard.bring_from(&some, &mut under_way).await;
            // One at most is waited for while the next is sent.
            let alone = shard.progress.wait_for(|| (!shard.finishing.get()).then_some(()));
            let alone = shard.in_time(alone).await.is_some();
            shard.bringing.set(false);
            shard.core.bringing.set(shard.core.bringing.get() - 1);
            if sent.is_ok() && alone {
                shard.finishing.set(true);
                // A failure is counted and shown; it is tried again after the pause.
                drop(shard.finish(under_way, losses).await);
                shard.finishing.set(false);
                shard.progress.notify();
            }
            let now = shard.seam().now();
            let mut brought = shard.brought.borrow_mut();
            brought.iter_mut().filter(|(other, _)| Rc::ptr_eq(other, &some)).for_each(|(_, ended)| *ended = Some(now));
        });
    }

    /// Sends what lies in these segments.
    async fn bring_from(
        self: &ShardRef<S>,
        oldest: &BTreeSet<u32>,
        under_way: &mut UnderWay,
    ) -> Result<(), RequestError> {
        let (mut from, mut found) = (Some(0), false);
        while let Some(start) = from {
            let (blocks, next) = self.state.borrow().ledger.some_in_segments(oldest, start, LOOK_MAX);
            let at_once = (self.unclean_limit_seen() as usize / 8).clamp(1, AT_ONCE);
            if !blocks.is_empty() {
                found = true;
                self.holds_oldest.set(true);
            }
            for some in blocks.chunks(at_once) {
                let begun = self.seam().now();
                while !self.stopping.get() && self.is_pressed(self.state.borrow().unclean()) {
                    if self.seam().now().since(begun) >= PATIENCE {
                        return Ok(());
                    }
                    self.seam().sleep(LOOK_EACH).await;
                }
                let begun = self.seam().now();
                under_way.push_back((self.send(some).await?, some.len()));
                let most = if self.core.log_haste_percent() < 100 { 0 } else { (3 * at_once).min(UNDER_WAY_MAX) };
                if !self.see_written(under_way, most).await? {
                    return Ok(());
                }
                self.rest_since(begun).await;
            }
            self.seam().yield_now().await;
            from = next;
        }
        self.holds_oldest.set(found);
        Ok(())
    }

    async fn finish(self: &ShardRef<S>, mut under_way: UnderWay, losses: u64) -> Result<(), RequestError> {
        // Where the backing has lost something in between, it is for the next time to find what is dirty again.
        if self.see_written(&mut under_way, 0).await? && self.state.borrow().losses == losses {
            self.sync().await;
        }
        Ok(())
    }

    /// Waits until no more than `most` blocks are still on their way. False when nothing comes of it.
    async fn see_written(self: &ShardRef<S>, under_way: &mut UnderWay, most: usize) -> Result<bool, RequestError> {
        while under_way.iter().map(|(_, blocks)| blocks).sum::<usize>() > most && !self.stopping.get() {
            let (wait, _) = under_way.pop_front().expect("there is more than `most`");
            match self.in_time(wait.all()).await {
                Some(written) => written?,
                None => return Ok(false),
            }
        }
        Ok(!self.stopping.get())
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

    /// Waits no longer than the volume is served, for whoever would be waited for may have gone with it; nor for a backing that does not answer:
    /// other volumes have their turn.
    async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let stopped = self.progress.wait_for(|| self.stopping.get().then_some(()));
        let (mut stopped, mut future, mut late) = (pin!(stopped), pin!(future), pin!(self.seam().sleep(PATIENCE)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if stopped.as_mut().poll(context).is_ready() => Poll::Ready(None),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
