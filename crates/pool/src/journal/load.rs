//! Loads the metadata: the newest valid checkpoint, then the journal to its end. Each block is read from any copy that
//! has it intact, so two copies with different damage still give the whole.

use seam::{BLOCK_BYTES, Disk, Seam};
use task_sync::{BoxFuture, join};

use super::WRITE_BLOCKS;
use super::replay::LoadedVolumes;
use crate::buffers::Buffers;
use crate::device::read_raw;
use crate::error::PoolError;
use crate::format::Raw;
use crate::format::block::{BlockKind, CheckpointFacts, MetadataBlock};
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::number::{CheckpointNo, GroupNo, Sequence};

/// Blocks per read.
const READ_BLOCKS: u64 = 256;

/// A journal block that a copy lacks.
pub(crate) struct MissingBlock {
    pub group: GroupNo,
    pub at: u64,
    pub raw: Box<Raw>,
}

/// The loaded metadata and the journal's position.
pub(crate) struct Loaded {
    pub volumes: LoadedVolumes,
    pub next: Sequence,
    pub previous: u32,
    /// The first block that the checkpoint needs.
    pub replay_from: Sequence,
    pub checkpoint: CheckpointNo,
    /// Journal blocks that a copy lacks and another has.
    pub missing: Vec<MissingBlock>,
    /// Copies whose checkpoint is damaged, with the reason. They are no copies until they are written anew.
    pub damaged: Vec<(GroupNo, String)>,
    /// Journal blocks that were replayed.
    pub replayed: u64,
    /// Map records of the checkpoint.
    pub checkpoint_records: u64,
}

/// A valid header of a checkpoint on a copy.
#[derive(Clone, Copy)]
struct Header {
    group: GroupNo,
    number: CheckpointNo,
    facts: CheckpointFacts,
}

/// The copies of a pool's metadata.
struct Copies<'a, S: Seam, D: Disk<S>> {
    buffers: &'a Buffers<S>,
    superblock: &'a Superblock,
    disks: &'a [(GroupNo, D)],
}

