//! The superblock: the store that a device belongs to, and its number there. A device has two superblocks, written
//! alternately, so that a torn write leaves the other one intact.

use std::ops::Range;

use format_version::{NewerFormat, Release};

use super::{FIRST_SEGMENT_BYTES, Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{BootEpoch, CommitNo, MemberNo, MembershipGeneration, SegmentNo, Sequence};
use metadata_block::{get, get_u32, get_u64, put};

/// Byte offsets of the two superblock copies of a device. Each write overwrites the copy that is not the newest.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Maximum number of members of a store.
pub const MEMBERS_MAX: usize = 8;

/// Bytes of the smallest map journal.
pub const JOURNAL_BYTES_MIN: u64 = 10 * seam::BLOCK_BYTES as u64;
/// Exclusive bound of all counters. No real counter comes near it; a higher value is forged and would overflow.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
/// Exclusive bound of the membership generation: member entries store its low 32 bits.
const GENERATION_MAX: u64 = 1 << 31;

/// The first bytes of a superblock.
const MAGIC: [u8; 8] = *b"HOTSETFL";
// Byte offsets of fields. The offsets of earlier fields are literals in `encode` and `decode`.
const EPOCH_AT: usize = 112;
const MEMBERS_AT: usize = 128;
const JOURNAL_AT: usize = 384;
const OWNER_AT: usize = 400;
const LIFE_AT: usize = 416;
/// Offset at which a later format names the first release that reads it ([`Release::unpack`]); 0 in this format.
const NEEDS_AT: usize = 424;
/// Bytes of a member's entry.
const MEMBER_BYTES: usize = 32;

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The number is unused; the entry keeps the identity of the last device with this number.
    Vacant,
    /// It holds all acknowledged data.
    InService,
    /// It was removed from service; its content may be outdated.
    Lost,
    /// It is being resynced and is not yet a member. Only the device's own superblock has this state.
    Resyncing,
}

/// The content that a member carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only clean pages.
    Pages,
    /// The log as well, mirrored with the other member of this role.
    Log,
}

/// A member of the store, as every member's superblock lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// The device's identity.
    pub uuid: Uuid,
    /// Whether it is in service.
    pub state: MemberState,
    /// Content: the log and pages, or only pages.
    pub role: Role,
    /// The number of segments that fit on it.
    pub segment_count: u32,
    /// The membership generation in which its state last changed.
    pub since_generation: u32,
}

impl MemberEntry {
    /// Decodes the entry at this offset of a superblock.
    fn decode(raw: &Raw, at: usize) -> Result<MemberEntry, SuperblockError> {
        let state = match get_u32(raw, at + 16) {
            0 => MemberState::Vacant,
            1 => MemberState::InService,
            2 => MemberState::Lost,
            3 => MemberState::Resyncing,
            other => return Err(SuperblockError::Invalid(format!("a member in the unknown state {other}"))),
        };
        let role = match get_u32(raw, at + 20) {
            0 => Role::Pages,
            1 => Role::Log,
            other => return Err(SuperblockError::Invalid(format!("a member of the unknown role {other}"))),
        };
        let (segment_count, since_generation) = (get_u32(raw, at + 24), get_u32(raw, at + 28));
        Ok(MemberEntry { uuid: get(raw, at), state, role, segment_count, since_generation })
    }
}

/// The state directory that opened the store last, and its generation at that time. All zero in a store that was never
/// opened with a state directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Identity of the owner's state directory.
    pub owner: Uuid,
    /// The generation of the owner's state directory; it only grows.
    pub epoch: u64,
    /// A random number drawn for each opening. The owner records it before the store is written. It distinguishes two
    /// copies of a store that were used separately.
    pub life: u64,
}

impl Ownership {
    /// True when no owner has opened the store.
    pub fn is_none(&self) -> bool {
        *self == Ownership::default()
    }
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the store.
    pub store: Uuid,
    /// +1 with every write of a superblock.
    pub revision: u64,
    /// +1 with every change of the members.
    pub generation: MembershipGeneration,
    /// The number of this device among the members.
    pub member: MemberNo,
    /// All members.
    pub members: Vec<MemberEntry>,
    /// Bytes of a segment, a power of two.
    pub segment_bytes: u64,
    /// The number of segments for the log, from segment 0, the same on every log member.
    pub log_segment_count: u32,
    /// +1 with every opening.
    pub boot_epoch: BootEpoch,
    /// Batches with a lower sequence number are dead.
    pub tail: Sequence,
    /// The owner that opened the store last.
    pub ownership: Ownership,
    /// The sequence number with which this boot epoch began. From it on, batches of earlier boot epochs are invalid.
    pub first_sequence: Sequence,
    /// Bytes of the map journal on each log member.
    pub journal_bytes: u64,
    /// The last commit of the map journal that was durable when this superblock was written (R9, docs/rules.md).
    pub journal_commit: CommitNo,
}

