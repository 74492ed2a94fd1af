//! Simulated buffers: one 64-bit tag per sector instead of 512 bytes, counted against a pool's ceiling.
//!
//! A sector with tag *t* represents *t*, little-endian, repeated 64 times; tag 0 represents zeroes. Clients, caches and
//! disks move whole sectors only, so tags lose no information, and copying a block copies 64 bytes. Metadata consists
//! of real bytes: its sectors' tags are keys of the world's table ([`MetadataSectors`]).

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::metadata_sectors::{MetadataSectors, TAG_BYTES};
use super::persist::PersistTags;
use crate::rng::mix;
use crate::{BLOCK_BYTES, Block, BlockMut, BlockTag, SECTOR_BYTES, SECTORS_PER_BLOCK};

/// Content of a fresh buffer: no client's data, so that a checker detects the use of an unfilled buffer.
pub const POISON: u64 = 0xdead_0bad_f00d_dead;

/// Content that simulated buffers and disks keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredContent {
    /// One tag per sector: reads return the written data.
    #[default]
    Tags,
    /// Metadata alone: for measurements, where only the times matter. Other reads return zeroes.
    MetadataOnly,
}

/// The buffer pool of a core with its ceiling.
#[derive(Debug)]
pub(super) struct Pool {
    /// Capacity in blocks.
    pub(super) total: usize,
    /// Blocks that are allocated.
    pub(super) allocated: Cell<usize>,
    pub(super) content: StoredContent,
    pub(super) metadata: Rc<MetadataSectors>,
    /// Persistence tags, if buffers outlive the process.
    pub(super) persist_tags: Option<PersistTags>,
}

impl Pool {
    pub(super) fn new(
        total: usize,
        content: StoredContent,
        metadata: Rc<MetadataSectors>,
        persist_tags: Option<PersistTags>,
    ) -> Rc<Pool> {
        Rc::new(Pool { total, allocated: Cell::new(0), content, metadata, persist_tags })
    }

    pub(super) fn alloc(self: &Rc<Self>) -> Option<SimBlockMut> {
        if self.allocated.get() >= self.total {
            return None;
        }
        self.allocated.set(self.allocated.get() + 1);
        let lease = Lease(Rc::clone(self));
        Some(SimBlockMut(match self.content {
            StoredContent::Tags => SimBlock::tagged([POISON; SECTORS_PER_BLOCK], lease),
            StoredContent::MetadataOnly => SimBlock::NoContent(Rc::new(lease)),
        }))
    }
}

/// One block of the pool, returned when its last holder drops it.
struct Lease(Rc<Pool>);

impl Drop for Lease {
    fn drop(&mut self) {
        let allocated = self.0.allocated.get();
        self.0.allocated.set(allocated.checked_sub(1).expect("an allocated block is counted"));
    }
}

/// A block that keeps its content.
pub struct Tagged {
    pub(super) tags: Cell<[u64; SECTORS_PER_BLOCK]>,
    /// Number and content of the persistence tag, if there is one.
    pub(super) persist_tag: Cell<Option<(u64, BlockTag)>>,
    lease: Lease,
}

impl Drop for Tagged {
    fn drop(&mut self) {
        if let (Some((_, tag)), Some(persist_tags)) = (self.persist_tag.get(), &self.lease.0.persist_tags) {
            persist_tags.record_dropped(tag);
        }
    }
}

/// A frozen simulated block.
#[derive(Clone)]
pub enum SimBlock {
    /// The shared zeroes.
    Zero,
    /// A block that keeps its content.
    Tagged(Rc<Tagged>),
    /// A block without content, until metadata is written to it.
    NoContent(#[expect(private_interfaces, reason = "callers need only the reference count")] Rc<Lease>),
}

impl SimBlock {
    fn tagged(tags: [u64; SECTORS_PER_BLOCK], lease: Lease) -> SimBlock {
        SimBlock::Tagged(Rc::new(Tagged { tags: Cell::new(tags), persist_tag: Cell::default(), lease }))
    }

    /// Number of the block's persistence tag; 0 if it has none.
    pub(super) fn persist_tag_number(&self) -> u64 {
        match self {
            SimBlock::Tagged(block) => block.persist_tag.get().map_or(0, |(number, _)| number),
            SimBlock::Zero | SimBlock::NoContent(_) => 0,
        }
    }

    /// The content, one tag per sector; zeroes if none is kept.
    pub fn tags(&self) -> [u64; SECTORS_PER_BLOCK] {
        match self {
            SimBlock::Tagged(block) => block.tags.get(),
            SimBlock::Zero | SimBlock::NoContent(_) => [0; SECTORS_PER_BLOCK],
        }
    }
}

impl fmt::Debug for SimBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimBlock({:x?})", self.tags())
    }
}

