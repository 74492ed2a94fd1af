//! Conformance suite for every implementation of [`Disk`]: the real one, the simulated one, the models and any other.
//!
//! Content is one 64-bit tag repeated over a sector, the most that a simulated disk can keep. A failed check panics and
//! names the violated guarantee.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use crate::block::pieces_len;
use crate::{BLOCK_BYTES, Block, BlockMut, Disk, DiskError, Nanos, Piece, SECTOR_BYTES, Seam};

/// Minimum size of a disk under test; the suite overwrites this many bytes from the start on.
pub const SIZE_BYTES_MIN: u64 = 1 << 20;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Runs every check on `disk`, whose content may be anything.
pub async fn disk<S: Seam, D: Disk<S>>(seam: &S, disk: &D) {
    let suite = Suite { seam: seam.clone(), disk: disk.clone() };
    suite.geometry_is_consistent();
    suite.written_data_reads_back().await;
    suite.pieces_land_at_their_offsets().await;
    suite.only_zeroed_ranges_read_as_zeroes().await;
    suite.allocation_never_reports_data_as_zero().await;
    suite.many_requests_at_once_do_not_mix().await;
    suite.dropped_write_still_completes().await;
    suite.access_past_the_end_fails().await;
    suite.size_change_works_or_is_unsupported().await;
    disk.flush().await.expect("a flush of a working disk succeeds");
}

struct Suite<S: Seam, D: Disk<S>> {
    seam: S,
    disk: D,
}

/// The content of the sector at byte `at` in round `round`; never 0.
fn tag(round: u64, at: u64) -> u64 {
    ((round << 40) | (at / SECTOR)) + 1
}

impl<S: Seam, D: Disk<S>> Suite<S, D> {
    fn logical_block(&self) -> u64 {
        u64::from(self.disk.geometry().logical_block)
    }

    async fn buffer(&self) -> S::BlockMut {
        loop {
            match self.seam.alloc() {
                Some(block) => return block,
                None => self.seam.sleep(Nanos::from_millis(1)).await,
            }
        }
    }

    /// A buffer that holds, in `len` bytes from `start` on, the content of disk bytes from `at` on.
    async fn filled_piece(&self, round: u64, at: u64, start: usize, len: usize) -> Piece<S::Block> {
        let mut block = self.buffer().await;
        for offset in (0..len).step_by(SECTOR_BYTES) {
            let bytes = tag(round, at + offset as u64).to_le_bytes().repeat(SECTOR_BYTES / 8);
            block.write_bytes(start + offset, &bytes);
        }
        Piece::new(block.freeze(), start, len)
    }

    /// Splits `len` bytes at `at` into pieces; the first piece has `first_len` bytes, at the end of its block.
    async fn pieces(&self, round: u64, at: u64, len: usize, first_len: usize) -> Vec<Piece<S::Block>> {
        let mut pieces = Vec::new();
        let (mut offset, mut count) = (0, first_len.min(len));
        while offset < len {
            let start = if offset == 0 { BLOCK_BYTES - count } else { 0 };
            pieces.push(self.filled_piece(round, at + offset as u64, start, count).await);
            offset += count;
            count = BLOCK_BYTES.min(len - offset);
        }
        pieces
    }

    async fn write(&self, round: u64, at: u64, len: usize) {
        let pieces = self.pieces(round, at, len, BLOCK_BYTES).await;
        self.disk.write(at, pieces).await.expect("a write to a working disk succeeds");
    }

