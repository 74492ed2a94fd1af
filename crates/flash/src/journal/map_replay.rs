//! The replay of one half of the map journal: its records are applied to an empty map.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::Uuid;
use crate::format::batch::BLOCKS_END;
use crate::format::journal::JournalRecord;
use crate::number::{MemberNo, MemberSegment, SegmentNo, VolumeId};
use crate::page_map::dirty_regions::{REGION_BLOCKS, Region};
use crate::page_map::recent_writes::RecentWrites;
use crate::page_map::table::{SlotId, SlotTable, key_of, page_of};

/// A map that is being replayed.
pub struct MapReplay {
    /// The slots; the table is not indexed yet.
    pub table: SlotTable,
    /// The frame of each member's segment.
    pub frames: BTreeMap<MemberSegment, u32>,
    /// The segment looked up last, with its frame: a checkpoint has the slots frame by frame.
    last_frame: Option<(MemberSegment, u32)>,
    /// Volumes by number.
    pub volumes: BTreeMap<u16, VolumeId>,
    /// Dirty regions.
    pub dirty_regions: BTreeSet<Region>,
    /// Recent writes.
    pub recent_writes: RecentWrites,
    /// The identity under which each member's pages were written.
    pub members: BTreeMap<MemberNo, Uuid>,
    /// Number of segments of each member, by member number.
    segment_counts: Vec<u32>,
}

impl MapReplay {
    /// An empty map. A frame has `slots_per_frame` slots.
    ///
    /// `segment_counts` has the number of segments of each member. Records of other segments are ignored: they belong
    /// to a removed device or are forged. `recent_writes_max` is the maximum number of recent writes;
    /// `zero_checksum` is the checksum of a block of zeroes.
    pub fn new(
        slots_per_frame: u32,
        recent_writes_max: usize,
        zero_checksum: u32,
        segment_counts: Vec<u32>,
    ) -> MapReplay {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(recent_writes_max, zero_checksum);
        MapReplay {
            table: SlotTable::new(slots_per_frame, 0),
            frames: BTreeMap::new(),
            last_frame: None,
            volumes: BTreeMap::new(),
            dirty_regions: BTreeSet::new(),
            recent_writes,
            members: BTreeMap::new(),
            segment_counts,
        }
    }

    /// Applies a record.
    pub fn apply(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Slot { member, slot, volume_number, page, valid_mask, write_counts, generation } => {
                if let Some(slot) = self.slot_of_member(member, slot) {
                    let key = key_of(volume_number, page);
                    self.table.restore(slot, Some((key, valid_mask, write_counts)), generation);
                }
            }
            JournalRecord::Free { member, slot, generation } => {
                if let Some(slot) = self.slot_of_member(member, slot) {
                    self.table.restore(slot, None, generation);
                }
            }
            JournalRecord::Segment { member, segment, segment_generation } => {
                self.free_segment(member, segment);
                if self.segment_counts.get(member.index()).is_none_or(|count| segment.0 >= *count) {
                    return;
                }
                let frame = self.table.add_frame(member, segment, segment_generation);
                self.frames.insert((member, segment), frame);
            }
            JournalRecord::FreeSegment { member, segment } => self.free_segment(member, segment),
            JournalRecord::Volume { number, volume_id } => drop(self.volumes.insert(number, volume_id)),
            JournalRecord::VolumeRemoved { number } => {
                self.volumes.remove(&number);
                self.drop_pages(number);
                self.dirty_regions.retain(|region| region.volume_number != number);
                self.recent_writes.remove_volume(number);
            }
            JournalRecord::Member { member, uuid } => {
                let before = self.members.insert(member, uuid);
                if before.is_some_and(|before| before != uuid) {
                    self.drop_member(member);
                }
            }
            JournalRecord::MemberRemoved { member } => self.drop_member(member),
            // Ignore blocks past the end of any volume.
            JournalRecord::DirtyRegion { region, .. } if region >= BLOCKS_END.0 / REGION_BLOCKS => {}
            JournalRecord::RecentWrite { block, .. } | JournalRecord::RecentWriteRemoved { block, .. }
                if block >= BLOCKS_END => {}
            JournalRecord::DirtyRegion { volume_number, region, is_dirty } => {
                let region = Region { volume_number, index: region };
                if is_dirty {
                    self.dirty_regions.insert(region);
                } else {
                    self.dirty_regions.remove(&region);
                }
            }
            JournalRecord::RecentWrite { volume_number: volume, block, checksum, was_reread: true } => {
                self.recent_writes.record_reread(volume, block, checksum);
            }
            JournalRecord::RecentWrite { volume_number: volume, block, checksum, .. } => {
                self.recent_writes.push(volume, block, checksum)
            }
            JournalRecord::RecentWriteRemoved { volume_number: volume, block } => {
                drop(self.recent_writes.remove(volume, block.single()))
            }
        }
    }

    /// The slot of this number of a member, if its segment holds pages.
    fn slot_of_member(&mut self, member: MemberNo, slot: u32) -> Option<SlotId> {
        let per_frame = self.table.slots_per_frame();
        let segment = (member, SegmentNo(slot.checked_div(per_frame)?));
        if self.last_frame.is_none_or(|(last, _)| last != segment) {
            self.last_frame = Some((segment, *self.frames.get(&segment)?));
        }
        let (_, frame) = self.last_frame?;
        Some(self.table.slots_of(frame).start + slot % per_frame)
    }

    /// Drops the pages of a segment.
    pub fn free_segment(&mut self, member: MemberNo, segment: SegmentNo) {
        self.last_frame = None;
        if let Some(frame) = self.frames.remove(&(member, segment)) {
            self.table.discard_frame(frame);
        }
    }

    /// Drops the pages of a member.
    pub fn drop_member(&mut self, member: MemberNo) {
        let segments: Vec<_> = self
            .frames
            .range((member, SegmentNo(0))..=(member, SegmentNo::MAX))
            .map(|((_, segment), _)| *segment)
            .collect();
        segments.into_iter().for_each(|segment| self.free_segment(member, segment));
    }

    /// Drops the pages of a volume.
    fn drop_pages(&mut self, volume_number: u16) {
        let slots = self.frames.values().flat_map(|frame| self.table.slots_of(*frame));
        let of_volume = |slot: &SlotId| self.table.has_key(*slot) && page_of(self.table.key(*slot)).0 == volume_number;
        for slot in slots.filter(of_volume).collect::<Vec<_>>() {
            self.table.restore(slot, None, self.table.generation(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::BlockNo;

    #[test]
    fn records_past_the_end_of_members_and_volumes_are_ignored() {
        let mut replay = MapReplay::new(1 << 14, 10, 0, vec![4, 8]);
        for segment in [3, 4, 1 << 20, u32::MAX].map(SegmentNo) {
            replay.apply(JournalRecord::Segment { member: MemberNo(0), segment, segment_generation: 1 });
            replay.apply(JournalRecord::Segment { member: MemberNo(7), segment, segment_generation: 1 });
        }
        assert_eq!(replay.frames.keys().collect::<Vec<_>>(), [&(MemberNo(0), SegmentNo(3))]);
        for at in [BLOCKS_END, BlockNo::MAX] {
            replay.apply(JournalRecord::DirtyRegion { volume_number: 1, region: at.0, is_dirty: true });
            replay.apply(JournalRecord::RecentWrite { volume_number: 1, block: at, checksum: 1, was_reread: false });
            replay.apply(JournalRecord::RecentWriteRemoved { volume_number: 1, block: at });
        }
        assert!(replay.dirty_regions.is_empty());
    }
}
