//! Evidence about a volume before it is attached: its dirty blocks that wait for the backing, and the backing's
//! content.
//!
//! This module only reads. The decisions are made by the owner of the records (`crates/state`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{BlockNo, VolumeId};
use seam::persist::ShmImage;
use seam::{BLOCK_BYTES, Block, Disk, Nanos, PieceMut, Seam};

use crate::Backing;
use crate::backing_check::newest_recent_writes;
use crate::core::Core;
use crate::wait::Signal;

/// Concurrent reads.
const CONCURRENT_READS_MAX: usize = 32;
/// Least ratio of blocks with the same content to those with another one that identifies a backing, among blocks that
/// may have been written again. After simulated crashes it was 7 or more.
const UNPROVEN_RATIO_MIN: u64 = 4;
/// Number of the newest of these blocks that must not differ: all of them do in an older copy of the backing.
const UNPROVEN_NEWEST_BLOCKS: usize = 4;
/// Pause between attempts to get a buffer.
const BUFFER_PAUSE: Nanos = Nanos::from_millis(1);

/// Comparison of the blocks destaged last with a backing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestagedComparison {
    /// Blocks with the destaged content. Zeroes are not counted, because any new disk has them too.
    pub matching_blocks: u64,
    /// Blocks with other content.
    pub different_blocks: u64,
    /// Blocks past the backing's end, which are not compared. Zeroes are not counted.
    pub past_end_blocks: u64,
    /// True if the backing has the content of most blocks whose regions were dirty at a crash, and of the newest ones.
    /// These blocks may have been written again, so that a difference proves nothing. Zeroes are not counted.
    pub matches_unproven: bool,
}

/// Dirty blocks of a volume that wait to be destaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingBlocks {
    /// All waiting blocks.
    pub total_blocks: u64,
    /// Blocks at or past the given end.
    pub past_end_blocks: u64,
}

/// Dirty blocks of a volume in persisted memory. `end` is the first block past the backing's end.
pub fn waiting_in_memory(image: &ShmImage, end: BlockNo) -> WaitingBlocks {
    let ranges: u64 = image.zeroes.iter().map(|range| range.end - range.start).sum();
    let ranges_past: u64 = image.zeroes.iter().map(|range| range.end.saturating_sub(range.start.max(end.0))).sum();
    let blocks_past = image.blocks.iter().filter(|(tag, _)| tag.block >= end.0).count() as u64;
    WaitingBlocks { total_blocks: image.blocks.len() as u64 + ranges, past_end_blocks: blocks_past + ranges_past }
}

impl<S: Seam> Core<S> {
    /// Dirty blocks of an unattached volume in the flash log. `end` is the first block past the backing's end.
    pub fn waiting_in_log(&self, volume_id: VolumeId, end: BlockNo) -> WaitingBlocks {
        let mut waiting = WaitingBlocks::default();
        self.for_each_unclaimed(volume_id, |record| {
            let blocks = record.blocks();
            waiting.total_blocks += BlockNo::count(&blocks);
            waiting.past_end_blocks += BlockNo::count(&(end.clamp(blocks.start, blocks.end)..blocks.end));
        });
        waiting
    }

    /// Number of a volume's recent writes in the store that can prove its backing at the next start.
    pub fn provable_recent_writes(&self, volume_id: VolumeId) -> u64 {
        self.pages().map_or(0, |pages| pages.volume(volume_id).provable_recent_writes() as u64)
    }