/// The sectors of `len` bytes from `at` on.
fn sectors(at: usize, len: usize) -> std::ops::Range<usize> {
    assert!(at.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES), "not whole sectors: {at}+{len}");
    assert!(at + len <= BLOCK_BYTES, "outside the block: {at}+{len}");
    at / SECTOR_BYTES..(at + len) / SECTOR_BYTES
}

impl Block for SimBlock {
    type Mut = SimBlockMut;

    fn thaw(self) -> Result<SimBlockMut, SimBlock> {
        if self.is_unique() { Ok(SimBlockMut(self)) } else { Err(self) }
    }

    fn is_unique(&self) -> bool {
        match self {
            SimBlock::Zero => false,
            SimBlock::Tagged(block) => Rc::strong_count(block) == 1,
            SimBlock::NoContent(block) => Rc::strong_count(block) == 1,
        }
    }

    fn read_bytes(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= BLOCK_BYTES, "outside the block: {at}+{}", out.len());
        let tags = self.tags();
        let mut copied = 0;
        while copied < out.len() {
            let position = at + copied;
            let tag = tags[position / SECTOR_BYTES];
            let within = position % SECTOR_BYTES;
            let count = (SECTOR_BYTES - within).min(out.len() - copied);
            let to = &mut out[copied..copied + count];
            let is_metadata = match self {
                SimBlock::Tagged(block) => block.lease.0.metadata.copy_bytes(tag, within, to),
                SimBlock::Zero | SimBlock::NoContent(_) => false,
            };
            if !is_metadata {
                let sector = [tag.to_le_bytes(); SECTOR_BYTES / TAG_BYTES];
                to.copy_from_slice(&sector.as_flattened()[within..within + count]);
            }
            copied += count;
        }
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }

    fn is_zero(&self, at: usize, len: usize) -> bool {
        assert!(at + len <= BLOCK_BYTES, "outside the block: {at}+{len}");
        match self {
            SimBlock::Zero => true,
            SimBlock::Tagged(block) => {
                let tags = block.tags.get();
                len == 0 || tags[at / SECTOR_BYTES..=(at + len - 1) / SECTOR_BYTES].iter().all(|tag| *tag == 0)
            }
            // The data that the block stands for is unknown: true would make callers zero it instead of writing it.
            SimBlock::NoContent(_) => false,
        }
    }

    fn has_same_content(&self, other: &SimBlock) -> bool {
        self.tags() == other.tags()
    }

    fn checksum(&self, seed: u32) -> u32 {
        // Without content there are no checksums: a read returns zeroes, which must pass for the written data.
        if matches!(self, SimBlock::NoContent(_)) {
            return 0;
        }
        self.tags().iter().fold(mix(u64::from(seed)), |sum, tag| mix(sum ^ tag).wrapping_add(sum)) as u32
    }

    #[cfg(feature = "sabotage")]
    fn sabotage_thaw(self) -> SimBlockMut {
        SimBlockMut(self)
    }
}

/// A simulated block with one owner.
#[derive(Debug)]
pub struct SimBlockMut(SimBlock);

impl SimBlockMut {
    /// The content, one tag per sector.
    pub fn tags(&self) -> [u64; SECTORS_PER_BLOCK] {
        self.0.tags()
    }

    /// Sets the content of one sector. Does nothing in a block without content.
    pub fn set_tag(&mut self, sector: usize, tag: u64) {
        self.update(|tags| tags[sector] = tag);
    }

    /// Copies tags to the sectors from `first` on. A block without content starts to keep content at the first tag that
    /// is not zero.
    pub(super) fn set_tags(&mut self, first: usize, from: &[u64]) {
        if let SimBlock::NoContent(block) = &self.0
            && from.iter().any(|tag| *tag != 0)
        {
            // The block briefly has two leases: the second is counted before the first is dropped.
            let pool = Rc::clone(&block.0);
            pool.allocated.set(pool.allocated.get() + 1);
            self.0 = SimBlock::tagged([0; SECTORS_PER_BLOCK], Lease(pool));
        }
        self.update(|tags| tags[first..first + from.len()].copy_from_slice(from));
    }

    /// Changes the tags. Does nothing in a block without content.
    fn update(&mut self, change: impl FnOnce(&mut [u64; SECTORS_PER_BLOCK])) {
        if let SimBlock::Tagged(block) = &self.0 {
            let mut tags = block.tags.get();
            change(&mut tags);
            block.tags.set(tags);
        }
    }
}

impl BlockMut for SimBlockMut {
    type Frozen = SimBlock;

    fn freeze(self) -> SimBlock {
        self.0
    }

