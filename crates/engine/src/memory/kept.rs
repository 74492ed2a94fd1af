//! Persisted memory: tags that follow the states of slots and zero-ranges, and survive the process.
//!
//! [`crate::shard::Shard::with`] changes many states in one step, and the tags are updated at its end. New tags are
//! written first, then obsolete ones are cleared. A kill in between leaves both, and the newer one counts.

use flash::VolumeId;
use seam::{BlockTag, Seam};

use super::Memory;
use super::zeroes::ZeroRanges;
use crate::log::outdated::Outdated;

/// Pending updates of tags.
pub struct Kept<B> {
    /// Slots with new content that is not clean.
    new: Vec<u32>,
    /// Buffers whose content is clean or superseded, and the numbers of their tags. They are held so that they are not
    /// reused before their tags are cleared.
    gone: Vec<(B, u64)>,
}

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Kept { new: Vec::new(), gone: Vec::new() }
    }
}

impl<S: Seam> Memory<S> {
    /// Records that a slot has new content, and that `old` was replaced if it was another buffer.
    pub fn changed(&mut self, slot: u32, old: Option<S::Block>) {
        if self.seam.survives_restart() {
            self.kept.new.push(slot);
            if let Some(old) = old {
                self.let_go(old);
            }
        }
    }

    /// Records that the content of a slot is clean.
    pub(super) fn no_longer_kept(&mut self, slot: u32) {
        if self.seam.survives_restart()
            && let Some(data) = self.slots[slot as usize].data.clone()
        {
            self.let_go(data);
        }
    }

    fn let_go(&mut self, block: S::Block) {
        let number = self.seam.tag_of(&block);
        if number != 0 {
            self.kept.gone.push((block, number));
        }
    }

    /// Updates the tags of `owner`: its blocks, its zero-ranges, and its ranges with outdated log records.
    pub fn keep(&mut self, owner: VolumeId, zeroes: &mut ZeroRanges, outdated: Option<&mut Outdated>) {
        if !self.seam.survives_restart() {
            zeroes.forget_changes();
            return;
        }
        for id in self.kept.new.drain(..) {
            let slot = &self.slots[id as usize];
            if let Some(data) = slot.data.as_ref().filter(|_| !slot.is_clean()) {
                self.seam.tag(data, BlockTag { owner: owner.0, block: slot.block.0, sectors: slot.present.0 });
            }
        }
        let seam = &self.seam;
        let gone = zeroes.note_changes(owner, |note| seam.tag_range(note));
        // Before any content loses its tag: only a log record holds the content of a spilled block.
        if let Some(outdated) = outdated {
            let current = outdated.note_changes(owner, |note| seam.tag_range(note));
            current.into_iter().for_each(|place| seam.untag_range(place));
        }
        for (block, number) in self.kept.gone.drain(..) {
            self.seam.untag(&block, number);
        }
        gone.into_iter().for_each(|place| self.seam.untag_range(place));
    }
}
