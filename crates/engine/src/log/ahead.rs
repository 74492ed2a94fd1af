//! A log that fills: what lies in its oldest segments goes to the backings before anybody has to wait for room, one volume after the other and
//! without haste. What was written again since lies in newer segments, and stays.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::RequestError;
use crate::shard::{Shard, ShardRef};

/// Blocks that are brought at once, where memory has room for them.
const AT_ONCE: usize = 256;
/// Records that are looked at in one go.
const LOOK_MAX: usize = 4_096;
/// Pause before the same segments are looked at again for a volume.
const PAUSE: Nanos = Nanos::from_secs(1);
/// How often is looked whether there is more haste, or room.
const LOOK_EACH: Nanos = Nanos::from_millis(50);

impl<S: Seam> Shard<S> {
    /// Brings what of the volume lies in these segments, the oldest of the log, to the backing, in a task of its own.
    pub fn bring_ahead(self: &ShardRef<S>, oldest: &Rc<BTreeSet<u32>>) {
        let now = self.seam().now();
        let may = !self.stopping.get() && !self.holding.get() && !self.retry.holds(now);
        if self.core.bringing.get() || !may || !self.logs() || self.state.borrow().ledger.len() == 0 {
            return;
        }
        let (seen, at) = &mut *self.brought.borrow_mut();
        if seen == oldest && now.since(*at) < PAUSE {
            return;
        }
        (*seen, *at) = (Rc::clone(oldest), now);
        self.core.bringing.set(true);
        let (shard, oldest) = (Rc::clone(self), Rc::clone(oldest));
        self.seam().spawn(async move {
            // A failure is counted and shown; it is tried again after the pause.
            drop(shard.bring_from(&oldest).await);
            shard.core.bringing.set(false);
        });
    }

    async fn bring_from(self: &ShardRef<S>, oldest: &BTreeSet<u32>) -> Result<(), RequestError> {
        let losses = self.state.borrow().losses;
        let mut from = Some(0);
        while let Some(start) = from {
            let (blocks, next) = self.state.borrow().ledger.some_in_segments(oldest, start, LOOK_MAX);
            let at_once = (self.unclean_limit_seen() as usize / 8).clamp(1, AT_ONCE);
            for some in blocks.chunks(at_once) {
                if !self.bring_some(some).await? {
                    return Ok(());
                }
            }
            self.seam().yield_now().await;
            from = next;
        }
        // Where the backing has lost something in between, it is for the next time to find what is dirty again.
        if self.state.borrow().losses == losses && !self.stopping.get() {
            self.sync().await;
        }
        Ok(())
    }

    /// Brings a few, and rests for as long as there is no haste. False when the volume is served no longer.
    async fn bring_some(self: &ShardRef<S>, some: &[u64]) -> Result<bool, RequestError> {
        while !self.stopping.get() && !self.has_room_to_recall(&self.state.borrow()) {
            self.seam().sleep(LOOK_EACH).await;
        }
        let begun = self.seam().now();
        let wait = self.send(some).await?;
        match self.unless_stopped(wait.all()).await {
            Some(written) => written?,
            None => return Ok(false),
        }
        let (done, taken) = (self.seam().now(), self.seam().now().since(begun));
        let rest = || {
            let percent = self.core.log_haste_percent();
            Nanos(taken.0 * (100 - percent) / percent)
        };
        while !self.stopping.get() && self.seam().now().since(done) < rest() {
            self.seam().sleep(rest().min(LOOK_EACH)).await;
        }
        Ok(!self.stopping.get())
    }

    /// Waits no longer than the volume is served: whoever would be waited for may have gone with it.
    async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let stopped = self.progress.wait_for(|| self.stopping.get().then_some(()));
        let (mut stopped, mut future) = (pin!(stopped), pin!(future));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => stopped.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