    fn copy_from(&mut self, at: usize, from: &SimBlock, from_at: usize, len: usize) {
        let (to, source) = (sectors(at, len), sectors(from_at, len));
        let tags = from.tags();
        self.set_tags(to.start, &tags[source]);
    }

    fn zero(&mut self, at: usize, len: usize) {
        let range = sectors(at, len);
        self.update(|tags| tags[range].fill(0));
    }

    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        let range = sectors(at, bytes.len());
        self.update(|tags| {
            for (sector, content) in range.zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let (words, _) = content.as_chunks::<TAG_BYTES>();
                assert!(
                    words.iter().all(|word| *word == words[0]),
                    "the sector is not one repeated tag: shifted or foreign bytes"
                );
                tags[sector] = u64::from_le_bytes(words[0]);
            }
        });
    }

    fn write_metadata(&mut self, at: usize, bytes: &[u8]) {
        let range = sectors(at, bytes.len());
        let pool = match &self.0 {
            SimBlock::Tagged(block) => &block.lease.0,
            SimBlock::NoContent(lease) => &lease.0,
            SimBlock::Zero => unreachable!("the shared zeroes are never writable"),
        };
        let (contents, _) = bytes.as_chunks::<SECTOR_BYTES>();
        let tags: Vec<u64> = contents.iter().map(|content| pool.metadata.tag_of(content)).collect();
        self.set_tags(range.start, &tags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Rc<Pool> {
        Pool::new(2, StoredContent::Tags, Rc::default(), None)
    }

    #[test]
    fn written_bytes_read_back() {
        let mut block = pool().alloc().unwrap();
        let sector: Vec<u8> = 0x0123_4567_89ab_cdef_u64.to_le_bytes().repeat(SECTOR_BYTES / TAG_BYTES);
        block.write_bytes(SECTOR_BYTES, &sector);
        let mut out = vec![0; SECTOR_BYTES];
        let block = block.freeze();
        block.read_bytes(SECTOR_BYTES, &mut out);
        assert_eq!(out, sector);
        block.read_bytes(SECTOR_BYTES + 3, &mut out[..100]);
        assert_eq!(out[..100], sector[3..103]);
    }

    #[test]
    #[should_panic(expected = "not one repeated tag")]
    fn shifted_bytes_cause_a_panic() {
        let mut bytes = vec![1; SECTOR_BYTES];
        bytes[SECTOR_BYTES - 1] = 2;
        pool().alloc().unwrap().write_bytes(0, &bytes);
    }

    #[test]
    fn metadata_reads_back_even_without_content() {
        for content in [StoredContent::Tags, StoredContent::MetadataOnly] {
            let pool = Pool::new(2, content, Rc::default(), None);
            let bytes: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
            let mut block = pool.alloc().unwrap();
            block.write_metadata(0, &bytes);
            let mut copy = pool.alloc().unwrap();
            let block = block.freeze();
            copy.copy_from(0, &block, 0, BLOCK_BYTES);
            let (copy, mut out) = (copy.freeze(), vec![0; BLOCK_BYTES]);
            copy.read_bytes(0, &mut out);
            assert_eq!(out, bytes);
            copy.read_bytes(100, &mut out[..1000]);
            assert_eq!(out[..1000], bytes[100..1100]);
            assert!(
                copy.has_same_content(&block)
                    && copy.checksum(1) == block.checksum(1)
                    && copy.checksum(1) != block.checksum(2)
            );
            drop((block, copy));
            assert_eq!(pool.allocated.get(), 0);
        }
    }

    #[test]
    fn a_shared_block_does_not_thaw() {
        let pool = pool();
        let block = pool.alloc().unwrap().freeze();
        let other = block.clone();
        let block = block.thaw().unwrap_err();
        drop(other);
        assert!(block.is_unique() && block.thaw().is_ok());
    }

    #[test]
    fn pool_stops_at_its_ceiling_and_regains_dropped_blocks() {
        for content in [StoredContent::Tags, StoredContent::MetadataOnly] {
            let pool = Pool::new(2, content, Rc::default(), None);
            let (first, second) = (pool.alloc().unwrap(), pool.alloc().unwrap().freeze());
            let clone = second.clone();
            assert!(pool.alloc().is_none());
            drop((first, second));
            assert_eq!(pool.allocated.get(), 1);
            drop(clone);
            assert_eq!(pool.allocated.get(), 0);
        }
    }

    #[test]
    fn a_fresh_buffer_is_not_zero() {
        let block = pool().alloc().unwrap();
        assert_eq!(block.tags(), [POISON; SECTORS_PER_BLOCK]);
        assert!(!block.freeze().is_zero(0, BLOCK_BYTES));
    }
}