/// The reason why a block is not a superblock that this version may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// Other data, or a damaged superblock.
    NotASuperblock,
    /// A superblock with a valid checksum and invalid values; the text names them.
    Invalid(String),
    /// An intact superblock of a later format.
    Newer(NewerFormat),
}

/// True for a block that begins like a superblock, intact or damaged.
pub fn has_magic(raw: &Raw) -> bool {
    get::<8>(raw, 0) == MAGIC
}

impl Superblock {
    /// True when the member is in service.
    pub fn serves(&self, member: MemberNo) -> bool {
        self.members.get(member.index()).is_some_and(|entry| entry.state == MemberState::InService)
    }

    /// True when the member is in service and carries the log.
    pub fn carries_log(&self, member: MemberNo) -> bool {
        self.serves(member) && self.members[member.index()].role == Role::Log
    }

    /// All members, each with its number.
    pub fn numbered_members(&self) -> impl Iterator<Item = (MemberNo, &MemberEntry)> {
        (0..).map(MemberNo).zip(&self.members)
    }

    /// The number of blocks of a segment.
    pub fn segment_blocks(&self) -> u32 {
        (self.segment_bytes / seam::BLOCK_BYTES as u64) as u32
    }

    /// The segments for the log: those past the map journal.
    pub fn log_segments(&self) -> Range<SegmentNo> {
        SegmentNo(self.journal_segments())..SegmentNo(self.log_segment_count)
    }

    /// The number of segments, from segment 0, that the map journal occupies. They have no other use.
    pub fn journal_segments(&self) -> u32 {
        let past = (super::journal::JOURNAL_AT + self.journal_bytes).saturating_sub(FIRST_SEGMENT_BYTES);
        past.div_ceil(self.segment_bytes) as u32
    }

    /// Encodes the superblock.
    pub fn encode(&self) -> Box<Raw> {
        assert!(self.members.len() <= MEMBERS_MAX && self.member.index() < self.members.len());
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        let out = &mut *raw;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        put(out, 12, &(seam::BLOCK_BYTES as u32).to_le_bytes());
        // Bytes 16 and 24 are reserved for compatible and incompatible features; none exist yet.
        put(out, 32, &self.store);
        put(out, 48, &self.revision.to_le_bytes());
        put(out, 56, &self.member.0.to_le_bytes());
        put(out, 60, &(self.members.len() as u32).to_le_bytes());
        put(out, 64, &self.generation.0.to_le_bytes());
        put(out, 72, &self.segment_bytes.to_le_bytes());
        put(out, 80, &u64::from(self.log_segment_count).to_le_bytes());
        put(out, 88, &FIRST_SEGMENT_BYTES.to_le_bytes());
        put(out, 96, &self.boot_epoch.0.to_le_bytes());
        put(out, 104, &self.tail.0.to_le_bytes());
        put(out, EPOCH_AT, &self.ownership.epoch.to_le_bytes());
        put(out, OWNER_AT, &self.ownership.owner);
        put(out, LIFE_AT, &self.ownership.life.to_le_bytes());
        put(out, 120, &self.first_sequence.0.to_le_bytes());
        put(out, JOURNAL_AT, &self.journal_commit.0.to_le_bytes());
        put(out, JOURNAL_AT + 8, &self.journal_bytes.to_le_bytes());
        for (index, member) in self.members.iter().enumerate() {
            let at = MEMBERS_AT + index * MEMBER_BYTES;
            put(out, at, &member.uuid);
            let state: u32 = match member.state {
                MemberState::Vacant => 0,
                MemberState::InService => 1,
                MemberState::Lost => 2,
                MemberState::Resyncing => 3,
            };
            put(out, at + 16, &state.to_le_bytes());
            let role: u32 = match member.role {
                Role::Pages => 0,
                Role::Log => 1,
            };
            put(out, at + 20, &role.to_le_bytes());
            put(out, at + 24, &member.segment_count.to_le_bytes());
            put(out, at + 28, &member.since_generation.to_le_bytes());
        }
        seal(out);
        raw
    }

