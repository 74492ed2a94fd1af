//! Recovery of persisted memory that a killed process left, before the volume is served.

use flash::BlockNo;
use seam::persist::ShmImage;
use seam::{BLOCK_BYTES, RangeKind, Seam};

use crate::data_path::write::{BlockWrite, WriteMode};
use crate::memory::Sectors;
use crate::shard::{Shard, ShardRef, spans};
use crate::{ByteOffset, RequestError, WriteSource, ZeroFlags};

impl<S: Seam> Shard<S> {
    /// Recovers the blocks and ranges of `image` as dirty data; `source` returns the content for an index listed in
    /// [`ShmImage::blocks`]. Returns the number of recovered blocks and ranges. If the policy defers nothing, or if
    /// this process does not persist its memory, they are durable afterwards.
    pub async fn recover_memory<W: WriteSource<S>>(
        self: &ShardRef<S>,
        image: &ShmImage,
        mut source: impl FnMut(usize) -> W,
    ) -> Result<u64, RequestError> {
        let block_bytes = BLOCK_BYTES as u64;
        let mut recovered = 0;
        for range in &image.zeroes {
            // The volume's end may have moved since.
            let (at, end) = (range.start * block_bytes, (range.end * block_bytes).min(self.size_bytes.get()));
            if at < end {
                let flags = ZeroFlags {
                    may_unmap: range.kind == RangeKind::Zeroes { may_unmap: true },
                    ..ZeroFlags::default()
                };
                self.zero(ByteOffset(at), end - at, flags).await?;
                recovered += 1;
            }
        }
        for (tag, index) in &image.blocks {
            let block = BlockNo(tag.block);
            let inside = self.bytes_inside(block);
            let mut source = source(*index);
            self.wait_for_room(block.single()).await;
            for (start, len) in Sectors(tag.sectors).runs() {
                let len = len.min(inside.saturating_sub(start));
                if len > 0 {
                    self.recover_memory_run(ByteOffset::of(block).plus(start as u64), len, &mut source).await?;
                }
            }
            recovered += 1;
        }
        if recovered > 0 {
            self.notify_dirty_data(self.seam().now());
        }
        // Outdated records left out of the log count as a change too, until a flush has appended their tombstones.
        let is_due = recovered > 0 || self.state.borrow().log_tracker.has_changes();
        if is_due && (!self.defers_writes() || !self.seam().survives_restart()) {
            // The log answers the flush if there is one: the backing may take long.
            if self.uses_log() { self.flush_log().await? } else { self.flush_all().await? }
        }
        Ok(recovered)
    }

    async fn recover_memory_run(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: usize,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        for span in spans(at, len_bytes) {
            loop {
                if span.len_bytes < BLOCK_BYTES {
                    self.reload_for_partial_write(span.block).await?;
                }
                let mode = WriteMode {
                    is_transit: self.makes_transit_blocks(),
                    holds_acknowledged_data: true,
                    bypasses_log: false,
                    now: self.seam().now(),
                };
                if self.with_state(|state, memory| self.write_block(state, memory, &span, source, mode))
                    == BlockWrite::Written
                {
                    break;
                }
                self.wait_for_buffer().await;
            }
        }
        Ok(())
    }
}
