//! Loads the metadata: the newest valid checkpoint, then the journal to its end. Each block is read from any copy that
//! has it intact, so two copies with different damage still give the whole.

use std::ops::Range;

use seam::{BLOCK_BYTES, Block, Disk, Seam};
use task_sync::{BoxFuture, both, join};

use super::WRITE_BLOCKS;
use super::replay::LoadedVolumes;
use crate::buffers::Buffers;
use crate::device::{read_each, read_one};
use crate::error::PoolError;
use crate::format::block::{BlockKind, CheckpointFacts, MetadataBlock};
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::format::{Raw, Uuid};
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

/// Blocks of one copy, in memory that later reads use again.
#[derive(Default)]
struct ReadBlocks {
    raw: Vec<Raw>,
    is_readable: Vec<bool>,
}

impl ReadBlocks {
    /// A block; `None` if it could not be read.
    fn get(&self, index: usize) -> Option<&Raw> {
        self.is_readable[index].then(|| &self.raw[index])
    }
}

/// Neighbouring blocks of a checkpoint's content, from one copy.
struct ContentPiece {
    group: GroupNo,
    blocks: ReadBlocks,
}

/// A checkpoint's content while it is loaded.
struct Content<'a> {
    number: CheckpointNo,
    /// The copies with the checkpoint's header.
    sources: Vec<GroupNo>,
    /// The next block to apply, and the checksum of the one before.
    index: u64,
    previous: u32,
    /// Copies with a damaged block, with the reason.
    damaged: Vec<(GroupNo, String)>,
    volumes: &'a mut LoadedVolumes,
}

impl Content<'_> {
    /// The copies to read from: the sound ones, or the first one if none is sound.
    fn readers(&self) -> Vec<GroupNo> {
        let is_sound = |group: &&GroupNo| !self.damaged.iter().any(|(damaged, _)| damaged == *group);
        let mut readers: Vec<_> = self.sources.iter().filter(is_sound).copied().collect();
        if readers.is_empty() {
            readers.push(self.sources[0]);
        }
        readers
    }

    /// Notes that the next block is damaged in a copy.
    fn note_damage(&mut self, group: GroupNo) {
        if !self.damaged.iter().any(|(damaged, _)| *damaged == group) {
            self.damaged.push((group, format!("block {} of checkpoint {} is damaged", self.index, self.number)));
        }
    }

    /// Applies the records of the checkpoint's next block. Returns false if the block is damaged or another one.
    fn apply(&mut self, raw: &Raw, pool: Uuid) -> Result<bool, String> {
        let Some((block, checksum)) = MetadataBlock::decode(raw, BlockKind::Checkpoint, pool) else {
            return Ok(false);
        };
        if (block.checkpoint, block.sequence.0, block.previous) != (self.number, self.index, self.previous) {
            return Ok(false);
        }
        apply(&block, self.volumes)?;
        (self.index, self.previous) = (self.index + 1, checksum);
        Ok(true)
    }
}

/// The copies of a pool's metadata.
struct Copies<'a, S: Seam, D: Disk<S>> {
    seam: &'a S,
    buffers: &'a Buffers<S>,
    superblock: &'a Superblock,
    disks: &'a [(GroupNo, D)],
}

