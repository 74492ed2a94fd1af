//! Writes and flushes of the backing, which move the records of a block through their write-back stages (R7,
//! docs/rules.md).

use flash::{BlockNo, CompletionNo};

use super::{BlockEntry, LogTracker, WritebackStage};

impl LogTracker {
    /// To be called when the block's newest content is sent to the backing.
    pub fn record_send(&mut self, block: BlockNo) {
        self.stream_bypass.on_send(block);
        if let Some(position) = self.take_from_index(block) {
            self.entries
                .insert(block, BlockEntry { position: Some(position), older: None, stage: WritebackStage::NotSent });
        }
        if let Some(entry) = self.entries.get_mut(&block) {
            entry.stage = WritebackStage::Sent;
        }
    }

    /// To be called when the write of the block to the backing has completed, with its completion number.
    pub fn record_write(&mut self, block: BlockNo, completion: CompletionNo) {
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.stage == WritebackStage::Sent
        {
            entry.stage = WritebackStage::Written(completion);
            self.written_records.push_back((block, completion));
        }
    }

    /// To be called when the write of the block to the backing has failed.
    pub fn record_failed_write(&mut self, block: BlockNo) {
        self.stream_bypass.remove(block);
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.stage == WritebackStage::Sent
        {
            entry.stage = WritebackStage::NotSent;
        }
    }

    /// To be called after a flush of the backing that covers all completions below `covered`.
    pub fn record_backing_flush(&mut self, covered: CompletionNo) {
        for _ in 0..self.written_records.len() {
            let (block, completion) =
                self.written_records.pop_front().expect("the queue has as many entries as counted");
            if completion >= covered {
                self.written_records.push_back((block, completion));
                continue;
            }
            let Some(entry) =
                self.entries.get_mut(&block).filter(|entry| entry.stage == WritebackStage::Written(completion))
            else {
                continue;
            };
            entry.stage = WritebackStage::Durable;
            if entry.position.is_some() {
                let is_keepable = self.is_keepable(block);
                self.retire_record(block, is_keepable);
            }
        }
    }

    /// To be called when the backing may have lost its unflushed writes.
    pub fn record_backing_loss(&mut self) {
        self.stream_bypass.remove_sent();
        for (block, completion) in std::mem::take(&mut self.written_records) {
            if let Some(entry) =
                self.entries.get_mut(&block).filter(|entry| entry.stage == WritebackStage::Written(completion))
            {
                entry.stage = WritebackStage::NotSent;
            }
        }
    }
}
