//! State of a volume's partial blocks, of which only some sectors are in memory. The log takes whole blocks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::memory::BlockNo;

/// State of a shard's partial blocks.
#[derive(Default)]
pub struct PartialBlocks {
    /// Number of blocks that the last log flush has left out, without blocks that were filled since.
    pub left_out_blocks: Cell<u64>,
    /// A task fills the blocks that a flush has left out.
    pub is_filling: Cell<bool>,
    /// Blocks that the task failed to fill: the next flush takes them, and destages the ones that it cannot fill.
    pub unfillable_blocks: RefCell<BTreeSet<BlockNo>>,
    /// Number of groups of fills that an operation waits for.
    pub awaited_fill_groups: Cell<u32>,
}
