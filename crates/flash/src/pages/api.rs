//! Types of the pages' interface to the owner of a store.

use crate::page_map::MemberWrites;
use crate::page_map::dirty_regions::Region;

/// The reason why a block was not read. It returns the block's buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum PageReadError<B> {
    /// The copy is unreadable or fails its check (R11, docs/rules.md). The block is no longer valid.
    Bad(B),
    /// The block has no valid copy, or lost it during the read, or no buffer was free for its checksum.
    Absent(B),
}

impl<B> PageReadError<B> {
    /// The buffer.
    pub fn into_buffer(self) -> B {
        match self {
            PageReadError::Bad(buffer) | PageReadError::Absent(buffer) => buffer,
        }
    }
}

/// The reason why a page was not accepted. It is harmless: the backing has the content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No slot, buffer or volume number is free now, the page is being written, or the map is not loaded.
    #[error("no flash slot is free at the moment")]
    NoSlot,
    /// All evictable pages were used recently.
    #[error("all pages on flash were used recently")]
    AllHot,
    /// The volume has reached its maximum, and none of its own pages can be evicted.
    #[error("the volume's quota of flash pages is used up")]
    QuotaUsed,
    /// A device failed the write, or the map is unusable.
    #[error("{0}")]
    DeviceFailed(String),
}

/// A write to the backing in progress. It must be passed to `end_write`, whatever its outcome.
#[must_use = "a write intent that is not passed to end_write keeps its regions dirty"]
#[derive(Debug)]
pub struct WriteIntent {
    /// The regions that it keeps dirty, each with the number of its dirty period.
    pub(super) regions: Vec<(Region, u64)>,
}

/// The cached pages of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageUsage {
    /// Number of pages.
    pub pages: u64,
    /// Number of their valid blocks.
    pub valid_blocks: u64,
}

/// State and counters of the pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagesStats {
    /// The map is loaded.
    pub is_loaded: bool,
    /// The number of slots, each for one page.
    pub slots: u64,
    /// Maximum number of slots while the log needs no more than its reserve.
    pub slots_max: u64,
    /// Further slots on the devices, for which the map has no room.
    pub unmapped_slots: u64,
    /// Slots that hold a page.
    pub pages: u64,
    /// Blocks that are valid.
    pub valid_blocks: u64,
    /// Slots that are durably free.
    pub free_slots: u64,
    /// Pages with suspect blocks.
    pub suspect_pages: u64,
    /// Pages that were evicted since the opening.
    pub evictions: u64,
    /// Dirty regions, at most 256.
    pub dirty_regions: u64,
    /// Bytes written since the opening, by member.
    pub members: Vec<MemberWrites>,
    /// Memory of the map with its recent writes and pending records, in bytes.
    pub memory_bytes: u64,
}
