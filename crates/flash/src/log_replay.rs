//! Destage of a volume's dirty data from a store whose owner has failed: the newest records are written to the volume's
//! backing. The store is only read, so the replay can be interrupted at any point and repeated.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use seam::{Disk, DiskError, Piece, Seam};
use task_sync::{BoxFuture, join};

use crate::inspect::Inspection;
use crate::number::{BlockNo, VolumeId};
use crate::record::{RecoveredContent, RecoveredRecord};

/// Number of records that are read before they are written.
const CHUNK_RECORDS: usize = 256;
/// Blocks per request to the backing, and per write of zeroes to one that cannot zero.
const RUN_BLOCKS: usize = 32;
/// Maximum number of attempts if the backing keeps reconnecting, which may lose unflushed writes.
const ATTEMPTS_MAX: u32 = 3;

/// The amount of data that a replay has destaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// Blocks with data.
    pub data_blocks: u64,
    /// Blocks that were zeroed or discarded.
    pub zero_blocks: u64,
}

impl ReplayStats {
    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.data_blocks + self.zero_blocks
    }
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Blocks that were written.
    pub done_blocks: u64,
    /// Blocks that the volume has in the log.
    pub total_blocks: u64,
}

/// The reason why a replay failed: the backing may still lack dirty data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The log is incomplete or damaged: it does not say which data is the newest. Nothing was written.
    #[error("the log cannot be read to its end: {0}")]
    Incomplete(String),
    /// The backing is smaller than the volume was. Nothing was written.
    #[error("the log has dirty data in block {block}, past the end of the backing, which has {backing_blocks} blocks")]
    PastEnd {
        /// The block.
        block: BlockNo,
        /// The size of the backing.
        backing_blocks: u64,
    },
    /// No copy of a block is intact.
    #[error("block {0} has no good copy in the log")]
    Lost(BlockNo),
    /// The backing failed.
    #[error("the backing failed: {0}")]
    Backing(DiskError),
    /// The caller has ended it.
    #[error("it was cancelled")]
    Cancelled,
}

