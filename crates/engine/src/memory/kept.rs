//! What outlives the process: notes in the world's memory that follow the states of slots and zero-ranges.
//!
//! States change many at a time ([`crate::shard::Shard::with`]); notes follow when that is over: first those that are new, then those
//! that are none any more go. A kill in between leaves both, and the newer one counts.

use seam::{BlockNote, Seam};

use super::Memory;
use crate::destage::zeroes::ZeroRanges;
use crate::log::outdated::Outdated;

/// Notes that are due.
pub struct Kept<B> {
    /// Slots with new content that is not clean.
    new: Vec<u32>,
    /// Buffers whose content is clean, or the newest no more, and the numbers of their notes. Held, so that nobody fills them before
    /// their notes are gone.
    gone: Vec<(B, u64)>,
}

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Kept { new: Vec::new(), gone: Vec::new() }
    }
}

impl<S: Seam> Memory<S> {
    /// A slot has new content, in place of `old` where that was another buffer.
    pub fn changed(&mut self, slot: u32, old: Option<S::Block>) {
        if self.seam.keeps() {
            self.kept.new.push(slot);
            if let Some(old) = old {
                self.let_go(old);
            }
        }
    }

    /// What is in a slot is clean.
    pub(super) fn no_longer_kept(&mut self, slot: u32) {
        if self.seam.keeps()
            && let Some(data) = self.slots[slot as usize].data.clone()
        {
            self.let_go(data);
        }
    }

    fn let_go(&mut self, block: S::Block) {
        let number = self.seam.noted(&block);
        if number != 0 {
            self.kept.gone.push((block, number));
        }
    }

    /// Brings the notes of `owner`'s blocks, of its zero-ranges and of what the log has of it in step with their states.
    pub fn keep(&mut self, owner: u64, zeroes: &mut ZeroRanges, outdated: Option<&mut Outdated>) {
        if !self.seam.keeps() {
            zeroes.forget_changes();
            return;
        }
        for id in self.kept.new.drain(..) {
            let slot = &self.slots[id as usize];
            if let Some(data) = slot.data.as_ref().filter(|_| !slot.is_clean()) {
                self.seam.note(data, BlockNote { owner, block: slot.block.0, sectors: slot.present.0 });
            }
        }
        let seam = &self.seam;
        let gone = zeroes.note_changes(owner, |note| seam.note_range(note));
        // Before any content is forgotten: a block that leaves memory for the log has nothing but its record.
        if let Some(outdated) = outdated {
            let current = outdated.note_changes(owner, |note| seam.note_range(note));
            current.into_iter().for_each(|place| seam.forget_range(place));
        }
        for (block, number) in self.kept.gone.drain(..) {
            self.seam.forget(&block, number);
        }
        gone.into_iter().for_each(|place| self.seam.forget_range(place));
    }
}
