//! The superblock: what a device is a part of. Two places a device, written alternately, so that a torn write leaves the other.

use format_version::{NewerFormat, Release};

use super::bytes::{get, get_u32, get_u64, put};
use super::{FIRST_SEGMENT_BYTES, Raw, Uuid, VERSION, is_sealed, seal};

/// Where the two superblocks lie, in bytes; revision *r* goes to place *r* mod 2.
pub const PLACES: [u64; 2] = [0, 64 << 10];
/// Members that the format has room for.
pub const MEMBERS_MAX: usize = 8;

/// Bytes of the smallest map journal.
pub const JOURNAL_BYTES_MIN: u64 = 10 * seam::BLOCK_BYTES as u64;
/// No counter that was ever counted comes near: one that says so was forged, and would overflow.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
/// The same for the members' generation, of which entries keep 32 bits.
const GENERATION_MAX: u64 = 1 << 31;

const MAGIC: [u8; 8] = *b"HOTSETFL";
const MEMBERS_AT: usize = 128;
const EPOCH_AT: usize = 112;
const JOURNAL_AT: usize = 384;
const OWNER_AT: usize = 400;
const LIFE_AT: usize = 416;
/// Where a later format names the first release that reads it ([`Release::unpack`]); 0 in this one.
const NEEDS_AT: usize = 424;
const MEMBER_BYTES: usize = 32;

/// Whether a member is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Nobody has this number; the identity is that of the device which was removed from it last.
    Vacant,
    /// It holds everything that was acknowledged.
    InService,
    /// It was taken out; what it holds may be old.
    Lost,
    /// Only in a device's own superblock: it is being filled and is no member yet.
    Syncing,
}

/// What a member carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clean pages alone.
    Pages,
    /// The log as well, mirrored with the other one of this role.
    Log,
}

/// A device of the store, as every member knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Its identity.
    pub uuid: Uuid,
    /// Whether it is in service.
    pub state: MemberState,
    /// What it carries.
    pub role: Role,
    /// Segments that it has room for.
    pub segments: u32,
    /// The generation in which its state became what it is.
    pub since: u32,
}

/// Which state directory opened the store last, and in which of its lives. All zero in a store that was never opened by an owner with a
/// state directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Identity of the owner's state directory.
    pub owner: Uuid,
    /// The owner's generation: greater in each of its later lives.
    pub epoch: u64,
    /// A number drawn for the opening, noted by the owner before the store is written: two copies of a store that were used apart differ in it.
    pub life: u64,
}

impl Ownership {
    /// True when no owner has opened the store.
    pub fn is_none(&self) -> bool {
        *self == Ownership::default()
    }
}

/// Everything in a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the store.
    pub store: Uuid,
    /// +1 with every write of a superblock.
    pub revision: u64,
    /// +1 with every change of the members.
    pub generation: u64,
    /// Which of the members this device is.
    pub member: u32,
    /// All members.
    pub members: Vec<MemberEntry>,
    /// Bytes of a segment, a power of two.
    pub segment_bytes: u64,
    /// Segments that the log may use: these numbers from 0 on, the same ones on every log member.
    pub segments: u32,
    /// +1 with every opening.
    pub boot: u64,
    /// Batches of lower sequence are dead.
    pub tail: u64,
    /// The owner that opened the store last.
    pub ownership: Ownership,
    /// Sequence with which this boot epoch began: batches of earlier ones do not count from it on.
    pub begin: u64,
    /// Bytes of the map journal on each log member.
    pub journal_bytes: u64,
    /// The last commit of the map journal that was durable when this was written (R9).
    pub journal: u64,
}

/// Why a block is no superblock that this version may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSuperblock {
    /// Something else, or a damaged one.
    Other,
    /// A sound one whose numbers cannot be; says which.
    Unsound(String),
    /// A sound one of a later format.
    Newer(NewerFormat),
}

impl Superblock {
    /// True when that member is in service.
    pub fn serves(&self, member: u32) -> bool {
        self.members.get(member as usize).is_some_and(|entry| entry.state == MemberState::InService)
    }