/// Loads the metadata from these copies; nothing is written.
pub(crate) async fn load<S: Seam, D: Disk<S>>(
    seam: &S,
    buffers: &Buffers<S>,
    superblock: &Superblock,
    disks: &[(GroupNo, D)],
) -> Result<Loaded, PoolError> {
    let copies = Copies { seam, buffers, superblock, disks };
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
    /// Reads blocks of one copy, and calls `visit` with the index and content of each that can be read. If a read of
    /// several blocks fails, they are read one by one, and `visit` may get a block twice.
    async fn visit(&self, disk: &D, at: u64, count: u64, mut visit: impl FnMut(usize, &S::Block)) {
        if read_each(self.buffers, disk, at, count as usize, &mut visit).await.is_ok() {
            return;
        }
        for index in 0..count {
            let at = at + index * BLOCK_BYTES as u64;
            read_each(self.buffers, disk, at, 1, |_, block| visit(index as usize, block)).await.ok();
        }
    }

    /// Reads blocks of one copy.
    async fn read(&self, disk: &D, at: u64, count: u64, blocks: &mut ReadBlocks) {
        let ReadBlocks { raw, is_readable } = blocks;
        raw.resize(count as usize, [0; BLOCK_BYTES]);
        is_readable.clear();
        is_readable.resize(count as usize, false);
        let copy = |index: usize, block: &S::Block| {
            block.read_bytes(0, &mut raw[index]);
            is_readable[index] = true;
        };
        self.visit(disk, at, count, copy).await;
    }

    /// The disk of a copy.
    fn disk(&self, group: GroupNo) -> &D {
        let found = self.disks.iter().find(|(number, _)| *number == group);
        &found.expect("the group is a copy").1
    }

    /// The valid headers of all copies.
    async fn headers(&self) -> Vec<Header> {
        let mut headers = Vec::new();
        for (group, disk) in self.disks {
            for area in [0, 1] {
                let at = self.superblock.checkpoint_offset(CheckpointNo(area));
                let raw = read_one(self.buffers, disk, at).await.ok();
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
            let mut later = None;
            let check = |_, block: &S::Block| {
                // A block before that is no sign of damage, so its checksum need not be computed.
                if MetadataBlock::unchecked_sequence(block).0 < end.0 + WRITE_BLOCKS as u64 {
                    return;
                }
                let mut raw = [0; BLOCK_BYTES];
                block.read_bytes(0, &mut raw);
                let decoded = MetadataBlock::decode(&raw, BlockKind::Journal, self.superblock.pool);
                later = later.or(decoded.map(|(block, _)| block.sequence));
            };
            self.visit(disk, at, count, check).await;
            if later.is_some() {
                return later;
            }
            index += count;
        }
        None
    }

    /// Loads a checkpoint's content. Returns the copies with a damaged block; such a block is read from another one.
    async fn load_content(
        &self,
        number: CheckpointNo,
        facts: &CheckpointFacts,
        with_header: &[&Header],
        volumes: &mut LoadedVolumes,
    ) -> Result<Vec<(GroupNo, String)>, String> {
        let has_header = |group: &GroupNo| with_header.iter().any(|header| header.group == *group);
        let sources: Vec<_> = self.disks.iter().map(|(group, _)| *group).filter(has_header).collect();
        let mut content = Content { number, sources, index: 1, previous: 0, damaged: Vec::new(), volumes };
        let end = u64::from(facts.blocks) + 1;
        let mut spare = Vec::new();
        let mut pieces = self.read_pieces(number, content.readers(), 1..end, &mut spare).await;
        while !pieces.is_empty() {
            // The next pieces are read while these are applied.
            let next = content.index + pieces.iter().map(|piece| piece.blocks.raw.len() as u64).sum::<u64>();
            let reads = self.read_pieces(number, content.readers(), next..end, &mut spare);
            let applying = async {
                // The reads reach the kernel before the first block is applied.
                self.seam.yield_now().await;
                self.apply_pieces(&mut content, &pieces).await
            };
            let (following, applied) = both(reads, applying).await;
            applied?;
            spare.extend(std::mem::replace(&mut pieces, following).into_iter().map(|piece| piece.blocks));
        }
        if content.previous != facts.checksum {
            return Err("the content does not fit its header".to_owned());
        }
        Ok(content.damaged)
    }

    /// Reads the first pieces of a range of a checkpoint's blocks, one from each of `readers` at one time.
    async fn read_pieces(
        &self,
        number: CheckpointNo,
        readers: Vec<GroupNo>,
        blocks: Range<u64>,
        spare: &mut Vec<ReadBlocks>,
    ) -> Vec<ContentPiece> {
        let area_at = self.superblock.checkpoint_offset(number);
        let (end, firsts) = (blocks.end, blocks.step_by(READ_BLOCKS as usize));
        let reads = firsts.zip(readers).map(|(first, group)| {
            let mut piece = ContentPiece { group, blocks: spare.pop().unwrap_or_default() };
            let read: BoxFuture<'_, ContentPiece> = Box::pin(async move {
                let at = area_at + first * BLOCK_BYTES as u64;
                self.read(self.disk(group), at, READ_BLOCKS.min(end - first), &mut piece.blocks).await;
                piece
            });
            read
        });
        join(reads.collect()).await
    }

    /// Applies the records of the next blocks of a checkpoint.
    async fn apply_pieces(&self, content: &mut Content<'_>, pieces: &[ContentPiece]) -> Result<(), String> {
        for piece in pieces {
            for index in 0..piece.blocks.raw.len() {
                let is_applied = match piece.blocks.get(index) {
                    Some(raw) => content.apply(raw, self.superblock.pool)?,
                    None => false,
                };
                if !is_applied {
                    content.note_damage(piece.group);
                    self.apply_from_another_copy(content, piece.group).await?;
                }
            }
        }
        Ok(())
    }

    /// Applies the next block of a checkpoint from a copy other than `damaged`.
    async fn apply_from_another_copy(&self, content: &mut Content<'_>, damaged: GroupNo) -> Result<(), String> {
        let at = self.superblock.checkpoint_offset(content.number) + content.index * BLOCK_BYTES as u64;
        let others: Vec<_> = content.sources.iter().filter(|group| **group != damaged).copied().collect();
        for group in others {
            if let Ok(raw) = read_one(self.buffers, self.disk(group), at).await
                && content.apply(&raw, self.superblock.pool)?
            {
                return Ok(());
            }
        }
        Err(format!("block {} is damaged in every copy", content.index))
    }

    /// Applies the journal's blocks from `loaded.next` on, and notes the ones that a copy lacks. The journal ends where
    /// a copy shows another block: a block that no copy can read may be one that a flush was acknowledged for.
    async fn replay(&self, loaded: &mut Loaded) -> Result<(), String> {
        let ring = u64::from(self.superblock.journal_blocks);
        let first = loaded.next;
        let mut read: Vec<_> = self.disks.iter().map(|(group, _)| (*group, ReadBlocks::default())).collect();
        loop {
            let until_end = ring - loaded.next.0 % ring;
            let count = READ_BLOCKS.min(until_end).min(first.0 + ring - loaded.next.0);
            if count == 0 {
                return Ok(());
            }
            let at = self.superblock.journal_offset(loaded.next);
            for ((_, disk), (_, blocks)) in self.disks.iter().zip(&mut read) {
                self.read(disk, at, count, blocks).await;
            }
            for index in 0..count as usize {
                let is_unreadable = read.iter().all(|(_, blocks)| blocks.get(index).is_none());
                if is_unreadable {
                    return Err(format!("no copy of the journal's block {} can be read", loaded.next));
                }
                let decoded: Vec<_> = read
                    .iter()
                    .map(|(group, blocks)| {
                        let raw = blocks.get(index);
                        (*group, raw.and_then(|raw| self.successor(raw, loaded).map(|block| (raw, block))))
                    })
                    .collect();
                let Some((raw, (block, checksum))) = decoded.iter().find_map(|(_, block)| block.as_ref()) else {
                    return Ok(());
                };
                apply(block, &mut loaded.volumes)?;
                let at = self.superblock.journal_offset(loaded.next);
                let lacking = decoded.iter().filter(|(_, block)| block.is_none());
                let missing = lacking.map(|(group, _)| MissingBlock { group: *group, at, raw: Box::new(**raw) });
                loaded.missing.extend(missing);
                (loaded.next, loaded.previous) = (loaded.next.next(), *checksum);
                loaded.replayed += 1;
            }
        }
    }

    /// The block, if it is the journal's next one.
    fn successor<'r>(&self, raw: &'r Raw, loaded: &Loaded) -> Option<(MetadataBlock<'r>, u32)> {
        let (block, checksum) = MetadataBlock::decode(raw, BlockKind::Journal, self.superblock.pool)?;
        ((block.sequence, block.previous) == (loaded.next, loaded.previous)).then_some((block, checksum))
    }
}

fn apply(block: &MetadataBlock<'_>, volumes: &mut LoadedVolumes) -> Result<(), String> {
    let mut result = Ok(());
    let decoded = Record::decode_all(&block.payload, |record| {
        if result.is_ok() {
            result = volumes.apply(record);
        }
    });
    decoded.ok_or_else(|| format!("block {} has a record that this version does not know", block.sequence))?;
    result
}
