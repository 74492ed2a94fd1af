//! What the owner of a store hears about its pages.

/// Blocks of a page.
pub const PAGE_BLOCKS: u32 = 16;
/// Blocks of a region, the unit in which writes to a backing are marked: 4 MiB.
pub const REGION_BLOCKS: u64 = 1024;

/// What reading the map has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapLoaded {
    /// Pages.
    pub pages: u64,
    /// Pages of them that are suspect.
    pub suspect: u64,
    /// Why all pages were dropped, where they were.
    pub dropped: Option<String>,
}

/// Why a block was not read. Its buffer comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread<B> {
    /// Its copy cannot be read, or is not what was written there (R11). It is not valid any more.
    Bad(B),
    /// It has no valid copy, or lost it while it was read, or there was no buffer to read it with.
    Absent(B),
}

impl<B> Unread<B> {
    /// The buffer.
    pub fn into_buffer(self) -> B {
        match self {
            Unread::Bad(buffer) | Unread::Absent(buffer) => buffer,
        }
    }
}

/// Why a page was not taken. Nothing is lost by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No slot is free at the moment, the page is being written, or the map is not loaded yet.
    #[error("no slot on flash is free at the moment")]
    Busy,
    /// What would have to go is in use.
    #[error("everything on flash is in use")]
    Hot,
    /// The volume has as much as it may have, and none of its own could go.
    #[error("the volume's share of the flash is used up")]
    Share,
    /// A device did not take it, or the store takes nothing more.
    #[error("{0}")]
    Failed(String),
}

/// A write to the backing that is under way: to be given to `end_write` whatever became of it.
#[must_use = "a mark that is not given to end_write keeps its regions in flux"]
#[derive(Debug)]
pub struct WriteMark {
    /// The regions that it keeps in flux, each with its mark's number.
    pub(super) marks: Vec<((u16, u64), u64)>,
}

/// What has been written to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageMember {
    /// The member.
    pub member: u32,
    /// Bytes of pages.
    pub promotion_bytes: u64,
    /// Bytes of the map journal.
    pub journal_bytes: u64,
    /// Bytes of the log's batches, their headers included.
    pub log_bytes: u64,
}

/// How the pages stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagesStats {
    /// The map was read.
    pub loaded: bool,
    /// Slots, of which each can hold a page.
    pub slots: u64,
    /// Slots that there could be while the log needs no more than its reserve.
    pub slots_max: u64,
    /// Slots that hold one.
    pub pages: u64,
    /// Blocks that can be read.
    pub valid_blocks: u64,
    /// Slots that are durably free.
    pub free: u64,
    /// Pages with suspect blocks.
    pub suspect: u64,
    /// Pages that had to go for others, since the opening.
    pub evictions: u64,
    /// Regions in flux, of at most 256.
    pub regions_in_flux: u64,
    /// What was written, by member, since the opening.
    pub members: Vec<PageMember>,
    /// Bytes of memory that map and marks take.
    pub memory_bytes: u64,
}
