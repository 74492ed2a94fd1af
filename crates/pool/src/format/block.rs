//! A metadata block other than the superblock: of the journal, or of a checkpoint.

use std::borrow::Cow;

use super::{CHECKSUM_AT, Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{CheckpointNo, Sequence, VolumeId};
use seam::Block;

use metadata_block::{get, get_u32, get_u64, put};

const MAGIC: [u8; 8] = *b"HOTSETPM";
const SEQUENCE_AT: usize = 32;
const PAYLOAD_AT: usize = 64;
/// Bytes of records that fit into a block.
pub const PAYLOAD_BYTES: usize = CHECKSUM_AT - PAYLOAD_AT;
const FLAG_LAST: u8 = 1;

/// The kind of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A block of the journal.
    Journal,
    /// A block with a checkpoint's records.
    Checkpoint,
    /// The header that makes a checkpoint valid.
    CheckpointHeader,
}

/// The content of a metadata block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataBlock<'a> {
    /// Its kind.
    pub kind: BlockKind,
    /// Identity of the pool.
    pub pool: Uuid,
    /// In the journal: the block's number. In a checkpoint: its index in the area.
    pub sequence: Sequence,
    /// In the journal: the newest complete checkpoint. In a checkpoint: its number.
    pub checkpoint: CheckpointNo,
    /// A random number of the opening that wrote the block. It makes every block differ from those of other openings.
    pub boot: u64,
    /// Checksum of the preceding block; 0 before the first.
    pub previous: u32,
    /// The block ends a commit. Records of a commit without its last block are void.
    pub is_last: bool,
    /// The records.
    pub payload: Cow<'a, [u8]>,
}

impl<'a> MetadataBlock<'a> {
    /// Encodes the block and returns its checksum.
    pub fn encode(&self) -> (Box<Raw>, u32) {
        assert!(self.payload.len() <= PAYLOAD_BYTES, "{} bytes of records in one block", self.payload.len());
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        let out = &mut *raw;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        let kind = match self.kind {
            BlockKind::Journal => 1,
            BlockKind::Checkpoint => 2,
            BlockKind::CheckpointHeader => 3,
        };
        put(out, 12, &[kind, if self.is_last { FLAG_LAST } else { 0 }]);
        put(out, 14, &(self.payload.len() as u16).to_le_bytes());
        put(out, 16, &self.pool);
        put(out, SEQUENCE_AT, &self.sequence.0.to_le_bytes());
        put(out, 40, &self.checkpoint.0.to_le_bytes());
        put(out, 48, &self.boot.to_le_bytes());
        put(out, 56, &self.previous.to_le_bytes());
        put(out, PAYLOAD_AT, &self.payload);
        let checksum = seal(out);
        (raw, checksum)
    }

    /// The number in the place of a block's sequence, whether or not the block is valid.
    pub fn unchecked_sequence(block: &impl Block) -> Sequence {
        let mut bytes = [0; 8];
        block.read_bytes(SEQUENCE_AT, &mut bytes);
        Sequence(u64::from_le_bytes(bytes))
    }

    /// Decodes an intact block of `kind` of `pool`, and returns its checksum too.
    pub fn decode(raw: &'a Raw, kind: BlockKind, pool: Uuid) -> Option<(MetadataBlock<'a>, u32)> {
        let checksum = (get::<8>(raw, 0) == MAGIC).then(|| valid_checksum(raw))??;
        let found = match raw[12] {
            1 => BlockKind::Journal,
            2 => BlockKind::Checkpoint,
            3 => BlockKind::CheckpointHeader,
            _ => return None,
        };
        let len = usize::from(u16::from_le_bytes(get(raw, 14)));
        let fits = get_u32(raw, 8) == VERSION && found == kind && get::<16>(raw, 16) == pool && len <= PAYLOAD_BYTES;
        fits.then(|| {
            let block = MetadataBlock {
                kind,
                pool,
                sequence: Sequence(get_u64(raw, SEQUENCE_AT)),
                checkpoint: CheckpointNo(get_u64(raw, 40)),
                boot: get_u64(raw, 48),
                previous: get_u32(raw, 56),
                is_last: raw[13] & FLAG_LAST != 0,
                payload: Cow::Borrowed(&raw[PAYLOAD_AT..PAYLOAD_AT + len]),
            };
            (block, checksum)
        })
    }
}

/// The facts that make a checkpoint valid: the payload of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// The first journal block to replay.
    pub replay_from: Sequence,
    /// Checksum of the journal block before it.
    pub replay_after: u32,
    /// The journal block after the last one that was durable when the header was written. A replay that ends before it
    /// has lost acknowledged changes.
    pub journal_end: Sequence,
    /// Number of the content's blocks.
    pub blocks: u32,
    /// The content's last block's checksum; the blocks are chained.
    pub checksum: u32,
    /// The number of the next new volume.
    pub next_volume: VolumeId,
}

impl CheckpointFacts {
    /// Encodes the facts.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        out.extend(self.replay_from.0.to_le_bytes());
        out.extend(self.journal_end.0.to_le_bytes());
        out.extend(self.replay_after.to_le_bytes());
        out.extend(self.blocks.to_le_bytes());
        out.extend(self.checksum.to_le_bytes());
        out.extend(self.next_volume.0.to_le_bytes());
        out
    }

    /// Decodes the bytes of [`CheckpointFacts::encode`].
    pub fn decode(payload: &[u8]) -> Option<CheckpointFacts> {
        let raw: &[u8; 32] = payload.try_into().ok()?;
        let long = |at: usize| u64::from_le_bytes(raw[at..at + 8].try_into().expect("8 bytes are an array of 8"));
        let short = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().expect("4 bytes are an array of 4"));
        let facts = CheckpointFacts {
            replay_from: Sequence(long(0)),
            journal_end: Sequence(long(8)),
            replay_after: short(16),
            blocks: short(20),
            checksum: short(24),
            next_volume: VolumeId(short(28)),
        };
        (facts.replay_from <= facts.journal_end && facts.journal_end.0 < 1 << 62).then_some(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MetadataBlock<'static> {
        MetadataBlock {
            kind: BlockKind::Journal,
            pool: [4; 16],
            sequence: Sequence(77),
            checkpoint: CheckpointNo(3),
            boot: 1 << 41,
            previous: 99,
            is_last: true,
            payload: vec![1, 2, 3].into(),
        }
    }

    #[test]
    fn block_round_trips_and_a_flipped_bit_is_rejected() {
        let (raw, checksum) = sample().encode();
        assert_eq!(MetadataBlock::decode(&raw, BlockKind::Journal, [4; 16]), Some((sample(), checksum)));
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MetadataBlock::decode(&damaged, BlockKind::Journal, [4; 16]), None, "bit {bit}");
        }
    }

    #[test]
    fn block_of_another_kind_or_pool_is_rejected() {
        let (raw, _) = sample().encode();
        assert_eq!(MetadataBlock::decode(&raw, BlockKind::Checkpoint, [4; 16]), None);
        assert_eq!(MetadataBlock::decode(&raw, BlockKind::Journal, [5; 16]), None);
    }

    #[test]
    fn checkpoint_facts_round_trip() {
        let facts = CheckpointFacts {
            replay_from: Sequence(5),
            replay_after: 6,
            journal_end: Sequence(7),
            blocks: 8,
            checksum: 9,
            next_volume: VolumeId(10),
        };
        assert_eq!(CheckpointFacts::decode(&facts.encode()), Some(facts));
        assert_eq!(CheckpointFacts::decode(&[0; 31]), None);
    }
}
