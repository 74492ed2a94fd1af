//! The requests of clients, aligned to sectors. Each goes to the volume that serves the client now ([`Route`]).

use seam::{AllocationExtent, BLOCK_BYTES, Piece, Seam};

use super::Volume;
use super::succession::{Access, Route};
use crate::backing::Cause;
use crate::policy::InsertKind;
use crate::shard::blocks_of;
use crate::telemetry::{LatencyTrace, OpKind, Step};
use crate::{ByteOffset, RequestError, WriteFlags, WriteSource, ZeroFlags};

/// Longest prefetch of one request, in bytes; the rest is left out.
const PREFETCH_BYTES_MAX: u64 = 32 << 20;

impl<S: Seam> Volume<S> {
    /// Reads `len_bytes` bytes from `at` on if all are in memory: appends them to `out` and returns true. Otherwise it
    /// leaves `out` unchanged. Returns false for a request that [`Volume::read`] would refuse.
    pub fn try_read(&self, at: ByteOffset, len_bytes: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        let volume = self.current();
        let is_allowed = volume.is_free() && volume.check_range(at, len_bytes as u64).is_ok();
        is_allowed && volume.0.shard.try_read(at, len_bytes, out)
    }

    /// Reads `len_bytes` bytes from `at` on and appends them to `out`, split at block boundaries.
    pub async fn read(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
    ) -> Result<(), RequestError> {
        self.read_with(at, len_bytes, out, true).await
    }

    /// Like [`Volume::read`], for content that will not be read again: blocks that miss are not cached.
    pub async fn read_once(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
    ) -> Result<(), RequestError> {
        self.read_with(at, len_bytes, out, false).await
    }

    /// Reads under the volume's limit and gate; `may_admit`: blocks that miss may be cached.
    async fn read_with(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
        may_admit: bool,
    ) -> Result<(), RequestError> {
        let pieces_before = out.len();
        let mut route = Route::new(self, Access::Read);
        loop {
            let result = route.volume().await?.read_here(at, len_bytes, out, may_admit).await;
            if !route.is_refused(&result) {
                return result;
            }
            // It may have read a part.
            out.truncate(pieces_before);
        }
    }

    async fn read_here(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
        may_admit: bool,
    ) -> Result<(), RequestError> {
        let trace = LatencyTrace::new(self.now());
        self.wait_for_limit(len_bytes as u64, &trace).await;
        let _inside = self.enter().await?;
        self.check_range(at, len_bytes as u64)?;
        trace.record(Step::Gate, self.now());
        let result = self.0.shard.read(at, len_bytes, out, may_admit, &trace).await;
        let now = self.now();
        self.0.shard.counters.read_latency.add(trace.elapsed(now), trace.held_time());
        self.0.shard.slow_requests.record(&trace, OpKind::Read, at, len_bytes as u64, now);
        self.count_error(result)
    }

    /// Buffers for the content of a write of whole blocks ([`crate::OwnedBlocks`]); `None` if too few are free now.
    pub fn try_alloc_buffers(&self, count: usize) -> Option<Vec<S::BlockMut>> {
        self.current().0.shard.with_state(|_, memory| (0..count).map(|_| memory.alloc()).collect())
    }

    /// Writes if that needs no waiting. Otherwise it returns false, and the caller makes the same write by
    /// [`Volume::write`].
    pub fn try_write(&self, at: ByteOffset, len_bytes: usize, source: &mut impl WriteSource<S>) -> bool {
        let volume = self.current();
        let is_allowed =
            !volume.0.spec.is_standby && volume.is_free() && volume.check_write(at, len_bytes as u64).is_ok();
        let is_written = is_allowed
            && volume.0.locks.is_free(&at.range_of_len(len_bytes as u64))
            && volume.0.shard.try_write(at, len_bytes, source);
        if is_written {
            self.1.record_change();
        }
        is_written
    }

