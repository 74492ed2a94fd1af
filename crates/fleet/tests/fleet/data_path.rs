//! A small data path: a write-back cache whose dirty data is appended to the log, and destaged to the image.

use fleet::{Epoch, OpId, RequestId};

use crate::storage::{BLOCKS, Log, StorageOp};

/// A cached block.
#[derive(Clone, Debug, Default)]
struct Block {
    value: Option<u32>,
    /// Number of writes.
    version: u32,
    logged_version: u32,
    is_dirty: bool,
    is_written_back: bool,
    /// Records in the log: sequence number and version.
    records: Vec<(u64, u32)>,
}

/// Purpose of an operation of the data path.
#[derive(Clone, Debug)]
pub enum DataOp {
    Append { versions: Vec<(usize, u32)> },
    WriteBack { block: usize, version: u32 },
    Trim { block: usize, version: u32, seqs: Vec<u64> },
    Read { block: usize, request: RequestId },
}

/// Output of the data path.
pub enum Output {
    Send(DataOp, StorageOp),
    /// A request is executed; the value is that of a read.
    Executed(RequestId, u32),
    Quiesced(OpId),
}

/// The data path of an owner.
#[derive(Clone, Debug, Default)]
pub struct DataPath {
    epoch: Epoch,
    blocks: [Block; BLOCKS],
    next_seq: u64,
    /// Records of the append in flight.
    appending: u64,
    /// Flushes that wait for the append in progress, and for the next one.
    flushes: Vec<RequestId>,
    next_flushes: Vec<RequestId>,
    quiesce: Option<OpId>,
    is_quiesced: bool,
    /// Records that the log holds, at most.
    records_max: usize,
    /// An append waits for destage.
    is_log_full: bool,
}

impl DataPath {
    /// The content of a replayed log, in the order of its records.
    pub fn recover(epoch: Epoch, log: &Log, records_max: usize) -> DataPath {
        let mut data = DataPath { epoch, next_seq: log.next_seq, records_max, ..DataPath::default() };
        for (seq, (block, value)) in &log.records {
            let block = &mut data.blocks[*block];
            block.value = Some(*value);
            (block.version, block.logged_version, block.is_dirty) = (1, 1, true);
            block.records.push((*seq, 1));
        }
        data
    }

    pub fn write(&mut self, block: usize, value: u32) {
        let block = &mut self.blocks[block];
        block.value = Some(value);
        block.version += 1;
        block.is_dirty = true;
    }

    pub fn read(&mut self, block: usize, request: RequestId) -> Output {
        match self.blocks[block].value {
            Some(value) => Output::Executed(request, value),
            None => Output::Send(DataOp::Read { block, request }, StorageOp::ReadBlock(block)),
        }
    }

    pub fn flush(&mut self, request: RequestId) -> Vec<Output> {
        self.next_flushes.push(request);
        self.pump()
    }

    pub fn quiesce(&mut self, op: OpId) -> Vec<Output> {
        self.quiesce = Some(op);
        self.pump()
    }

    /// The end of the log, without and with the append in flight.
    pub fn log_end(&self) -> (u64, u64) {
        (self.next_seq, self.next_seq + self.appending)
    }

    pub fn has_dirty(&self) -> bool {
        self.blocks.iter().any(|block| block.is_dirty && !block.is_written_back)
    }

    /// True if an append waits for room in the log.
    pub fn is_log_full(&self) -> bool {
        self.is_log_full
    }

    /// Writes dirty blocks to the image: all if the log is full, or else some, which
    /// `is_chosen` chooses.
    pub fn destage(&mut self, mut is_chosen: impl FnMut() -> bool) -> Vec<Output> {
        if self.appending > 0 || self.is_quiesced {
            return Vec::new();
        }
        let mut outputs = Vec::new();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if block.is_dirty && !block.is_written_back && (self.is_log_full || is_chosen()) {
                block.is_written_back = true;
                let value = block.value.expect("a dirty block has a value");
                let op = StorageOp::WriteBlock { epoch: self.epoch, block: index, value };
                outputs.push(Output::Send(DataOp::WriteBack { block: index, version: block.version }, op));
            }
        }
        outputs
    }

    /// Acts on a successful operation; `value` is that of a read.
    pub fn completed(&mut self, op: DataOp, value: u32) -> Vec<Output> {
        match op {
            DataOp::Append { versions } => {
                for (block, version) in versions {
                    let block = &mut self.blocks[block];
                    block.logged_version = version;
                    block.records.push((self.next_seq, version));
                    self.next_seq += 1;
                }
                self.appending = 0;
                let executed = std::mem::take(&mut self.flushes).into_iter().map(|flush| Output::Executed(flush, 0));
                executed.chain(self.pump()).collect()
            }
            DataOp::WriteBack { block: index, version } => {
                let block = &self.blocks[index];
                let is_covered = |record: &&(u64, u32)| record.1 <= version;
                let seqs: Vec<_> = block.records.iter().filter(is_covered).map(|record| record.0).collect();
                let op = StorageOp::Trim { epoch: self.epoch, seqs: seqs.clone() };
                vec![Output::Send(DataOp::Trim { block: index, version, seqs }, op)]
            }
            DataOp::Trim { block, version, seqs } => {
                let block = &mut self.blocks[block];
                block.records.retain(|record| !seqs.contains(&record.0));
                block.is_written_back = false;
                // Records of earlier versions would hide the image after a crash.
                block.is_dirty = block.version != version || !block.records.is_empty();
                self.pump()
            }
            DataOp::Read { block, request } => {
                let value = *self.blocks[block].value.get_or_insert(value);
                vec![Output::Executed(request, value)]
            }
        }
    }

    /// Appends dirty data that a flush or a drain waits for, and completes them when there is none.
    fn pump(&mut self) -> Vec<Output> {
        if self.appending > 0 || (self.next_flushes.is_empty() && self.quiesce.is_none()) {
            return Vec::new();
        }
        let is_unlogged = |block: &&(usize, &Block)| block.1.is_dirty && block.1.logged_version < block.1.version;
        let unlogged: Vec<_> = self.blocks.iter().enumerate().collect();
        let unlogged: Vec<_> = unlogged.iter().filter(is_unlogged).collect();
        let records = self.blocks.iter().map(|block| block.records.len()).sum::<usize>();
        self.is_log_full = !unlogged.is_empty() && records + unlogged.len() > self.records_max;
        if self.is_log_full {
            return Vec::new();
        }
        self.flushes = std::mem::take(&mut self.next_flushes);
        if unlogged.is_empty() {
            let mut outputs: Vec<_> =
                std::mem::take(&mut self.flushes).into_iter().map(|flush| Output::Executed(flush, 0)).collect();
            if self.blocks.iter().all(|block| !block.is_written_back) {
                self.is_quiesced |= self.quiesce.is_some();
                outputs.extend(self.quiesce.take().map(Output::Quiesced));
            }
            return outputs;
        }
        let versions = unlogged.iter().map(|(index, block)| (*index, block.version)).collect();
        let value = |block: &Block| block.value.expect("a dirty block has a value");
        let records = unlogged.iter().map(|(index, block)| (*index, value(block))).collect();
        self.appending = unlogged.len() as u64;
        let op = StorageOp::Append { epoch: self.epoch, first_seq: self.next_seq, records };
        vec![Output::Send(DataOp::Append { versions }, op)]
    }
}
