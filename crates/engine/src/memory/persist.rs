//! Persisted memory: tags that follow the states of slots and zero-ranges, and survive the process.
//!
//! [`crate::shard::Shard::with_state`] changes many states in one step, and the tags are updated at its end. New tags
//! are written first, then obsolete ones are cleared. A kill in between leaves both: of a block's tags the newest one
//! counts, and of ranges all (`range_tags.rs`).

use flash::VolumeId;
use seam::{BlockTag, Seam};

use super::MemoryCache;
use super::outdated::OutdatedRanges;
use super::zeroes::ZeroRanges;

/// Pending updates of tags.
pub struct TagUpdates<B> {
    /// Slots with new content that is not clean.
    new_slots: Vec<u32>,
    /// Buffers whose content is clean or superseded, and the numbers of their tags. They are held so that they are not
    /// reused before their tags are cleared.
    obsolete_buffers: Vec<(B, u64)>,
}

impl<B> Default for TagUpdates<B> {
    fn default() -> Self {
        TagUpdates { new_slots: Vec::new(), obsolete_buffers: Vec::new() }
    }
}

impl<S: Seam> MemoryCache<S> {
    /// Records that a slot has new content, and that `old` was replaced if it was another buffer.
    pub fn record_new_content(&mut self, slot: u32, old: Option<S::Block>) {
        if self.seam.survives_restart() {
            self.tag_updates.new_slots.push(slot);
            if let Some(old) = old {
                self.queue_clear(old);
            }
        }
    }

    /// Records that the content of a slot is clean.
    pub(super) fn clear_tag(&mut self, slot: u32) {
        if self.seam.survives_restart()
            && let Some(data) = self.slots[slot as usize].data.clone()
        {
            self.queue_clear(data);
        }
    }

    /// Queues the removal of a buffer's tag, if it has one.
    fn queue_clear(&mut self, block: S::Block) {
        let number = self.seam.tag_of(&block);
        if number != 0 {
            self.tag_updates.obsolete_buffers.push((block, number));
        }
    }

    /// Updates the tags of `volume_id`: its blocks, its zero-ranges, and its ranges with outdated log records.
    pub fn update_tags(&mut self, volume_id: VolumeId, zeroes: &mut ZeroRanges, outdated: Option<&mut OutdatedRanges>) {
        if !self.seam.survives_restart() {
            zeroes.discard_tag_changes();
            return;
        }
        for id in self.tag_updates.new_slots.drain(..) {
            let slot = &self.slots[id as usize];
            if let Some(data) = slot.data.as_ref().filter(|_| !slot.is_clean()) {
                self.seam.tag(data, BlockTag { volume_id: volume_id.0, block: slot.block.0, sectors: slot.present.0 });
            }
        }
        let seam = &self.seam;
        let obsolete_ranges = zeroes.update_tags(volume_id, |tag| seam.tag_range(tag));
        // Before any content loses its tag: only a log record holds the content of a spilled block.
        if let Some(outdated) = outdated {
            let obsolete = outdated.update_tags(volume_id, |tag| seam.tag_range(tag));
            obsolete.into_iter().for_each(|index| seam.untag_range(index));
        }
        for (block, number) in self.tag_updates.obsolete_buffers.drain(..) {
            self.seam.untag(&block, number);
        }
        obsolete_ranges.into_iter().for_each(|index| self.seam.untag_range(index));
    }
}
