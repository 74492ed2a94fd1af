//! Requests at any byte offset, for protocols without an alignment (NBD). Internally, sectors of 512 bytes are the
//! smallest unit.
//!
//! A read covers the sectors around its range and drops the surplus bytes. A write of a part of a sector reads the
//! sector, changes its bytes and writes it whole. Meanwhile its range is locked against all other writes of the volume.
//! Two clients can therefore write different bytes of one sector at the same time without losing either change. Zeroes
//! are written this way only at their edges; a discard leaves its edges unchanged.

use std::ops::Range;

use seam::{AllocationExtent, Block, BlockMut, Piece, SECTOR_BYTES, Seam};

use super::Volume;
use super::succession::{Access, Route};
use crate::telemetry::{LatencyTrace, OpKind, Step};
use crate::{ByteOffset, RequestError, WriteFlags, WriteSource, ZeroFlags};

/// Bytes in a sector.
const SECTOR: u64 = SECTOR_BYTES as u64;

impl<S: Seam> Volume<S> {
    /// Like [`Volume::try_read`], for any bytes.
    pub fn try_read_bytes(&self, at: ByteOffset, len_bytes: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        let Ok(around) = round_out(at, len_bytes as u64) else { return false };
        let before = out.len();
        let is_read = self.try_read(around.start, len_usize(&around), out);
        if is_read {
            trim_pieces(out, before, at.distance_from(around.start) as usize, len_bytes);
        }
        is_read
    }

    /// Like [`Volume::read`], for any bytes.
    pub async fn read_bytes(
        &self,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
    ) -> Result<(), RequestError> {
        let (around, before) = (round_out(at, len_bytes as u64)?, out.len());
        self.read(around.start, len_usize(&around), out).await?;
        trim_pieces(out, before, at.distance_from(around.start) as usize, len_bytes);
        Ok(())
    }

    /// Like [`Volume::write`], for any bytes.
    pub async fn write_bytes(&self, at: ByteOffset, bytes: &[u8], flags: WriteFlags) -> Result<(), RequestError> {
        let around = round_out(at, bytes.len() as u64)?;
        if around == at.range_of_len(bytes.len() as u64) {
            return self.write(at, bytes.len(), flags, &mut &bytes[..]).await;
        }
        let mut route = Route::new(self, Access::Change);
        loop {
            let result = route.volume().await?.write_edges_here(&around, at, bytes, flags).await;
            if !route.is_refused(&result) {
                return result;
            }
        }
    }