/// Loads the metadata from these copies; nothing is written.
pub(crate) async fn load<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    superblock: &Superblock,
    disks: &[(GroupNo, D)],
) -> Result<Loaded, PoolError> {
    let copies = Copies { buffers, superblock, disks };
    let headers = copies.headers().await;
    let Some(journal_end) = headers.iter().map(|header| header.facts.journal_end).max() else {
        return Err(PoolError::Damaged("no copy has a valid checkpoint".to_owned()));
    };
    let mut numbers: Vec<_> = headers.iter().map(|header| header.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut reasons = Vec::new();
    for number in numbers.into_iter().rev() {
        match copies.load_from(number, &headers, journal_end).await {
            Ok(loaded) => return Ok(loaded),
            Err(reason) => reasons.push(format!("checkpoint {number}: {reason}")),
        }
    }
    Err(PoolError::Damaged(reasons.join("; ")))
}

impl<S: Seam, D: Disk<S>> Copies<'_, S, D> {
    /// Reads blocks of one copy; `None` for one that cannot be read.
    async fn read(&self, disk: &D, at: u64, count: u64) -> Vec<Option<Box<Raw>>> {
        if let Ok(blocks) = read_raw(self.buffers, disk, at, count as usize).await {
            return blocks.into_iter().map(Some).collect();
        }
        let mut blocks = Vec::new();
        for index in 0..count {
            let read = read_raw(self.buffers, disk, at + index * BLOCK_BYTES as u64, 1).await;
            blocks.push(read.ok().and_then(|mut one| one.pop()));
        }
        blocks
    }

    /// The valid headers of all copies.
    async fn headers(&self) -> Vec<Header> {
        let mut headers = Vec::new();
        for (group, disk) in self.disks {
            for area in [0, 1] {
                let at = self.superblock.checkpoint_offset(CheckpointNo(area));
                let raw = self.read(disk, at, 1).await.pop().flatten();
                let decoded = raw.and_then(|raw| {
                    let kind = BlockKind::CheckpointHeader;
                    let (block, _) = MetadataBlock::decode(&raw, kind, self.superblock.pool)?;
                    let facts = CheckpointFacts::decode(&block.payload)?;
                    let fits = block.checkpoint.0 % 2 == area && facts.blocks < self.superblock.area_blocks;
                    fits.then_some((block.checkpoint, facts))
                });
                headers.extend(decoded.map(|(number, facts)| Header { group: *group, number, facts }));
            }
        }
        headers
    }

    /// Loads checkpoint `number` and replays the journal, which has to reach `journal_end`.
    async fn load_from(
        &self,
        number: CheckpointNo,
        headers: &[Header],
        journal_end: Sequence,
    ) -> Result<Loaded, String> {
        let with_header: Vec<_> = headers.iter().filter(|header| header.number == number).collect();
        let facts = with_header.first().expect("the number is one of a header's").facts;
        let mut volumes = LoadedVolumes {
            next_volume: facts.next_volume,
            slice_bytes: self.superblock.slice_bytes,
            ..LoadedVolumes::default()
        };
        let mut damaged = self.load_content(number, &facts, &with_header, &mut volumes).await?;
        let checkpoint_records = volumes.map_records;
        // A crash between two headers leaves a copy behind. It is none until the next checkpoint: that one overwrites
        // what the copy has.
        let lacks_header = |group: &GroupNo| !with_header.iter().any(|header| header.group == *group);
        let behind = self.disks.iter().map(|(group, _)| *group).filter(lacks_header);
        damaged.extend(behind.map(|group| (group, format!("it lacks checkpoint {number}"))));
        let mut loaded = Loaded {
            volumes,
            next: facts.replay_from,
            previous: facts.replay_after,
            replay_from: facts.replay_from,
            checkpoint: number,
            missing: Vec::new(),
            damaged,
            replayed: 0,
            checkpoint_records,
        };
        self.replay(&mut loaded).await?;
        if loaded.next < journal_end {
            return Err(format!("the journal ends at block {} and had reached {journal_end}", loaded.next));
        }
        match self.block_past_end(loaded.next).await {
            Some(later) => Err(format!("the journal is damaged at block {}: block {later} exists", loaded.next)),
            None => Ok(loaded),
        }
    }

    /// A block so far past the journal's end that it cannot be a part of a torn last write: the end is damage.
    async fn block_past_end(&self, end: Sequence) -> Option<Sequence> {
        let scans = self.disks.iter().map(|(_, disk)| {
            let scan: BoxFuture<'_, Option<Sequence>> = Box::pin(self.block_past_end_of(disk, end));
            scan
        });
        join(scans.collect()).await.into_iter().flatten().next()
    }

    async fn block_past_end_of(&self, disk: &D, end: Sequence) -> Option<Sequence> {
        let ring = u64::from(self.superblock.journal_blocks);
        let mut index = 0;
        while index < ring {
            let count = READ_BLOCKS.min(ring - index);
            let at = self.superblock.journal_offset(Sequence(index));
            let blocks = self.read(disk, at, count).await;
            let decode = |raw: &Raw| MetadataBlock::decode(raw, BlockKind::Journal, self.superblock.pool);
            let mut sequences = blocks.iter().flatten().filter_map(|raw| Some(decode(raw)?.0.sequence));
            let later = sequences.find(|sequence| sequence.0 >= end.0 + WRITE_BLOCKS as u64);
            if later.is_some() {
                return later;
            }
            index += count;
        }
        None
    }

    /// Loads a checkpoint's content, with pieces of it from every copy at one time. Returns the copies with a damaged
    /// block; such a block is read from another one.
    async fn load_content(
        &self,
        number: CheckpointNo,
        facts: &CheckpointFacts,
        with_header: &[&Header],
        volumes: &mut LoadedVolumes,
    ) -> Result<Vec<(GroupNo, String)>, String> {
        let has_header = |group: GroupNo| with_header.iter().any(|header| header.group == group);
        let sources: Vec<_> = self.disks.iter().filter(|(group, _)| has_header(*group)).collect();
        let mut damaged = Vec::<(GroupNo, String)>::new();
        let area_at = self.superblock.checkpoint_offset(number);
        let offset = |index: u64| area_at + index * BLOCK_BYTES as u64;
        let decode = |raw: Option<Box<Raw>>, index, previous| {
            let (block, checksum) = MetadataBlock::decode(&*raw?, BlockKind::Checkpoint, self.superblock.pool)?;
            let is_next = (block.checkpoint, block.sequence.0, block.previous) == (number, index, previous);
            is_next.then_some((block, checksum))
        };
        let (mut index, mut previous) = (1, 0);
        let end = u64::from(facts.blocks) + 1;
        while index < end {
            let is_sound = |source: &&&(GroupNo, D)| !damaged.iter().any(|(group, _)| *group == source.0);
            let mut readers: Vec<_> = sources.iter().filter(is_sound).copied().collect();
            if readers.is_empty() {
                readers.push(sources[0]);
            }
            let pieces = (index..end).step_by(READ_BLOCKS as usize).zip(&readers);
            let reads = pieces.map(|(first, (group, disk))| {
                let read: BoxFuture<'_, _> =
                    Box::pin(
                        async move { (*group, self.read(disk, offset(first), READ_BLOCKS.min(end - first)).await) },
                    );
                read
            });
            for (group, blocks) in join(reads.collect()).await {
                for raw in blocks {
                    let mut valid = decode(raw, index, previous);
                    if valid.is_none() {
                        if !damaged.iter().any(|(other, _)| *other == group) {
                            damaged.push((group, format!("block {index} of checkpoint {number} is damaged")));
                        }
                        for (_, disk) in sources.iter().filter(|(other, _)| *other != group) {
                            if valid.is_none() {
                                valid =
                                    decode(self.read(disk, offset(index), 1).await.pop().flatten(), index, previous);
                            }
                        }
                    }
                    let (block, checksum) = valid.ok_or_else(|| format!("block {index} is damaged in every copy"))?;
                    apply(&block, volumes)?;
                    (index, previous) = (index + 1, checksum);
                }
            }
        }
        if previous != facts.checksum {
            return Err("the content does not fit its header".to_owned());
        }
        Ok(damaged)
    }

    /// Applies the journal's blocks from `loaded.next` on, and notes the ones that a copy lacks. The journal ends where
    /// a copy shows another block: a block that no copy can read may be one that a flush was acknowledged for.
    async fn replay(&self, loaded: &mut Loaded) -> Result<(), String> {
        let ring = u64::from(self.superblock.journal_blocks);
        let first = loaded.next;
        loop {
            let until_end = ring - loaded.next.0 % ring;
            let count = READ_BLOCKS.min(until_end).min(first.0 + ring - loaded.next.0);
            if count == 0 {
                return Ok(());
            }
            let at = self.superblock.journal_offset(loaded.next);
            let mut read = Vec::new();
            for (group, disk) in self.disks {
                read.push((*group, self.read(disk, at, count).await));
            }
            for index in 0..count as usize {
                let is_unreadable = read.iter().all(|(_, blocks)| blocks[index].is_none());
                if is_unreadable {
                    return Err(format!("no copy of the journal's block {} can be read", loaded.next));
                }
                let decoded: Vec<_> = read
                    .iter_mut()
                    .map(|(group, blocks)| {
                        let raw = blocks[index].take();
                        let block = raw.and_then(|raw| self.successor(&raw, loaded).map(|block| (raw, block)));
                        (*group, block)
                    })
                    .collect();
                let Some((raw, (block, checksum))) = decoded.iter().find_map(|(_, block)| block.clone()) else {
                    return Ok(());
                };
                apply(&block, &mut loaded.volumes)?;
                let at = self.superblock.journal_offset(loaded.next);
                let lacking = decoded.iter().filter(|(_, block)| block.is_none());
                let missing = lacking.map(|(group, _)| MissingBlock { group: *group, at, raw: raw.clone() });
                loaded.missing.extend(missing);
                (loaded.next, loaded.previous) = (loaded.next.next(), checksum);
                loaded.replayed += 1;
            }
        }
    }

    /// The block, if it is the journal's next one.
    fn successor(&self, raw: &Raw, loaded: &Loaded) -> Option<(MetadataBlock, u32)> {
        let (block, checksum) = MetadataBlock::decode(raw, BlockKind::Journal, self.superblock.pool)?;
        ((block.sequence, block.previous) == (loaded.next, loaded.previous)).then_some((block, checksum))
    }
}

fn apply(block: &MetadataBlock, volumes: &mut LoadedVolumes) -> Result<(), String> {
    let mut result = Ok(());
    let decoded = Record::decode_all(&block.payload, |record| {
        if result.is_ok() {
            result = volumes.apply(record);
        }
    });
    decoded.ok_or_else(|| format!("block {} has a record that this version does not know", block.sequence))?;
    result
}