    /// Reads one tag per sector of `len` bytes from `at` on; the first piece has `first_len` bytes. All words of
    /// a sector must equal its tag.
    async fn read(&self, at: u64, len: usize, first_len: usize) -> Vec<u64> {
        let mut pieces = Vec::new();
        let (mut offset, mut count) = (0, first_len.min(len));
        while offset < len {
            let start = if offset == 0 { BLOCK_BYTES - count } else { 0 };
            pieces.push(Piece::new(self.buffer().await, start, count));
            offset += count;
            count = BLOCK_BYTES.min(len - offset);
        }
        let shape: Vec<_> = pieces.iter().map(|piece| (piece.start, piece.len)).collect();
        let (result, pieces) = self.disk.read(at, pieces).await;
        result.expect("a read of a working disk succeeds");
        let back: Vec<_> = pieces.iter().map(|piece| (piece.start, piece.len)).collect();
        assert_eq!(back, shape, "a read returns its pieces in order");
        let mut tags = Vec::new();
        let mut bytes = vec![0; SECTOR_BYTES];
        for piece in pieces {
            let (start, len) = (piece.start(), piece.len());
            let block = piece.block.freeze();
            for offset in (start..start + len).step_by(SECTOR_BYTES) {
                block.read_bytes(offset, &mut bytes);
                let (words, _) = bytes.as_chunks::<8>();
                assert!(
                    words.iter().all(|word| *word == words[0]),
                    "a sector at {at}+{len} holds a mixture of old and new data"
                );
                tags.push(u64::from_le_bytes(words[0]));
            }
        }
        tags
    }

    async fn expect_tags(&self, context: &str, at: u64, len: usize, expected: impl Fn(u64) -> u64) {
        for (index, actual) in self.read(at, len, BLOCK_BYTES).await.into_iter().enumerate() {
            let sector = at + index as u64 * SECTOR;
            assert_eq!(actual, expected(sector), "{context}: byte {sector}");
        }
    }

    fn geometry_is_consistent(&self) {
        let geometry = self.disk.geometry();
        assert!(geometry.size_bytes >= SIZE_BYTES_MIN, "the suite needs {SIZE_BYTES_MIN} bytes");
        assert!(matches!(geometry.logical_block, 512 | 4096), "a logical block of {}", geometry.logical_block);
        assert!(
            geometry.size_bytes.is_multiple_of(self.logical_block()),
            "a size that is no multiple of the logical block"
        );
        assert!(geometry.physical_block.is_multiple_of(geometry.logical_block), "physical below logical block");
        assert!(geometry.queue_depth > 0, "a disk whose queue depth is 0");
        assert_eq!(self.disk.identity(), self.disk.clone().identity(), "a clone is the same disk");
    }

    async fn written_data_reads_back(&self) {
        for (round, len) in [(1, self.logical_block() as usize), (2, BLOCK_BYTES), (3, 256 << 10)] {
            self.write(round, 0, len).await;
            self.expect_tags("written and read", 0, len, |at| tag(round, at)).await;
        }
        let end = self.disk.geometry().size_bytes - self.logical_block();
        self.write(4, end, self.logical_block() as usize).await;
        self.expect_tags("the last block", end, self.logical_block() as usize, |at| tag(4, at)).await;
    }

    async fn pieces_land_at_their_offsets(&self) {
        let (logical_block, len) = (self.logical_block(), 40 << 10);
        self.write(5, 0, 128 << 10).await;
        // The first piece ends a buffer with one logical block; later buffers are out of step with the disk's blocks.
        let at = (32 << 10) + logical_block;
        let pieces = self.pieces(6, at, len, logical_block as usize).await;
        assert_eq!(pieces_len(&pieces), len);
        self.disk.write(at, pieces).await.expect("a write in pieces succeeds");
        let expected_tag = |sector: u64| tag(if (at..at + len as u64).contains(&sector) { 6 } else { 5 }, sector);
        self.expect_tags("pieces and their neighbours", 0, 128 << 10, expected_tag).await;
        let tags = self.read(at, len, logical_block as usize).await;
        assert!(tags.iter().zip((at..).step_by(SECTOR_BYTES)).all(|(actual, sector)| *actual == tag(6, sector)));
    }

    async fn only_zeroed_ranges_read_as_zeroes(&self) {
        for may_unmap in [false, true] {
            self.write(7, 0, 256 << 10).await;
            let (at, len) = ((64 << 10) - self.logical_block(), (128 << 10) + self.logical_block());
            match self.disk.zero(at, len, may_unmap).await {
                Err(DiskError::Unsupported) => continue,
                result => result.expect("zeroing on a working disk succeeds"),
            }
            let expected_tag = |sector: u64| if (at..at + len).contains(&sector) { 0 } else { tag(7, sector) };
            self.expect_tags("zeroed", 0, 256 << 10, expected_tag).await;
        }
    }

