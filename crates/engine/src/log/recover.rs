//! After a restart: what the log holds of a volume rests there, before anybody asks for the volume. Nothing but the log's headers has been
//! read for that; a block that turns out to have no good copy fails who asks for it.

use std::ops::Range;

use flash::{Recovered, RecoveredContent};
use seam::kept::Left;
use seam::{DiskError, Seam};

use crate::RequestError;
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Takes `records` over, the newest of each block, in the blocks' order, as far as they are not out of date by what is `left`.
    pub fn recover(self: &ShardRef<S>, records: &[Recovered], left: &Left) -> Result<(), RequestError> {
        if let Some(range) = records.iter().find(|record| record.content != RecoveredContent::Data) {
            let block = range.owner.block;
            let text = format!("the flash log holds a zero-range at block {block}, which this version never writes");
            return Err(DiskError::Io(text).into());
        }
        let blocks = self.blocks();
        let outdated = merged(left);
        let counts = |block: u64| {
            let last = outdated.partition_point(|range| range.start <= block).checked_sub(1);
            block < blocks && !last.is_some_and(|last| outdated[last].contains(&block))
        };
        self.with(|state, _| state.adopt(records.iter().map(|one| (one.owner.block, one.position)), counts));
        self.core.keep_ticking();
        self.work.notify();
        Ok(())
    }
}

/// What is out of date, in order and apart from each other: a kill between a new note and the end of those that it replaces leaves both.
fn merged(left: &Left) -> Vec<Range<u64>> {
    let mut notes: Vec<_> = left.outdated.iter().map(|note| note.start..note.end).collect();
    notes.sort_unstable_by_key(|note| note.start);
    notes.dedup_by(|next, last| {
        let touch = next.start <= last.end;
        if touch {
            last.end = last.end.max(next.end);
        }
        touch
    });
    notes
}