    /// Writes `len_bytes` bytes at `at`.
    pub async fn write(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        let mut route = Route::new(self, Access::Change);
        loop {
            let result = route.volume().await?.write_here(at, len_bytes, flags, source).await;
            // A volume that refuses the write has not used the source.
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    async fn write_here(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        let trace = LatencyTrace::new(self.now());
        self.wait_for_limit(len_bytes as u64, &trace).await;
        let _inside = self.enter().await?;
        self.check_write(at, len_bytes as u64)?;
        let _range_lock = self.0.locks.lock_shared(at.range_of_len(len_bytes as u64)).await;
        trace.record(Step::Gate, self.now());
        let result = self.0.shard.write(at, len_bytes, flags, source, &trace).await;
        self.0.shard.slow_requests.record(&trace, OpKind::Write, at, len_bytes as u64, self.now());
        self.count_error(result)
    }

    /// Makes all writes acknowledged before this call durable. Under `write-back-volatile` it makes nothing durable, by
    /// definition.
    pub async fn flush(&self) -> Result<(), RequestError> {
        let mut route = Route::new(self, Access::Read);
        loop {
            let result = route.volume().await?.flush_here().await;
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    async fn flush_here(&self) -> Result<(), RequestError> {
        if self.0.spec.is_standby {
            // No client has changed it here; what its owner has acknowledged is the owner's to flush.
            return Ok(());
        }
        let trace = LatencyTrace::new(self.now());
        let _inside = self.enter().await?;
        trace.record(Step::Gate, self.now());
        let step = if self.0.shard.flush_involves_log() { Step::Log } else { Step::Destage };
        let result = self.0.shard.flush().await;
        trace.record(step, self.now());
        self.0.shard.slow_requests.record(&trace, OpKind::Flush, ByteOffset::ZERO, 0, self.now());
        self.count_error(result)
    }

    /// Makes `len_bytes` bytes from `at` on read as zeroes.
    pub async fn zero(&self, at: ByteOffset, len_bytes: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        let mut route = Route::new(self, Access::Change);
        loop {
            let result = route.volume().await?.zero_here(at, len_bytes, flags).await;
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    async fn zero_here(&self, at: ByteOffset, len_bytes: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        // One request that moves no data, regardless of its length.
        self.wait_for_limit(0, &LatencyTrace::new(self.now())).await;
        let _inside = self.enter().await?;
        self.check_write(at, len_bytes)?;
        let _range_lock = self.0.locks.lock_shared(at.range_of_len(len_bytes)).await;
        let result = self.0.shard.zero(at, len_bytes, flags).await;
        self.count_error(result)
    }

    /// Releases `len_bytes` bytes from `at` on; they read as zeroes afterwards.
    pub async fn discard(&self, at: ByteOffset, len_bytes: u64, flags: WriteFlags) -> Result<(), RequestError> {
        self.zero(at, len_bytes, ZeroFlags { fua: flags.fua, may_unmap: true, fast_only: false }).await
    }

    /// Reads `len_bytes` bytes from `at` on into memory, as far as there is room. It is a hint: the only error is
    /// [`RequestError::Invalid`].
    pub async fn prefetch(&self, at: ByteOffset, len_bytes: u64) -> Result<(), RequestError> {
        let mut route = Route::new(self, Access::Read);
        loop {
            let result = route.volume().await?.prefetch_here(at, len_bytes).await;
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    async fn prefetch_here(&self, at: ByteOffset, len_bytes: u64) -> Result<(), RequestError> {
        let _inside = self.enter().await?;
        self.check_range(at, len_bytes)?;
        let half_of_memory = (self.0.shard.seam().blocks_total() * BLOCK_BYTES / 2) as u64;
        let blocks = blocks_of(at, len_bytes.min(PREFETCH_BYTES_MAX).min(half_of_memory).max(1));
        self.0.shard.fill_absent(blocks, InsertKind::Normal, Cause::Readahead).await;
        Ok(())
    }

    /// Allocation status of `len_bytes` bytes from `at` on, as runs that cover a prefix of it (at least one run). Never
    /// reports zero or hole where the newest content differs (R4, docs/rules.md).
    pub async fn allocation(&self, at: ByteOffset, len_bytes: u64) -> Result<Vec<AllocationExtent>, RequestError> {
        let mut route = Route::new(self, Access::Read);
        loop {
            let result = route.volume().await?.allocation_here(at, len_bytes).await;
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    async fn allocation_here(&self, at: ByteOffset, len_bytes: u64) -> Result<Vec<AllocationExtent>, RequestError> {
        let _inside = self.enter().await?;
        self.check_range(at, len_bytes)?;
        let result = self.0.shard.allocation(at, len_bytes).await;
        self.count_error(result)
    }
}
