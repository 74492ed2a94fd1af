//! What a killed process left in memory, taken back before anybody asks for the volume.

use seam::kept::Left;
use seam::{BLOCK_BYTES, RangeKind, Seam};

use super::write::How;
use super::{Shard, ShardRef, spans};
use crate::memory::Sectors;
use crate::{RequestError, WriteSource, ZeroFlags};

impl<S: Seam> Shard<S> {
    /// Makes dirty again what `left` says; `source` gives the content of the block at a place. Returns how many blocks and ranges that
    /// were. Where the policy defers nothing, or this process's memory goes with it, it is durable afterwards.
    pub async fn take_back<W: WriteSource<S>>(
        self: &ShardRef<S>,
        left: &Left,
        mut source: impl FnMut(usize) -> W,
    ) -> Result<u64, RequestError> {
        let block_bytes = BLOCK_BYTES as u64;
        let mut taken = 0;
        for range in &left.zeroes {
            // The end may have moved since.
            let (at, end) = (range.start * block_bytes, (range.end * block_bytes).min(self.size_bytes.get()));
            if at < end {
                let flags = ZeroFlags {
                    may_unmap: range.kind == RangeKind::Zeroes { may_unmap: true },
                    ..ZeroFlags::default()
                };
                self.zero(at, end - at, flags).await?;
                taken += 1;
            }
        }
        for (note, place) in &left.blocks {
            let inside = self.bytes_inside(note.block);
            let mut source = source(*place);
            self.make_room(note.block..note.block + 1).await;
            for (start, len) in Sectors(note.sectors).runs() {
                let len = len.min(inside.saturating_sub(start));
                if len > 0 {
                    self.take_back_run(note.block * block_bytes + start as u64, len, &mut source).await?;
                }
            }
            taken += 1;
        }
        if taken > 0 {
            self.note_dirty(self.seam().now());
        }
        // What was left out of the log as out of date is, too, until a flush has buried it.
        let is_due = taken > 0 || self.state.borrow().ledger.has_changed();
        if is_due && (!self.defers_writes() || !self.seam().keeps()) {
            // Where there is a log it answers: the backing may take long.
            if self.logs() { self.flush_log().await? } else { self.flush_all().await? }
        }
        Ok(taken)
    }

    async fn take_back_run(
        self: &ShardRef<S>,
        at: u64,
        len: usize,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        for span in spans(at, len) {
            loop {
                if span.len < BLOCK_BYTES {
                    self.recall_to_change(span.block.0).await?;
                }
                let how = How { keep: self.keeps_writes(), owed: true, now: self.seam().now() };
                if self.with(|state, memory| self.absorb(state, memory, &span, source, how)).is_some() {
                    break;
                }
                drop(self.core.alloc().await);
            }
        }
        Ok(())
    }
}
