//! Notes on runs of blocks that outlive the process, and how they follow what they are about.

use std::collections::BTreeMap;

use seam::RangeNote;

/// The notes on one set of ranges, which are told apart by their first blocks.
#[derive(Default)]
pub struct Noted {
    /// First blocks of ranges that came, went or have another end since they were noted last.
    changed: Vec<u64>,
    /// What is noted, and where, if there was room.
    noted: BTreeMap<u64, (RangeNote, Option<u32>)>,
}

impl Noted {
    /// The range that begins at `start` is not what it was.
    pub fn changed(&mut self, start: u64) {
        self.changed.push(start);
    }

    /// Nothing outlives the process.
    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Has what changed noted by `note`; `now` says what there is by now. Returns where that is noted which is no more.
    pub fn follow(
        &mut self,
        now: impl Fn(u64) -> Option<RangeNote>,
        mut note: impl FnMut(RangeNote) -> Option<u32>,
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