impl<S: Seam> Inspection<S> {
    /// Writes the dirty data of a volume to its backing, and flushes it. No other process may write to the store or to
    /// the backing. `observe` gets the progress before every 256 records, and ends the replay with
    /// [`ControlFlow::Break`].
    pub async fn replay(
        &self,
        volume_id: VolumeId,
        backing: &impl Disk<S>,
        mut observe: impl FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplayStats, ReplayError> {
        if let Some(problem) = &self.problem {
            return Err(ReplayError::Incomplete(problem.to_string()));
        }
        let records: Vec<&RecoveredRecord> =
            self.dirty_blocks.iter().filter(|record| record.address.volume_id == volume_id).collect();
        let backing_blocks = backing.geometry().size_bytes.div_ceil(seam::BLOCK_BYTES as u64);
        if let Some(last) = records.last()
            && last.blocks().end > BlockNo(backing_blocks)
        {
            return Err(ReplayError::PastEnd { block: last.blocks().end.previous(), backing_blocks });
        }
        let total_blocks = records.iter().map(|record| BlockNo::count(&record.blocks())).sum();
        for _ in 0..ATTEMPTS_MAX {
            let connection_epoch = backing.connection_epoch();
            let mut replayed = ReplayStats::default();
            for chunk in records.chunks(CHUNK_RECORDS) {
                let progress = ReplayProgress { done_blocks: replayed.blocks(), total_blocks };
                if observe(progress).is_break() {
                    return Err(ReplayError::Cancelled);
                }
                let written = self.replay_chunk(chunk, backing).await?;
                replayed.data_blocks += written.data_blocks;
                replayed.zero_blocks += written.zero_blocks;
            }
            backing.flush().await.map_err(ReplayError::Backing)?;
            if backing.connection_epoch() == connection_epoch {
                return Ok(replayed);
            }
        }
        Err(ReplayError::Backing(DiskError::Io("it keeps reconnecting before its writes are flushed".to_owned())))
    }

    /// Writes the content of these records to the backing, adjacent blocks in one request.
    async fn replay_chunk(
        &self,
        records: &[&RecoveredRecord],
        backing: &impl Disk<S>,
    ) -> Result<ReplayStats, ReplayError> {
        let contents = self.read_many(records).await?;
        let mut runs: Vec<(BlockNo, Vec<S::Block>)> = Vec::new();
        for (block, content) in contents {
            match runs.last_mut() {
                Some((first, run)) if first.plus(run.len() as u64) == block && run.len() < RUN_BLOCKS => {
                    run.push(content);
                }
                _ => runs.push((block, vec![content])),
            }
        }
        let data_blocks = runs.iter().map(|(_, run)| run.len() as u64).sum();
        let writes = runs.into_iter().map(|(first, run)| {
            let write: BoxFuture<'_, _> = Box::pin(write_run(backing, first, run));
            write
        });
        join(writes.collect()).await.into_iter().collect::<Result<(), _>>().map_err(ReplayError::Backing)?;
        let mut zero_blocks = 0;
        for record in records {
            if let RecoveredContent::Zero { blocks, may_unmap } = record.content {
                let range = ZeroRange { first: record.address.block, blocks: u64::from(blocks), may_unmap };
                range.write(&self.seam, backing).await.map_err(ReplayError::Backing)?;
                zero_blocks += u64::from(blocks);
            }
        }
        Ok(ReplayStats { data_blocks, zero_blocks })
    }

    /// Reads the blocks of records, in the order of the log.
    async fn read_many(&self, records: &[&RecoveredRecord]) -> Result<BTreeMap<BlockNo, S::Block>, ReplayError> {
        let is_data = |record: &&&RecoveredRecord| record.content == RecoveredContent::Data;
        let mut in_log: Vec<&RecoveredRecord> = records.iter().filter(is_data).copied().collect();
        in_log.sort_unstable_by_key(|record| (record.position.segment, record.position.block_index));
        let follows = |earlier: &&RecoveredRecord, later: &&RecoveredRecord| {
            (earlier.position.segment, earlier.position.block_index + 1)
                == (later.position.segment, later.position.block_index)
        };
        let reads = in_log.chunk_by(follows).flat_map(|run| run.chunks(RUN_BLOCKS)).map(|run| {
            let read: BoxFuture<'_, _> = Box::pin(self.read_run(run));
            read
        });
        let mut contents = BTreeMap::new();
        for read in join(reads.collect()).await {
            contents.extend(read?);
        }
        Ok(contents)
    }

    /// Reads records that follow each other in the log.
    async fn read_run(&self, run: &[&RecoveredRecord]) -> Result<Vec<(BlockNo, S::Block)>, ReplayError> {
        let together = self.read_adjacent(run).await;
        let mut contents = Vec::with_capacity(run.len());
        for (index, record) in run.iter().enumerate() {
            let block = record.address.block;
            let content = match together.get(index).filter(|content| self.is_intact(record, content)) {
                Some(content) => Some(content.clone()),
                None => self.read(record).await,
            };
            contents.push((block, content.ok_or(ReplayError::Lost(block))?));
        }
        Ok(contents)
    }
}

/// Writes adjacent blocks to the backing, from block `first` on.
async fn write_run<S: Seam>(backing: &impl Disk<S>, first: BlockNo, run: Vec<S::Block>) -> Result<(), DiskError> {
    // The last block ends with the backing, whose size need not be a multiple of the block size.
    let size_bytes = backing.geometry().size_bytes;
    let cut = |(offset, block): (u64, S::Block)| match size_bytes - offset {
        left if left < seam::BLOCK_BYTES as u64 => Piece::new(block, 0, left as usize),
        _ => Piece::whole(block),
    };
    let offsets = (first.offset()..).step_by(seam::BLOCK_BYTES);
    backing.write(first.offset(), offsets.zip(run).map(cut).collect()).await
}

/// A range of blocks that reads as zeroes.
struct ZeroRange {
    first: BlockNo,
    blocks: u64,
    /// The backing may release the range's space.
    may_unmap: bool,
}

impl ZeroRange {
    /// Zeroes the range on the backing: by a zero request, or by writes of zeroes if the backing does not support it.
    async fn write<S: Seam>(&self, seam: &S, backing: &impl Disk<S>) -> Result<(), DiskError> {
        let at = self.first.offset();
        let end = self.first.plus(self.blocks).offset().min(backing.geometry().size_bytes);
        match backing.zero(at, end - at, self.may_unmap).await {
            Err(DiskError::Unsupported) => {}
            other => return other,
        }
        let mut first = self.first;
        while first.offset() < end {
            let count = RUN_BLOCKS.min((self.first.plus(self.blocks).distance_from(first)) as usize);
            write_run(backing, first, vec![seam.zero_block(); count]).await?;
            first = first.plus(count as u64);
        }
        Ok(())
    }
}