    /// Compares the blocks of an unattached volume that were destaged last with the content of a backing. Waits until
    /// the map of clean pages is read.
    pub async fn compare_destaged(&self, volume_id: VolumeId, backing: &Backing<S>) -> DestagedComparison {
        let Some(pages) = self.pages() else { return DestagedComparison::default() };
        self.wait_for_pages().await;
        let end = end_of(backing);
        let zeroes = self.seam().zero_block().checksum(0);
        let destaged = pages.volume(volume_id).recent_writes();
        let is_past_end = |(block, checksum): &&(BlockNo, u32)| *block >= end && *checksum != zeroes;
        let past_end = destaged.iter().filter(is_past_end).count() as u64;
        let (matching, different) = self.count_matching(destaged, backing).await;
        let unproven = pages.volume(volume_id).unproven_recent_writes();
        let with_content = unproven.iter().rev().filter(|(_, checksum)| *checksum != zeroes);
        let newest: Vec<_> = with_content.take(UNPROVEN_NEWEST_BLOCKS).copied().collect();
        let (_, newest_different) = self.count_matching(newest, backing).await;
        let (unproven_matching, unproven_different) = self.count_matching(unproven, backing).await;
        let matches_unproven = unproven_matching > 0
            && newest_different == 0
            && unproven_different <= unproven_matching / UNPROVEN_RATIO_MIN;
        DestagedComparison {
            matching_blocks: matching,
            different_blocks: different,
            past_end_blocks: past_end,
            matches_unproven,
        }
    }

    /// Compares the newest of these blocks with the backing. Returns the number of blocks with the same content, zeroes
    /// excluded, and of those with another one. Unreadable blocks are not counted.
    async fn count_matching(&self, blocks: Vec<(BlockNo, u32)>, backing: &Backing<S>) -> (u64, u64) {
        let zeroes = self.seam().zero_block().checksum(0);
        let newest = newest_recent_writes(blocks, end_of(backing), zeroes);
        let numbers: Vec<BlockNo> = newest.keys().copied().collect();
        let (mut matching, mut different) = (0, 0);
        for (checksum, actual) in newest.values().zip(checksums_at(self.seam(), backing, &numbers).await) {
            match actual {
                Some(actual) if actual == *checksum => matching += u64::from(actual != zeroes),
                Some(_) => different += 1,
                None => {}
            }
        }
        (matching, different)
    }
}

/// The first block that the backing does not hold in full.
fn end_of<S: Seam>(backing: &Backing<S>) -> BlockNo {
    BlockNo(backing.disk.geometry().size_bytes / BLOCK_BYTES as u64)
}

/// CRC32C of these blocks of a backing; `None` for an unreadable block.
pub async fn checksums_at<S: Seam>(seam: &S, backing: &Backing<S>, blocks: &[BlockNo]) -> Vec<Option<u32>> {
    read_at(seam, backing, blocks, |block| block.checksum(0)).await
}

/// Samples of a backing: as [`checksums_at`], but 0 for a block without information: zeroes, unreadable, or past the
/// end. `blocks` must be in ascending order.
pub async fn samples_at<S: Seam>(seam: &S, backing: &Backing<S>, blocks: &[BlockNo]) -> Vec<u32> {
    let end = end_of(backing);
    let inside: Vec<BlockNo> = blocks.iter().copied().filter(|block| *block < end).collect();
    let sample = |block: &S::Block| if block.is_zero(0, BLOCK_BYTES) { 0 } else { block.checksum(0) };
    let mut samples = read_at(seam, backing, &inside, sample).await;
    samples.resize(blocks.len(), None);
    samples.into_iter().map(Option::unwrap_or_default).collect()
}

/// Identifiers of partition tables and file systems at the start of a backing.
pub async fn content_ids<S: Seam>(seam: &S, backing: &Backing<S>) -> Vec<String> {
    let bytes = |block: &S::Block| {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        block.read_bytes(0, &mut *bytes);
        bytes
    };
    let end = end_of(backing);
    let blocks: Vec<BlockNo> = [0, 1, 16].map(BlockNo).into_iter().filter(|block| *block < end).collect();
    let mut contents = read_at(seam, backing, &blocks, bytes).await.into_iter();
    let mut next = || contents.next().flatten();
    ids_of(next().as_deref(), next().as_deref(), next().as_deref())
}

/// Content of a block.
type Bytes = [u8; BLOCK_BYTES];

