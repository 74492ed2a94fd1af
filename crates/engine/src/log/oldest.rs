//! Room in a full log: its tail is linear, so what holds its oldest segments is brought to the backing first, and nothing else need be.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use seam::{Nanos, Seam};

use crate::RequestError;
use crate::memory::{BlockNo, Sectors};
use crate::shard::recall::Recall;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef};

/// Blocks that are brought at once, where memory has room for them.
const AT_ONCE: usize = 256;
/// Resting blocks that are recalled together.
const RECALL_RUN: u64 = 64;
/// Pause before segments that were brought, or could not be, are looked at again; and the longest between two of their parts.
const PAUSE: Nanos = Nanos::from_secs(1);

impl<S: Seam> Shard<S> {
    /// Brings what of the volume lies in these segments, the oldest of the log, to the backing, in a task of its own and without haste. What was
    /// written again since lies farther ahead, and stays.
    pub fn bring_soon(self: &ShardRef<S>, oldest: &BTreeSet<u32>) {
        let busy = self.bringing.get() || self.stopping.get() || self.holding.get();
        if busy || !self.logs() {
            return;
        }
        let now = self.seam().now();
        let (seen, at) = &mut *self.brought.borrow_mut();
        if seen == oldest && now.since(*at) < PAUSE {
            return;
        }
        (*seen, *at) = (oldest.clone(), now);
        self.bringing.set(true);
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            // A failure is counted and shown; it is tried again after the pause.
            drop(shard.bring_oldest(|| Some(shard.core.log_haste_percent())).await);
            shard.bringing.set(false);
        });
    }

    /// Brings what of this volume holds the oldest part of the log durably to the backing. What is on its way or in doubt there is left to
    /// who brings everything. `haste`: the part of the time that it may take, in percent; `None` for all.
    pub(super) async fn bring_oldest(self: &ShardRef<S>, haste: impl Fn() -> Option<u64>) -> Result<(), RequestError> {
        let Some(store) = self.core.log() else { return Err(RequestError::ShuttingDown) };
        let blocks = self.state.borrow().ledger.in_segments(&store.oldest_segments());
        if blocks.is_empty() {
            return Ok(());
        }
        let losses = self.state.borrow().losses;
        let at_once = (self.unclean_limit_seen() as usize / 4).clamp(1, AT_ONCE);
        for some in blocks.chunks(at_once) {
            let begun = self.seam().now();
            for run in some.chunk_by(|block, next| block + 1 == *next) {
                self.recall_oldest(run[0]..run[0] + run.len() as u64).await?;
            }
            let wait = Rc::new(WriteWait::default());
            self.with(|state, memory| {
                for block in some {
                    let id = memory.find(self.number, BlockNo(*block));
                    if id.is_some_and(|id| memory.slot(id).dirty.is_some()) {
                        state.await_write(*block, &wait);
                    }
                }
            });
            let Some(written) = self.unless_stopped(self.await_written(Some(wait), false, losses)).await else {
                return Ok(());
            };
            written?;
            if let Some(percent) = haste().filter(|percent| *percent < 100) {
                let taken = self.seam().now().since(begun);
                let rest = Nanos(taken.0 * (100 - percent) / percent).min(PAUSE);
                if self.unless_stopped(self.seam().sleep(rest)).await.is_none() {
                    return Ok(());
                }
            }
        }
        self.unless_stopped(self.sync_or_flush(losses)).await.unwrap_or(Ok(()))
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

    /// Brings what rests of these blocks into memory, as far as nobody else is at it.
    async fn recall_oldest(self: &ShardRef<S>, blocks: Range<u64>) -> Result<(), RequestError> {
        let mut next = blocks.start;
        while next < blocks.end {
            let run = {
                let state = self.state.borrow();
                let free = |block: u64| state.ticket_for(BlockNo(block), Sectors::ALL).is_none();
                state.ledger.next_resting(next, RECALL_RUN, RECALL_RUN, free)
            };
            let Some(run) = run.filter(|run| run.start < blocks.end) else { return Ok(()) };
            let run = run.start..run.end.min(blocks.end);
            next = run.end;
            self.recall(run, Recall::Destage).await?;
        }
        Ok(())
    }
}