    /// Writes bytes that do not fill the sectors `around`.
    async fn write_edges_here(
        &self,
        around: &Range<ByteOffset>,
        at: ByteOffset,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(), RequestError> {
        let trace = LatencyTrace::new(self.now());
        self.wait_for_limit(bytes.len() as u64, &trace).await;
        let _inside = self.enter().await?;
        self.check_write(around.start, len_u64(around))?;
        let _range_lock = self.0.locks.lock_exclusive(around.clone()).await;
        trace.record(Step::Gate, self.now());
        let result = self.write_merged(around, at, bytes, flags, &trace).await;
        self.0.shard.slow_requests.record(&trace, OpKind::Write, at, bytes.len() as u64, self.now());
        self.count_error(result)
    }

    /// Writes the sectors `around` with `bytes` merged into them. The caller has locked the range.
    async fn write_merged(
        &self,
        around: &Range<ByteOffset>,
        at: ByteOffset,
        bytes: &[u8],
        flags: WriteFlags,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        let (len, last_sector) = (len_usize(around), ByteOffset(around.end.0 - SECTOR));
        let mut merged = MergedSectors(vec![0; len]);
        if at > around.start {
            self.read_sector(around.start, &mut merged.0[..SECTOR_BYTES], trace).await?;
        }
        let ends_inside = at.plus(bytes.len() as u64) < around.end;
        if ends_inside && (last_sector > around.start || at == around.start) {
            self.read_sector(last_sector, &mut merged.0[len - SECTOR_BYTES..], trace).await?;
        }
        merged.0[at.distance_from(around.start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.0.shard.write(around.start, len, flags, &mut merged, trace).await
    }

    /// Reads one sector for a write that changes a part of it.
    async fn read_sector(&self, at: ByteOffset, into: &mut [u8], trace: &LatencyTrace) -> Result<(), RequestError> {
        let mut pieces = Vec::new();
        self.0.shard.read_for_partial_write(at, SECTOR_BYTES, &mut pieces, trace).await?;
        let [piece] = &pieces[..] else { unreachable!("a sector lies in one block") };
        piece.block.read_bytes(piece.start(), into);
        Ok(())
    }

    /// Like [`Volume::zero`], for any bytes.
    pub async fn zero_bytes(&self, at: ByteOffset, len_bytes: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        let around = round_out(at, len_bytes)?;
        self.current().check_write(around.start, len_u64(&around))?;
        let (end, inside) = (at.plus(len_bytes), round_in(at, len_bytes));
        let write = WriteFlags { fua: flags.fua, ..WriteFlags::default() };
        if inside.is_empty() {
            // The range contains no whole sector.
            return self.write_bytes(at, &vec![0; len_bytes as usize], write).await;
        }
        // The whole sectors come first: only this call may fail because the backing has no fast zeroes.
        self.zero(inside.start, len_u64(&inside), flags).await?;
        for edge in [at..inside.start, inside.end..end] {
            if !edge.is_empty() {
                self.write_bytes(edge.start, &vec![0; len_usize(&edge)], write).await?;
            }
        }
        Ok(())
    }

    /// Like [`Volume::discard`], for the whole sectors in the range; the edges stay unchanged.
    pub async fn discard_bytes(&self, at: ByteOffset, len_bytes: u64, flags: WriteFlags) -> Result<(), RequestError> {
        let (around, inside) = (round_out(at, len_bytes)?, round_in(at, len_bytes));
        self.current().check_write(around.start, len_u64(&around))?;
        if inside.is_empty() {
            return Ok(());
        }
        self.discard(inside.start, len_u64(&inside), flags).await
    }

    /// Like [`Volume::prefetch`], for any bytes.
    pub async fn prefetch_bytes(&self, at: ByteOffset, len_bytes: u64) -> Result<(), RequestError> {
        let around = round_out(at, len_bytes)?;
        self.prefetch(around.start, len_u64(&around)).await
    }

    /// Like [`Volume::allocation`], for any bytes: runs that cover a prefix of them.
    pub async fn allocation_bytes(
        &self,
        at: ByteOffset,
        len_bytes: u64,
    ) -> Result<Vec<AllocationExtent>, RequestError> {
        let around = round_out(at, len_bytes)?;
        let mut runs = self.allocation(around.start, len_u64(&around)).await?;
        let (mut skipped, mut remaining) = (at.distance_from(around.start), len_bytes);
        for run in &mut runs {
            run.len_bytes -= std::mem::take(&mut skipped);
            run.len_bytes = run.len_bytes.min(remaining);
            remaining -= run.len_bytes;
        }
        runs.retain(|run| run.len_bytes > 0);
        Ok(runs)
    }
}

/// The range rounded out to whole sectors.
fn round_out(at: ByteOffset, len_bytes: u64) -> Result<Range<ByteOffset>, RequestError> {
    let end = at.checked_plus(len_bytes).and_then(|end| end.checked_align_up(SECTOR)).ok_or(RequestError::Invalid)?;
    if len_bytes == 0 { Err(RequestError::Invalid) } else { Ok(at.align_down(SECTOR)..end) }
}

/// The range rounded in to whole sectors; empty if it contains none.
fn round_in(at: ByteOffset, len_bytes: u64) -> Range<ByteOffset> {
    at.align_up(SECTOR)..at.plus(len_bytes).align_down(SECTOR)
}

/// Length of a range in bytes, of a request that is in memory.
fn len_usize(range: &Range<ByteOffset>) -> usize {
    len_u64(range) as usize
}

/// Length of a range in bytes.
fn len_u64(range: &Range<ByteOffset>) -> u64 {
    range.end.distance_from(range.start)
}

/// Trims the pieces from `first_piece` on to the `len` bytes after the first `skipped_bytes`. Less than a sector is cut
/// at each end.
fn trim_pieces<B>(pieces: &mut [Piece<B>], first_piece: usize, skipped_bytes: usize, len: usize) {
    let pieces = &mut pieces[first_piece..];
    let surplus = pieces.iter().map(Piece::len).sum::<usize>() - skipped_bytes - len;
    assert!(skipped_bytes < SECTOR_BYTES && surplus < SECTOR_BYTES, "more than the edges of sectors is left out");
    if let Some(piece) = pieces.first_mut() {
        piece.start += skipped_bytes as u16;
        piece.len -= skipped_bytes as u16;
    }
    if let Some(piece) = pieces.last_mut() {
        piece.len -= surplus as u16;
    }
}

/// Sectors of which the first and the last may mix old and new bytes.
struct MergedSectors(Vec<u8>);

impl<S: Seam> WriteSource<S> for MergedSectors {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        // A simulated client fills each sector with one repeated tag. A mixed sector is stored byte by byte, like
        // metadata.
        block.write_metadata(at, &self.0[from..from + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_rounded_out_and_in_to_sectors() {
        let range = |start, end| ByteOffset(start)..ByteOffset(end);
        let rounded = |at, len| (round_out(ByteOffset(at), len), round_in(ByteOffset(at), len));
        assert_eq!(rounded(0, 512), (Ok(range(0, 512)), range(0, 512)));
        assert_eq!(rounded(511, 514), (Ok(range(0, 1536)), range(512, 1024)));
        for (at, len, around) in [(1000, 30, range(512, 1536)), (513, 2, range(512, 1024))] {
            let (out, inside) = rounded(at, len);
            assert_eq!((out, inside.is_empty()), (Ok(around), true));
        }
        assert_eq!(round_out(ByteOffset(7), 0), Err(RequestError::Invalid));
        assert_eq!(round_out(ByteOffset(u64::MAX - 5), 5), Err(RequestError::Invalid));
    }

    #[test]
    fn pieces_are_cut_at_both_ends_and_earlier_ones_stay() {
        let mut pieces = vec![Piece::new((), 0, 512), Piece::new((), 3584, 512), Piece::new((), 0, 1024)];
        trim_pieces(&mut pieces, 1, 100, 1000);
        let shapes: Vec<_> = pieces.iter().map(|piece| (piece.start(), piece.len())).collect();
        assert_eq!(shapes, [(0, 512), (3684, 412), (0, 588)]);
        let mut pieces = vec![Piece::new((), 512, 512)];
        trim_pieces(&mut pieces, 0, 511, 1);
        assert_eq!((pieces[0].start(), pieces[0].len()), (1023, 1));
    }
}