    async fn allocation_never_reports_data_as_zero(&self) {
        self.write(8, 0, 512 << 10).await;
        let _ = self.disk.zero(128 << 10, 256 << 10, true).await;
        self.write(8, 256 << 10, BLOCK_BYTES).await;
        self.disk.flush().await.expect("a flush of a working disk succeeds");
        let (mut at, end) = (0, 512 << 10);
        while at < end {
            let runs = self.disk.allocation(at, end - at).await.expect("the allocation of a working disk is known");
            assert!(!runs.is_empty(), "the allocation query omits byte {at}");
            for run in runs {
                assert!(run.len_bytes > 0 && at + run.len_bytes <= end, "a run outside of the requested range");
                assert!(!run.hole || run.zero, "a hole at {at} that does not read as zeroes");
                if run.zero {
                    self.expect_tags("reported as zero", at, run.len_bytes as usize, |_| 0).await;
                }
                at += run.len_bytes;
            }
        }
    }

    async fn many_requests_at_once_do_not_mix(&self) {
        let (count, len) = (32_u64, 8 << 10);
        let remaining = Rc::new(Cell::new(count));
        let waker = Rc::new(RefCell::new(None::<std::task::Waker>));
        for number in 0..count {
            let suite = Suite { seam: self.seam.clone(), disk: self.disk.clone() };
            let (remaining, waker) = (Rc::clone(&remaining), Rc::clone(&waker));
            self.seam.spawn(async move {
                let at = number * len as u64;
                for round in 9..12 {
                    suite.write(round, at, len).await;
                    suite.expect_tags("one of many", at, len, |at| tag(round, at)).await;
                }
                remaining.set(remaining.get() - 1);
                waker.take().into_iter().for_each(std::task::Waker::wake);
            });
        }
        poll_fn(|context| {
            if remaining.get() == 0 {
                return Poll::Ready(());
            }
            *waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.expect_tags("after many", 0, count as usize * len, |at| tag(11, at)).await;
    }

    async fn dropped_write_still_completes(&self) {
        self.write(12, 0, BLOCK_BYTES).await;
        let pieces = self.pieces(13, 0, BLOCK_BYTES, BLOCK_BYTES).await;
        {
            let mut writing = pin!(self.disk.write(0, pieces));
            poll_fn(|context| {
                let _ = writing.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        let deadline = self.seam.now() + Nanos::from_secs(10);
        while self.read(0, SECTOR_BYTES.max(self.logical_block() as usize), BLOCK_BYTES).await[0] != tag(13, 0) {
            assert!(self.seam.now() < deadline, "a write whose future was dropped did not complete in time");
            self.seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    async fn access_past_the_end_fails(&self) {
        let size = self.disk.geometry().size_bytes;
        let len = self.logical_block() as usize;
        let pieces = self.pieces(14, size, len, BLOCK_BYTES).await;
        assert!(self.disk.write(size, pieces).await.is_err(), "a write past the end succeeds");
        let buffer = vec![Piece::new(self.buffer().await, 0, len)];
        let (result, pieces) = self.disk.read(size, buffer).await;
        assert!(result.is_err() && pieces.len() == 1, "a read past the end succeeds, or keeps its buffer");
    }

    async fn size_change_works_or_is_unsupported(&self) {
        let size = self.disk.geometry().size_bytes;
        let smaller_size = size - (64 << 10);
        self.write(15, smaller_size, 64 << 10).await;
        match self.disk.set_size(smaller_size).await {
            Err(DiskError::Unsupported) => return,
            result => result.expect("shrinking succeeds where it is supported"),
        }
        assert_eq!(self.disk.geometry().size_bytes, smaller_size);
        self.disk.set_size(size).await.expect("growing back succeeds");
        assert_eq!(self.disk.refresh_size().await, Ok(size));
        self.expect_tags("grown back", smaller_size, 64 << 10, |_| 0).await;
    }
}
