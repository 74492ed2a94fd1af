//! Tags of block ranges in persisted memory, updated as the ranges change.

use std::collections::BTreeMap;

use flash::BlockNo;
use seam::RangeTag;

/// The tags of one set of ranges, keyed by first block.
#[derive(Default)]
pub struct Noted {
    /// First blocks of ranges that appeared, disappeared or changed their end since the last update.
    changed: Vec<BlockNo>,
    /// The tags and their places; no place if there was no room.
    noted: BTreeMap<BlockNo, (RangeTag, Option<u32>)>,
}

impl Noted {
    /// Records that the range at `start` has changed.
    pub fn changed(&mut self, start: BlockNo) {
        self.changed.push(start);
    }

    /// Discards the recorded changes: no memory outlives the process.
    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Writes the tags of changed ranges through `note`; `now` returns the present range at a first block. Returns the
    /// places of obsolete tags, which the caller clears.
    pub fn follow(
        &mut self,
        now: impl Fn(BlockNo) -> Option<RangeTag>,
        mut note: impl FnMut(RangeTag) -> Option<u32>,
    ) -> Vec<u32> {
        let mut gone = Vec::new();
        for start in std::mem::take(&mut self.changed) {
            let wanted = now(start);
            if wanted == self.noted.get(&start).map(|(noted, _)| *noted) {
                continue;
            }
            let old = match wanted {
                Some(wanted) => self.noted.insert(start, (wanted, note(wanted))),
                None => self.noted.remove(&start),
            };
            gone.extend(old.and_then(|(_, place)| place));
        }
        gone
    }
}
