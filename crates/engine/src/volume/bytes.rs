//! Requests at any byte, for protocols without an alignment (NBD). Inside, sectors of 512 bytes are the finest unit.
//!
//! A read takes the sectors around its range and leaves out what was not asked for. A write of a part of a sector reads the sector,
//! changes its bytes and writes it whole, with the range locked against all other writes of the volume: two clients that write different
//! bytes of one sector at once both find their bytes afterwards. Zeroes are written so at their edges alone; a discard leaves its edges
//! as they are.

use std::ops::Range;

use seam::{AllocationExtent, Block, BlockMut, Piece, SECTOR_BYTES, Seam};

use super::Volume;
use crate::pages::slow::{Asked, Step, Steps};
use crate::{RequestError, WriteFlags, WriteSource, ZeroFlags};

/// Bytes in a sector.
const SECTOR: u64 = SECTOR_BYTES as u64;

impl<S: Seam> Volume<S> {
    /// As [`Volume::read_now`], of any bytes.
    pub fn read_bytes_now(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        let Ok(around) = around(at, len as u64) else { return false };
        let before = out.len();
        let done = self.read_now(around.start, len_of(&around), out);
        if done {
            cut(out, before, (at - around.start) as usize, len);
        }
        done
    }

    /// As [`Volume::read`], of any bytes.
    pub async fn read_bytes(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> Result<(), RequestError> {
        let (around, before) = (around(at, len as u64)?, out.len());
        self.read(around.start, len_of(&around), out).await?;
        cut(out, before, (at - around.start) as usize, len);
        Ok(())
    }

    /// As [`Volume::write`], of any bytes.
    pub async fn write_bytes(&self, at: u64, bytes: &[u8], flags: WriteFlags) -> Result<(), RequestError> {
        let around = around(at, bytes.len() as u64)?;
        if around == (at..at + bytes.len() as u64) {
            return self.write(at, bytes.len(), flags, &mut &bytes[..]).await;
        }
        let steps = Steps::new(self.now());
        self.keep_to_limit(bytes.len() as u64, &steps).await;
        let _inside = self.enter().await?;
        self.check_write(around.start, around.end - around.start)?;
        let _alone = self.0.locks.alone(around.clone()).await;
        steps.passed(Step::Gate, self.now());
        let result = self.change(&around, at, bytes, flags, &steps).await;
        self.0.shard.slow.ended(&steps, Asked::Write, at, bytes.len() as u64, self.now());
        self.count(result)
    }

    /// Writes the sectors `around` some bytes with these bytes in them. The range is locked.
    async fn change(
        &self,
        around: &Range<u64>,
        at: u64,
        bytes: &[u8],
        flags: WriteFlags,
        steps: &Steps,
    ) -> Result<(), RequestError> {
        let (len, last) = (len_of(around), around.end - SECTOR);
        let mut merged = Mixed(vec![0; len]);
        if at > around.start {
            self.old_sector(around.start, &mut merged.0[..SECTOR_BYTES], steps).await?;
        }
        let ends_inside = at + (bytes.len() as u64) < around.end;
        if ends_inside && (last > around.start || at == around.start) {
            self.old_sector(last, &mut merged.0[len - SECTOR_BYTES..], steps).await?;
        }
        merged.0[(at - around.start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.0.shard.write(around.start, len, flags, &mut merged, steps).await
    }

    async fn old_sector(&self, at: u64, into: &mut [u8], steps: &Steps) -> Result<(), RequestError> {
        let mut pieces = Vec::new();
        self.0.shard.read_to_change(at, SECTOR_BYTES, &mut pieces, steps).await?;
        let [piece] = &pieces[..] else { unreachable!("a sector lies in one block") };
        piece.block.read_bytes(piece.start(), into);
        Ok(())
    }

    /// As [`Volume::zero`], of any bytes.
    pub async fn zero_bytes(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        let around = around(at, len)?;
        self.check_write(around.start, around.end - around.start)?;
        let (end, inside) = (at + len, inside(at, len));
        let write = WriteFlags { fua: flags.fua, ..WriteFlags::default() };
        if inside.is_empty() {
            // Less than two sectors.
            return self.write_bytes(at, &vec![0; len as usize], write).await;
        }
        // First, for it alone may say that it is not fast.
        self.zero(inside.start, inside.end - inside.start, flags).await?;
        for edge in [at..inside.start, inside.end..end] {
            if !edge.is_empty() {
                self.write_bytes(edge.start, &vec![0; len_of(&edge)], write).await?;
            }
        }
        Ok(())
    }

    /// As [`Volume::discard`], of the whole sectors in the range; the edges stay as they are.
    pub async fn discard_bytes(&self, at: u64, len: u64, flags: WriteFlags) -> Result<(), RequestError> {
        let (around, inside) = (around(at, len)?, inside(at, len));
        self.check_write(around.start, around.end - around.start)?;
        if inside.is_empty() {
            return Ok(());
        }
        self.discard(inside.start, inside.end - inside.start, flags).await
    }

    /// As [`Volume::prefetch`], of any bytes.
    pub async fn prefetch_bytes(&self, at: u64, len: u64) -> Result<(), RequestError> {
        let around = around(at, len)?;
        self.prefetch(around.start, around.end - around.start).await
    }

    /// As [`Volume::allocation`], of any bytes: runs that cover a prefix of them.
    pub async fn allocation_bytes(&self, at: u64, len: u64) -> Result<Vec<AllocationExtent>, RequestError> {
        let around = around(at, len)?;
        let mut runs = self.allocation(around.start, around.end - around.start).await?;
        let (mut skipped, mut left) = (at - around.start, len);
        for run in &mut runs {
            run.len_bytes -= std::mem::take(&mut skipped);
            run.len_bytes = run.len_bytes.min(left);
            left -= run.len_bytes;
        }
        runs.retain(|run| run.len_bytes > 0);
        Ok(runs)
    }
}

/// The whole sectors that some bytes lie in.
fn around(at: u64, len: u64) -> Result<Range<u64>, RequestError> {
    let end = at.checked_add(len).and_then(|end| end.checked_next_multiple_of(SECTOR)).ok_or(RequestError::Invalid)?;
    if len == 0 { Err(RequestError::Invalid) } else { Ok(at / SECTOR * SECTOR..end) }
}

/// The whole sectors among some bytes; empty where there is none.
fn inside(at: u64, len: u64) -> Range<u64> {
    at.next_multiple_of(SECTOR)..(at + len) / SECTOR * SECTOR
}

fn len_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Of the pieces from `first` on, leaves the `len` bytes after the first `skip`, which are less than a sector, as what follows is.
fn cut<B>(pieces: &mut [Piece<B>], first: usize, skip: usize, len: usize) {
    let pieces = &mut pieces[first..];
    let surplus = pieces.iter().map(Piece::len).sum::<usize>() - skip - len;
    assert!(skip < SECTOR_BYTES && surplus < SECTOR_BYTES, "more than the edges of sectors is left out");
    if let Some(piece) = pieces.first_mut() {
        piece.start += skip as u16;
        piece.len -= skip as u16;
    }
    if let Some(piece) = pieces.last_mut() {
        piece.len -= surplus as u16;
    }
}

/// Sectors of which the first and the last may be a mixture of old and new bytes.
struct Mixed(Vec<u8>);

impl<S: Seam> WriteSource<S> for Mixed {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        // A simulated client's sectors are one tag over and over; a mixture of two is kept byte by byte, as metadata is.
        block.write_metadata(at, &self.0[from..from + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_rounded_out_and_in_to_sectors() {
        assert_eq!((around(0, 512), inside(0, 512)), (Ok(0..512), 0..512));
        assert_eq!((around(511, 514), inside(511, 514)), (Ok(0..1536), 512..1024));
        assert_eq!((around(1000, 30), inside(1000, 30).is_empty()), (Ok(512..1536), true));
        assert_eq!((around(513, 2), inside(513, 2).is_empty()), (Ok(512..1024), true));
        assert_eq!(around(7, 0), Err(RequestError::Invalid));
        assert_eq!(around(u64::MAX - 5, 5), Err(RequestError::Invalid));
    }

    #[test]
    fn pieces_are_cut_at_both_ends_and_earlier_ones_stay() {
        let mut pieces = vec![Piece::new((), 0, 512), Piece::new((), 3584, 512), Piece::new((), 0, 1024)];
        cut(&mut pieces, 1, 100, 1000);
        let shapes: Vec<_> = pieces.iter().map(|piece| (piece.start(), piece.len())).collect();
        assert_eq!(shapes, [(0, 512), (3684, 412), (0, 588)]);
        let mut one = vec![Piece::new((), 512, 512)];
        cut(&mut one, 0, 511, 1);
        assert_eq!((one[0].start(), one[0].len()), (1023, 1));
    }
}
