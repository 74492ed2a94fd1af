//! Reads of blocks from the flash of a sibling, into the sibling's memory.

use std::ops::Range;

use seam::Seam;

use super::FillResult;
use crate::backing::Cause;
use crate::memory::{BlockNo, Sectors};
use crate::policy::InsertKind;
use crate::shard::ShardRef;
use crate::spec::Sabotage;

/// Reads blocks of one page for `shard` from the flash of a sibling. The sibling's memory admits them as after a read
/// of its own, if `admit` says how, so that the next volume finds them there. `None` if one of them cannot be read, or
/// may no longer be the content that both backings share.
///
/// Both volumes have a fill guard meanwhile (R2, docs/rules.md): a write of the sibling may replace its page on flash,
/// and a write of `shard` takes precedence.
pub async fn read_sibling_flash<S: Seam>(
    shard: &ShardRef<S>,
    sibling: &ShardRef<S>,
    blocks: Range<BlockNo>,
    buffers: Vec<S::BlockMut>,
    admit: Option<InsertKind>,
) -> Option<FillResult<S>> {
    let admit = admit.filter(|_| sibling.admits_reads());
    let own_guard =
        shard.with_state(|state, memory| state.issue_fill_guard(memory, shard.volume_number, blocks.clone(), false));
    // The guard reports only changes that begin later. An operation in flight on the sibling's backing belongs to an
    // earlier change, so its blocks may already differ from the shared content.
    let (guard, is_busy) = sibling.with_state(|state, memory| {
        let installs = admit.is_some();
        (state.issue_fill_guard(memory, sibling.volume_number, blocks.clone(), installs), state.is_busy(&blocks))
    });
    let serves_changed = sibling.has_sabotage(Sabotage::ShareDirtyBlock);
    let is_still_shared = || {
        let is_unchanged = |block| guard.invalidated(block) == Sectors::NONE || serves_changed;
        shard.shares_content_with(sibling, blocks.start) && BlockNo::each(&blocks).all(is_unchanged)
    };
    let mut content = None;
    if is_still_shared() && !is_busy {
        let priority = shard.priority_of_read(Cause::ClientRead);
        let read = sibling.read_from_flash(blocks.clone(), buffers, priority).await;
        let blocks_read: Option<Vec<S::Block>> = read.content.into_iter().collect();
        content = blocks_read.filter(|_| is_still_shared()).map(|blocks_read| (blocks_read, read.slot_wait));
    }
    sibling.with_state(|state, memory| {
        for (block, data) in BlockNo::each(&blocks).zip(content.iter().flat_map(|(blocks_read, _)| blocks_read)) {
            sibling.install(state, memory, &guard, block, data, admit);
        }
        state.release_fill_guard(&guard);
    });
    shard.state.borrow_mut().release_fill_guard(&own_guard);
    // The read counts as a use of the sibling's page, which keeps it on flash for both volumes.
    if let Some(pages) = sibling.readable_pages() {
        pages.touch(blocks.start.page().0);
    }
    let (content, waited) = content?;
    let from_flash = content.len();
    Some(FillResult {
        flash_blocks: from_flash,
        slot_wait: waited,
        ..FillResult::new(blocks.start, content, own_guard)
    })
}