    /// True when that member is in service and carries the log.
    pub fn carries_log(&self, member: u32) -> bool {
        self.serves(member) && self.members[member as usize].role == Role::Log
    }

    /// Segments, from number 0 on, that the map journal takes; nobody else uses these numbers.
    pub fn journal_segments(&self) -> u32 {
        let past = (super::journal::JOURNAL_AT + self.journal_bytes).saturating_sub(FIRST_SEGMENT_BYTES);
        past.div_ceil(self.segment_bytes) as u32
    }

    /// The bytes on the device.
    pub fn encode(&self) -> Box<Raw> {
        assert!(self.members.len() <= MEMBERS_MAX && (self.member as usize) < self.members.len());
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        let out = &mut *raw;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        put(out, 12, &(seam::BLOCK_BYTES as u32).to_le_bytes());
        // 16 and 24: compatible and incompatible features, none yet.
        put(out, 32, &self.store);
        put(out, 48, &self.revision.to_le_bytes());
        put(out, 56, &self.member.to_le_bytes());
        put(out, 60, &(self.members.len() as u32).to_le_bytes());
        put(out, 64, &self.generation.to_le_bytes());
        put(out, 72, &self.segment_bytes.to_le_bytes());
        put(out, 80, &u64::from(self.segments).to_le_bytes());
        put(out, 88, &FIRST_SEGMENT_BYTES.to_le_bytes());
        put(out, 96, &self.boot.to_le_bytes());
        put(out, 104, &self.tail.to_le_bytes());
        put(out, EPOCH_AT, &self.ownership.epoch.to_le_bytes());
        put(out, OWNER_AT, &self.ownership.owner);
        put(out, LIFE_AT, &self.ownership.life.to_le_bytes());
        put(out, 120, &self.begin.to_le_bytes());
        put(out, JOURNAL_AT, &self.journal.to_le_bytes());
        put(out, JOURNAL_AT + 8, &self.journal_bytes.to_le_bytes());
        for (index, member) in self.members.iter().enumerate() {
            let at = MEMBERS_AT + index * MEMBER_BYTES;
            put(out, at, &member.uuid);
            let state: u32 = match member.state {
                MemberState::Vacant => 0,
                MemberState::InService => 1,
                MemberState::Lost => 2,
                MemberState::Syncing => 3,
            };
            put(out, at + 16, &state.to_le_bytes());
            let role: u32 = match member.role {
                Role::Pages => 0,
                Role::Log => 1,
            };
            put(out, at + 20, &role.to_le_bytes());
            put(out, at + 24, &member.segments.to_le_bytes());
            put(out, at + 28, &member.since.to_le_bytes());
        }
        seal(out);
        raw
    }