/// The identifiers in the first block, the second one, and the one at 64 KiB.
fn ids_of(first: Option<&Bytes>, second: Option<&Bytes>, block_16: Option<&Bytes>) -> Vec<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut ids = Vec::new();
    let mut add = |kind: &str, bytes: &[u8]| {
        if bytes.iter().any(|byte| *byte != 0) {
            ids.push(format!("{kind}:{}", hex(bytes)));
        }
    };
    if let Some(first) = first {
        if first[510..512] == [0x55, 0xaa] {
            add("mbr", &first[440..444]);
        }
        if &first[512..520] == b"EFI PART" {
            add("gpt", &first[568..584]);
        }
        if first[1080..1082] == [0x53, 0xef] {
            add("ext", &first[1128..1144]);
        }
        if &first[..4] == b"XFSB" {
            add("xfs", &first[32..48]);
        }
        if &first[..6] == b"LUKS\xba\xbe" {
            add("luks", &first[168..204]);
        }
        if &first[512..520] == b"LABELONE" {
            add("lvm", &first[544..576]);
        }
        if &first[3..11] == b"NTFS    " {
            add("ntfs", &first[72..80]);
        }
    }
    if let Some(second) = second.filter(|second| &second[..8] == b"EFI PART") {
        add("gpt", &second[56..72]);
    }
    if let Some(block_16) = block_16.filter(|block_16| &block_16[64..72] == b"_BHRfS_M") {
        add("btrfs", &block_16[32..48]);
    }
    ids
}

/// Reads blocks of a backing concurrently. Returns the result of `extract` for each; `None` for an unreadable block.
async fn read_at<S: Seam, T: 'static>(
    seam: &S,
    backing: &Backing<S>,
    blocks: &[BlockNo],
    extract: impl Fn(&S::Block) -> T + Copy + 'static,
) -> Vec<Option<T>> {
    let results = Rc::new(RefCell::new(blocks.iter().map(|_| None).collect::<Vec<_>>()));
    let (next, running, finished) =
        (Rc::new(Cell::new(0)), Rc::new(Cell::new(CONCURRENT_READS_MAX)), Rc::new(Signal::default()));
    for _ in 0..CONCURRENT_READS_MAX {
        let (blocks, disk, seam) = (blocks.to_vec(), backing.disk.clone(), seam.clone());
        let (results, next, running, finished) = (results.clone(), next.clone(), running.clone(), finished.clone());
        seam.clone().spawn(async move {
            while next.get() < blocks.len() {
                let index = next.replace(next.get() + 1);
                let buffer = loop {
                    match seam.alloc() {
                        Some(buffer) => break buffer,
                        None => seam.sleep(BUFFER_PAUSE).await,
                    }
                };
                let at = blocks[index].offset();
                let (result, mut pieces) = disk.read(at, vec![PieceMut::whole(buffer)]).await;
                let block = seam::BlockMut::freeze(pieces.pop().expect("a read returns its pieces").block);
                results.borrow_mut()[index] = result.is_ok().then(|| extract(&block));
            }
            running.set(running.get() - 1);
            finished.notify();
        });
    }
    finished.wait_for(|| (running.get() == 0).then_some(())).await;
    results.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_superblocks_have_identifiers_and_empty_ones_do_not() {
        let mut first = Box::new([0; BLOCK_BYTES]);
        assert_eq!(ids_of(Some(&first), Some(&first), Some(&first)), Vec::<String>::new());
        first[1080..1082].copy_from_slice(&[0x53, 0xef]);
        first[1128..1144].copy_from_slice(&[7; 16]);
        first[510..512].copy_from_slice(&[0x55, 0xaa]);
        let mut block_16 = Box::new([0; BLOCK_BYTES]);
        block_16[64..72].copy_from_slice(b"_BHRfS_M");
        block_16[32] = 1;
        let ids = ids_of(Some(&first), None, Some(&block_16));
        assert_eq!(ids, [format!("ext:{}", "07".repeat(16)), format!("btrfs:01{}", "00".repeat(15))]);
    }
}
