//! Appends of records to the log: one of blocks, one of ranges, each with its begin and its result.

use std::ops::Range;

use flash::{BlockNo, Position};

use super::{BlockEntry, LogTracker, RecordContent, WritebackStage};

impl LogTracker {
    /// Begins the append of a block's content; `stage` is its write-back stage.
    pub fn begin_append(&mut self, block: BlockNo, stage: WritebackStage) {
        self.may_have_records = true;
        let older = match self.entries.remove(&block) {
            Some(entry) => entry.position,
            None => self.take_from_index(block),
        };
        self.entries.insert(block, BlockEntry { position: None, older, stage });
        if let WritebackStage::Written(completion) = stage {
            self.written_records.push_back((block, completion));
        }
    }

    /// To be called when these appended records are durable at `positions`.
    pub fn on_appends_durable(&mut self, contents: &[(Range<BlockNo>, RecordContent)], positions: &[Position]) {
        for ((blocks, content), position) in contents.iter().zip(positions) {
            match content {
                RecordContent::Data => self.on_block_append_durable(blocks.start, *position),
                // Newer content may have become durable on the backing since the record was made: its blocks stay
                // marked as out of date until the flush ends.
                RecordContent::Zeroes { .. } => {
                    self.retire_replaced_records(blocks.clone());
                    self.zero_records.insert(blocks.clone(), *position);
                }
                RecordContent::Tombstone => self.on_tombstones_durable(blocks.clone()),
            }
        }
    }

    /// The appended record of the block is durable at `position`.
    fn on_block_append_durable(&mut self, block: BlockNo, position: Position) {
        let entry = self.entries.get_mut(&block).expect("the append was registered");
        entry.position = Some(position);
        self.retirable_positions.extend(entry.older.take());
        if !self.zero_records.is_empty() {
            self.zero_records.cut(&block.single(), &mut self.retirable_positions);
        }
        let entry = &self.entries[&block];
        if entry.stage == WritebackStage::Durable {
            // Content that changed later is in `changes`; the changes of the flush itself are in the record.
            let is_keepable = !self.changes.overlaps(&block.single());
            self.retire_record(block, is_keepable);
        }
    }

    /// To be called when the append of the block's record failed. A recovery may then find the older record, if there
    /// is one.
    pub fn on_append_failed(&mut self, block: BlockNo) {
        let entry = self.entries.get_mut(&block).expect("the append was registered");
        entry.position = entry.older.take();
        match entry.position {
            // The write in flight may carry content older than that of the older record, so it proves nothing.
            Some(_) => entry.stage = WritebackStage::NotSent,
            None => {
                self.entries.remove(&block);
            }
        }
    }

    /// To be called when the first append of a volume without records failed: the log still holds none.
    pub fn on_first_append_failed(&mut self) {
        assert!(!self.holds_segments(), "the first append of a volume without records failed");
        self.may_have_records = false;
    }

    /// Begins an append of zeroes or tombstones of ranges.
    pub fn begin_range_append(&mut self) {
        self.may_have_records = true;
    }

    /// Tombstones of these blocks are durable.
    fn on_tombstones_durable(&mut self, blocks: Range<BlockNo>) {
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(blocks.clone()));
        self.retire_replaced_records(blocks);
    }

    /// To be called when tombstones of the whole volume are durable: a recovery finds none of its records.
    pub fn on_all_tombstones_durable(&mut self) {
        self.on_tombstones_durable(BlockNo::ALL);
        self.zero_records.clear(&mut self.retirable_positions);
        self.may_have_records = false;
    }
}