    /// Reads what [`Superblock::encode`] wrote; every field is checked.
    pub fn decode(raw: &Raw) -> Result<Superblock, NoSuperblock> {
        if get::<8>(raw, 0) != MAGIC || is_sealed(raw).is_none() {
            return Err(NoSuperblock::Other);
        }
        let version = get_u32(raw, 8);
        let needs = Release::unpack(get_u64(raw, NEEDS_AT));
        if version > VERSION {
            return Err(NoSuperblock::Newer(NewerFormat::of_format(version, VERSION, needs)));
        }
        if version < VERSION {
            return Err(NoSuperblock::Unsound(format!("no version of Hotset has written format {version}")));
        }
        let incompatible = get_u64(raw, 24);
        if incompatible != 0 {
            return Err(NoSuperblock::Newer(NewerFormat::with_features(incompatible, needs)));
        }
        let count = get_u32(raw, 60) as usize;
        let (segment_bytes, segments) = (get_u64(raw, 72), get_u64(raw, 80));
        let member = get_u32(raw, 56);
        let journal_bytes = get_u64(raw, JOURNAL_AT + 8);
        let journal_end = journal_bytes.saturating_add(super::journal::JOURNAL_AT);
        // Revision, boot, tail, begin, the journal's last commit.
        let counters = [48, 96, 104, 120, JOURNAL_AT].map(|at| get_u64(raw, at));
        let sane = (1..=MEMBERS_MAX).contains(&count)
            && (member as usize) < count
            && segment_bytes.is_power_of_two()
            && (8 << 10..=1 << 30).contains(&segment_bytes)
            && (1..=u64::from(u32::MAX)).contains(&segments)
            && get_u64(raw, 88) == FIRST_SEGMENT_BYTES
            && counters.iter().all(|counter| *counter < COUNTER_MAX)
            && get_u64(raw, 64) < GENERATION_MAX
            && journal_bytes >= JOURNAL_BYTES_MIN
            && journal_end <= segments.saturating_mul(segment_bytes).saturating_add(FIRST_SEGMENT_BYTES);
        if !sane {
            return Err(NoSuperblock::Unsound("fields out of their ranges under a sound checksum".to_owned()));
        }
        let mut members = Vec::with_capacity(count);
        for index in 0..count {
            let at = MEMBERS_AT + index * MEMBER_BYTES;
            let state = match get_u32(raw, at + 16) {
                0 => MemberState::Vacant,
                1 => MemberState::InService,
                2 => MemberState::Lost,
                3 => MemberState::Syncing,
                other => return Err(NoSuperblock::Unsound(format!("a member in the unknown state {other}"))),
            };
            let role = match get_u32(raw, at + 20) {
                0 => Role::Pages,
                1 => Role::Log,
                other => return Err(NoSuperblock::Unsound(format!("a member of the unknown role {other}"))),
            };
            let (segments, since) = (get_u32(raw, at + 24), get_u32(raw, at + 28));
            members.push(MemberEntry { uuid: get(raw, at), state, role, segments, since });
        }
        Ok(Superblock {
            store: get(raw, 32),
            revision: get_u64(raw, 48),
            generation: get_u64(raw, 64),
            member,
            members,
            segment_bytes,
            segments: segments as u32,
            boot: get_u64(raw, 96),
            tail: get_u64(raw, 104),
            ownership: Ownership {
                owner: get(raw, OWNER_AT),
                epoch: get_u64(raw, EPOCH_AT),
                life: get_u64(raw, LIFE_AT),
            },
            begin: get_u64(raw, 120),
            journal_bytes,
            journal: get_u64(raw, JOURNAL_AT),
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
            segments: u32::from(number),
            since: 2,
        };
        Superblock {
            store: [9; 16],
            revision: 7,
            generation: 3,
            member: 1,
            members: vec![
                member(1, MemberState::Lost, Role::Log),
                member(2, MemberState::InService, Role::Log),
                member(3, MemberState::Vacant, Role::Pages),
                member(4, MemberState::InService, Role::Pages),
            ],
            segment_bytes: 1 << 20,
            segments: 12,
            boot: 5,
            tail: 99,
            ownership: Ownership { owner: [4; 16], epoch: 6, life: 77 },
            begin: 120,
            journal_bytes: 64 << 10,
            journal: 1 << 35,
        }
    }

    #[test]
    fn a_superblock_comes_back() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let raw = sample().encode();
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&damaged), Err(NoSuperblock::Other), "bit {bit}");
        }
    }

    #[test]
    fn a_later_format_and_unknown_features_are_newer_and_format_0_is_unsound() {
        let changed = |at: usize, value: u8| {
            let mut raw = sample().encode();
            raw[at] = value;
            raw[NEEDS_AT..NEEDS_AT + 8].copy_from_slice(&0x0001_0004_0002_u64.to_le_bytes());
            seal(&mut raw);
            Superblock::decode(&raw)
        };
        let needs = Release::parse("1.4.2");
        assert_eq!(changed(8, 2), Err(NoSuperblock::Newer(NewerFormat::of_format(2_u32, 1_u32, needs))));
        assert_eq!(changed(24, 1), Err(NoSuperblock::Newer(NewerFormat::with_features(1, needs))));
        assert!(matches!(changed(8, 0), Err(NoSuperblock::Unsound(_))));
    }
}