    /// Decodes the bytes of [`Superblock::encode`]; every field is checked.
    pub fn decode(raw: &Raw) -> Result<Superblock, SuperblockError> {
        if !has_magic(raw) || valid_checksum(raw).is_none() {
            return Err(SuperblockError::NotASuperblock);
        }
        let version = get_u32(raw, 8);
        let needs = Release::unpack(get_u64(raw, NEEDS_AT));
        if version > VERSION {
            return Err(SuperblockError::Newer(NewerFormat::of_format(version, VERSION, needs)));
        }
        if version < VERSION {
            return Err(SuperblockError::Invalid(format!("format {version} was never released")));
        }
        let incompatible = get_u64(raw, 24);
        if incompatible != 0 {
            return Err(SuperblockError::Newer(NewerFormat::with_features(incompatible, needs)));
        }
        let count = get_u32(raw, 60) as usize;
        let (segment_bytes, segments) = (get_u64(raw, 72), get_u64(raw, 80));
        let member = MemberNo(get_u32(raw, 56));
        let journal_bytes = get_u64(raw, JOURNAL_AT + 8);
        let journal_end = journal_bytes.saturating_add(super::journal::JOURNAL_AT);
        // The revision, boot epoch, tail, first sequence number, and the journal's last commit.
        let counters = [48, 96, 104, 120, JOURNAL_AT].map(|at| get_u64(raw, at));
        let is_valid = (1..=MEMBERS_MAX).contains(&count)
            && member.index() < count
            && segment_bytes.is_power_of_two()
            && (8 << 10..=1 << 30).contains(&segment_bytes)
            && (1..=u64::from(u32::MAX)).contains(&segments)
            && get_u64(raw, 88) == FIRST_SEGMENT_BYTES
            && counters.iter().all(|counter| *counter < COUNTER_MAX)
            && get_u64(raw, 64) < GENERATION_MAX
            && journal_bytes >= JOURNAL_BYTES_MIN
            && journal_end <= segments.saturating_mul(segment_bytes).saturating_add(FIRST_SEGMENT_BYTES);
        if !is_valid {
            return Err(SuperblockError::Invalid("fields out of range although the checksum is valid".to_owned()));
        }
        let entry_at = |index| MEMBERS_AT + index * MEMBER_BYTES;
        let members = (0..count).map(|index| MemberEntry::decode(raw, entry_at(index))).collect::<Result<_, _>>()?;
        Ok(Superblock {
            store: get(raw, 32),
            revision: get_u64(raw, 48),
            generation: MembershipGeneration(get_u64(raw, 64)),
            member,
            members,
            segment_bytes,
            log_segment_count: segments as u32,
            boot_epoch: BootEpoch(get_u64(raw, 96)),
            tail: Sequence(get_u64(raw, 104)),
            ownership: Ownership {
                owner: get(raw, OWNER_AT),
                epoch: get_u64(raw, EPOCH_AT),
                life: get_u64(raw, LIFE_AT),
            },
            first_sequence: Sequence(get_u64(raw, 120)),
            journal_bytes,
            journal_commit: CommitNo(get_u64(raw, JOURNAL_AT)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        let member = |number, state, role| MemberEntry {
            uuid: [number; 16],
            state,
            role,
            segment_count: u32::from(number),
            since_generation: 2,
        };
        Superblock {
            store: [9; 16],
            revision: 7,
            generation: MembershipGeneration(3),
            member: MemberNo(1),
            members: vec![
                member(1, MemberState::Lost, Role::Log),
                member(2, MemberState::InService, Role::Log),
                member(3, MemberState::Vacant, Role::Pages),
                member(4, MemberState::InService, Role::Pages),
            ],
            segment_bytes: 1 << 20,
            log_segment_count: 12,
            boot_epoch: BootEpoch(5),
            tail: Sequence(99),
            ownership: Ownership { owner: [4; 16], epoch: 6, life: 77 },
            first_sequence: Sequence(120),
            journal_bytes: 64 << 10,
            journal_commit: CommitNo(1 << 35),
        }
    }

    #[test]
    fn superblock_round_trips() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn flipped_bit_is_rejected() {
        let raw = sample().encode();
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&damaged), Err(SuperblockError::NotASuperblock), "bit {bit}");
        }
    }

    #[test]
    fn later_format_or_unknown_feature_is_newer_and_format_0_invalid() {
        let changed = |at: usize, value: u8| {
            let mut raw = sample().encode();
            raw[at] = value;
            raw[NEEDS_AT..NEEDS_AT + 8].copy_from_slice(&0x0001_0004_0002_u64.to_le_bytes());
            seal(&mut raw);
            Superblock::decode(&raw)
        };
        let needs = Release::parse("1.4.2");
        assert_eq!(changed(8, 2), Err(SuperblockError::Newer(NewerFormat::of_format(2_u32, 1_u32, needs))));
        assert_eq!(changed(24, 1), Err(SuperblockError::Newer(NewerFormat::with_features(1, needs))));
        assert!(matches!(changed(8, 0), Err(SuperblockError::Invalid(_))));
    }
}
