//! The superblock: the pool that a group belongs to, its number there, and all members. A group has two superblocks,
//! written alternately, so that a torn write leaves the other one intact.

use format_version::{NewerFormat, Release};

use super::{Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{GroupNo, PoolGeneration, TierNo, VolumeId};
use metadata_block::{get, get_u32, get_u64, put};

/// Byte offsets of the two superblock copies of a group. Each write overwrites the copy that is not the newest.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Maximum number of members of a pool, removed ones included.
pub const MEMBERS_MAX: usize = 32;
/// Maximum number of tiers of a pool.
pub const TIERS_MAX: usize = 8;
/// Maximum number of bytes of a tier's name.
pub const TIER_NAME_BYTES: usize = 32;
/// Bytes that are kept of a device's name.
pub const DEVICE_NAME_BYTES: usize = 80;
/// Smallest and largest slice.
pub const SLICE_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=256 << 20;

const MAGIC: [u8; 8] = *b"HOTSETPL";
const INCOMPATIBLE_AT: usize = 24;
const NEEDS_AT: usize = 96;
const TIERS_AT: usize = 112;
const IMPORT_AT: usize = 368;
const MEMBERS_AT: usize = 384;
const MEMBER_BYTES: usize = 112;
const TIMELINE_AT: usize = 3968;
const FORMER_AT: usize = TIMELINE_AT + 8;
const FORMER_BYTES: usize = 16;
/// Maximum number of former timelines in a superblock.
pub const FORMER_TIMELINES_MAX: usize = 7;
/// Incompatible feature: the pool has or had snapshots. Releases without them cannot read its records.
pub const FEATURE_SNAPSHOTS: u64 = 1;
/// Incompatible feature: checkpoints have lists of slots, [`Record::MapList`](super::record::Record::MapList).
pub const FEATURE_LISTS: u64 = 8;
/// Incompatible feature: a member has the state [`MemberState::Lost`].
const FEATURE_LOST: u64 = 2;
/// Incompatible feature: a disk with data is being imported, so that a member has the state [`MemberState::Importing`]
/// or [`MemberState::Marking`].
const FEATURE_IMPORT: u64 = 4;
/// Incompatible feature: the pool was opened without a group, and has a timeline other than 0. Releases without
/// timelines would drop it.
const FEATURE_TIMELINE: u64 = 16;
const FLAG_METADATA: u8 = 1;
const FLAG_HAS_AREA: u8 = 2;
/// Byte 23 of a member: bits 0 to 6 are the former timelines that it may hold.
const MISSED_TIMELINE: u8 = 1 << FORMER_TIMELINES_MAX;
/// Exclusive bound of all counters. No real counter comes near it; a higher value is forged and would overflow.
const COUNTER_MAX: u64 = 1 << 62;

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It takes new slices.
    InService,
    /// Its slices are moving away; it takes no new ones.
    Draining,
    /// It holds nothing of the pool any more.
    Removed,
    /// It was given up: its device is refused, and slices that are mapped to it give errors.
    Lost,
    /// A disk with data whose volume is not complete yet: nothing on the disk has changed, and the opening undoes it.
    Importing,
    /// A disk with data whose volume is complete: its superblocks are being written, and the opening finishes that.
    Marking,
}

impl MemberState {
    /// True if the group counts as a member: for majorities, and as a possible metadata copy.
    pub fn is_member(self) -> bool {
        matches!(self, MemberState::InService | MemberState::Draining)
    }

    /// True after the group was removed or given up: it does not come back.
    pub fn has_left(self) -> bool {
        matches!(self, MemberState::Removed | MemberState::Lost)
    }

    /// True while the group is being imported.
    pub fn is_import(self) -> bool {
        matches!(self, MemberState::Importing | MemberState::Marking)
    }
}

/// A group, as every member's superblock lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// The group's identity.
    pub uuid: Uuid,
    /// Number of its slots.
    pub slots: u32,
    /// Its tier.
    pub tier: TierNo,
    /// Whether it takes slices.
    pub state: MemberState,
    /// It carries a copy of the metadata.
    pub carries_metadata: bool,
    /// It has an area for a copy of the metadata.
    pub has_area: bool,
    /// Byte offset of its first slot.
    pub data_at: u64,
    /// The device's name when it was last present.
    pub name: String,
    /// It was absent in every opening of the present timeline.
    pub missed_timeline: bool,
    /// Former timelines that its superblocks may have: a bit for each entry of [`Superblock::former`].
    pub may_hold: u8,
}

/// A timeline from which the present one follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerTimeline {
    /// Its number.
    pub timeline: u64,
    /// The last generation of it whose changes the present timeline has; the maximum stands for all.
    pub last: PoolGeneration,
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Incompatible features, such as [`FEATURE_SNAPSHOTS`].
    pub features: u64,
    /// Identity of the pool.
    pub pool: Uuid,
    /// +1 with every write of a superblock.
    pub revision: u64,
    /// +1 with every change of the members.
    pub generation: PoolGeneration,
    /// The number of this group among the members.
    pub group: GroupNo,
    /// Bytes of a slice, a power of two.
    pub slice_bytes: u64,
    /// Blocks of the journal's ring.
    pub journal_blocks: u32,
    /// Blocks of one checkpoint area.
    pub area_blocks: u32,
    /// Number of slots of all groups together for which a checkpoint area has room.
    pub slots_max: u32,
    /// Logical block of the pool's volumes in bytes.
    pub logical_block: u32,
    /// Names of the tiers, the fastest first.
    pub tiers: Vec<String>,
    /// The volume that is being made of the disk of the member in an import.
    pub import: Option<VolumeId>,
    /// A random number, new whenever the pool opens without a group that was there before; 0 until then.
    pub timeline: u64,
    /// Former timelines that a member may hold, the oldest first.
    pub former: Vec<FormerTimeline>,
    /// All members.
    pub members: Vec<MemberEntry>,
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

/// Cuts `text` to at most `max` bytes at a character's boundary.
pub fn cut(text: &str, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

fn text_at(raw: &Raw, at: usize, len: usize) -> Option<String> {
    let bytes = &raw[at..at + len];
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
    String::from_utf8(bytes[..end].to_vec()).ok()
}

impl Superblock {
    /// All members, each with its number.
    pub fn numbered_members(&self) -> impl Iterator<Item = (GroupNo, &MemberEntry)> {
        (0..).map(GroupNo).zip(&self.members)
    }

    /// Number of members that are neither removed nor lost.
    pub fn member_count(&self) -> usize {
        self.members.iter().filter(|member| member.state.is_member()).count()
    }

    /// The groups that carry the metadata.
    pub fn metadata_groups(&self) -> Vec<GroupNo> {
        self.numbered_members().filter(|(_, member)| member.carries_metadata).map(|(group, _)| group).collect()
    }

    /// The member that is being imported.
    pub fn import_group(&self) -> Option<GroupNo> {
        self.numbered_members().find(|(_, member)| member.state.is_import()).map(|(group, _)| group)
    }

    /// Encodes the superblock.
    pub fn encode(&self) -> Box<Raw> {
        assert!(self.members.len() <= MEMBERS_MAX && self.group.index() < self.members.len());
        assert!(!self.tiers.is_empty() && self.tiers.len() <= TIERS_MAX);
        assert!(self.former.len() <= FORMER_TIMELINES_MAX && (self.timeline != 0 || self.former.is_empty()));
        assert_eq!(self.import.is_some(), self.import_group().is_some(), "an import has a member and a volume");
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        let out = &mut *raw;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        put(out, 12, &(seam::BLOCK_BYTES as u32).to_le_bytes());
        // Byte 16 is reserved for compatible features; none exist yet.
        let has_lost = self.members.iter().any(|member| member.state == MemberState::Lost);
        let features = self.features
            | if has_lost { FEATURE_LOST } else { 0 }
            | if self.import.is_some() { FEATURE_IMPORT } else { 0 }
            | if self.timeline != 0 { FEATURE_TIMELINE } else { 0 };
        put(out, INCOMPATIBLE_AT, &features.to_le_bytes());
        put(out, IMPORT_AT, &self.import.map_or(0, |volume| volume.0).to_le_bytes());
        put(out, 32, &self.pool);
        put(out, 48, &self.revision.to_le_bytes());
        put(out, 56, &self.generation.0.to_le_bytes());
        put(out, 64, &self.group.0.to_le_bytes());
        put(out, 66, &(self.members.len() as u16).to_le_bytes());
        put(out, 68, &(self.tiers.len() as u16).to_le_bytes());
        put(out, 72, &self.slice_bytes.to_le_bytes());
        put(out, 80, &self.journal_blocks.to_le_bytes());
        put(out, 84, &self.area_blocks.to_le_bytes());
        put(out, 88, &self.slots_max.to_le_bytes());
        put(out, 92, &self.logical_block.to_le_bytes());
        for (index, tier) in self.tiers.iter().enumerate() {
            put(out, TIERS_AT + index * TIER_NAME_BYTES, cut(tier, TIER_NAME_BYTES).as_bytes());
        }
        for (index, member) in self.members.iter().enumerate() {
            let at = MEMBERS_AT + index * MEMBER_BYTES;
            put(out, at, &member.uuid);
            put(out, at + 16, &member.slots.to_le_bytes());
            let state = match member.state {
                MemberState::InService => 1,
                MemberState::Draining => 2,
                MemberState::Removed => 3,
                MemberState::Lost => 4,
                MemberState::Importing => 5,
                MemberState::Marking => 6,
            };
            let flags = if member.carries_metadata { FLAG_METADATA } else { 0 }
                | if member.has_area { FLAG_HAS_AREA } else { 0 };
            let timelines = member.may_hold | if member.missed_timeline { MISSED_TIMELINE } else { 0 };
            put(out, at + 20, &[member.tier.0, state, flags, timelines]);
            put(out, at + 24, &member.data_at.to_le_bytes());
            put(out, at + 32, cut(&member.name, DEVICE_NAME_BYTES).as_bytes());
        }
        put(out, TIMELINE_AT, &self.timeline.to_le_bytes());
        for (index, former) in self.former.iter().enumerate() {
            let at = FORMER_AT + index * FORMER_BYTES;
            put(out, at, &former.timeline.to_le_bytes());
            put(out, at + 8, &former.last.0.to_le_bytes());
        }
        seal(out);
        raw
    }

    /// Decodes the bytes of [`Superblock::encode`]; every field is checked.
    pub fn decode(raw: &Raw) -> Result<Superblock, SuperblockError> {
        if get::<8>(raw, 0) != MAGIC || valid_checksum(raw).is_none() {
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
        let features = get_u64(raw, INCOMPATIBLE_AT);
        let unknown =
            features & !(FEATURE_SNAPSHOTS | FEATURE_LOST | FEATURE_IMPORT | FEATURE_LISTS | FEATURE_TIMELINE);
        if unknown != 0 {
            return Err(SuperblockError::Newer(NewerFormat::with_features(unknown, needs)));
        }
        let [group, members, tiers] = [64, 66, 68].map(|at| u16::from_le_bytes(get(raw, at)));
        let slice_bytes = get_u64(raw, 72);
        let [journal_blocks, area_blocks, slots_max, logical_block] = [80, 84, 88, 92].map(|at| get_u32(raw, at));
        let is_valid = (1..=MEMBERS_MAX).contains(&usize::from(members))
            && group < members
            && (1..=TIERS_MAX).contains(&usize::from(tiers))
            && slice_bytes.is_power_of_two()
            && SLICE_BYTES.contains(&slice_bytes)
            && journal_blocks >= super::layout::JOURNAL_BLOCKS_MIN
            && area_blocks >= super::layout::area_blocks_for(slots_max)
            && matches!(logical_block, 512 | 4096)
            && [48, 56].iter().all(|at| get_u64(raw, *at) < COUNTER_MAX);
        if !is_valid {
            return Err(SuperblockError::Invalid("fields out of range although the checksum is valid".to_owned()));
        }
        let invalid_text = || SuperblockError::Invalid("a name is not UTF-8".to_owned());
        let tier_name = |index| text_at(raw, TIERS_AT + index * TIER_NAME_BYTES, TIER_NAME_BYTES);
        let tier_names = (0..usize::from(tiers)).map(|index| tier_name(index).ok_or_else(invalid_text));
        let tier_names = tier_names.collect::<Result<Vec<_>, _>>()?;
        let (timeline, former) = timelines_at(raw, features & FEATURE_TIMELINE != 0)?;
        let mut entries = Vec::with_capacity(usize::from(members));
        for index in 0..usize::from(members) {
            let at = MEMBERS_AT + index * MEMBER_BYTES;
            let [tier, state, flags, timelines] = get::<4>(raw, at + 20);
            let timelines = if timeline == 0 { 0 } else { timelines };
            let may_hold = timelines & !MISSED_TIMELINE;
            let state = match state {
                1 => MemberState::InService,
                2 => MemberState::Draining,
                3 => MemberState::Removed,
                4 => MemberState::Lost,
                5 => MemberState::Importing,
                6 => MemberState::Marking,
                other => return Err(SuperblockError::Invalid(format!("a member in the unknown state {other}"))),
            };
            let (slots, data_at) = (get_u32(raw, at + 16), get_u64(raw, at + 24));
            let has_former = u32::from(may_hold) < 1 << former.len();
            if u16::from(tier) >= tiers || data_at >= COUNTER_MAX || slots > slots_max || !has_former {
                return Err(SuperblockError::Invalid(format!("a member with impossible figures: number {index}")));
            }
            entries.push(MemberEntry {
                uuid: get(raw, at),
                slots,
                tier: TierNo(tier),
                state,
                carries_metadata: flags & FLAG_METADATA != 0,
                has_area: flags & FLAG_HAS_AREA != 0,
                data_at,
                name: text_at(raw, at + 32, DEVICE_NAME_BYTES).ok_or_else(invalid_text)?,
                missed_timeline: timelines & MISSED_TIMELINE != 0,
                may_hold,
            });
        }
        let import = Some(VolumeId(get_u32(raw, IMPORT_AT))).filter(|volume| volume.0 != 0);
        let imports = entries.iter().filter(|member| member.state.is_import()).count();
        if imports != usize::from(import.is_some()) || import.is_some() != (features & FEATURE_IMPORT != 0) {
            return Err(SuperblockError::Invalid("an import without a member, or a member without one".to_owned()));
        }
        Ok(Superblock {
            features: features & (FEATURE_SNAPSHOTS | FEATURE_LISTS),
            pool: get(raw, 32),
            revision: get_u64(raw, 48),
            generation: PoolGeneration(get_u64(raw, 56)),
            group: GroupNo(group),
            slice_bytes,
            journal_blocks,
            area_blocks,
            slots_max,
            logical_block,
            tiers: tier_names,
            import,
            timeline,
            former,
            members: entries,
        })
    }
}

/// The timeline of a superblock, and the former ones. Both are the initial ones without the feature.
fn timelines_at(raw: &Raw, has_feature: bool) -> Result<(u64, Vec<FormerTimeline>), SuperblockError> {
    if !has_feature {
        return Ok((0, Vec::new()));
    }
    let timeline = get_u64(raw, TIMELINE_AT);
    let entry = |index: usize| FormerTimeline {
        timeline: get_u64(raw, FORMER_AT + index * FORMER_BYTES),
        last: PoolGeneration(get_u64(raw, FORMER_AT + index * FORMER_BYTES + 8)),
    };
    // A pool begins with generation 1, so no entry in use has 0.
    let former = (0..FORMER_TIMELINES_MAX).map(entry).take_while(|former| former.last.0 != 0).collect();
    match timeline {
        0 => Err(SuperblockError::Invalid("a timeline without a number".to_owned())),
        _ => Ok((timeline, former)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::area_blocks_for;
    use super::*;

    fn sample() -> Superblock {
        let member = |number, state, carries_metadata| MemberEntry {
            uuid: [number; 16],
            slots: u32::from(number) * 10,
            tier: TierNo(number % 2),
            state,
            carries_metadata,
            has_area: carries_metadata,
            data_at: 1 << 20,
            name: format!("disk-{number}"),
            missed_timeline: number == 2,
            may_hold: number % 2,
        };
        Superblock {
            features: FEATURE_SNAPSHOTS | FEATURE_LISTS,
            pool: [9; 16],
            revision: 7,
            generation: PoolGeneration(3),
            group: GroupNo(1),
            slice_bytes: 4 << 20,
            journal_blocks: 64,
            area_blocks: area_blocks_for(1000),
            slots_max: 1000,
            logical_block: 512,
            tiers: vec!["fast".to_owned(), "slow".to_owned()],
            import: Some(VolumeId(8)),
            timeline: 99,
            former: vec![FormerTimeline { timeline: 0, last: PoolGeneration(u64::MAX) }],
            members: vec![
                member(1, MemberState::InService, true),
                member(2, MemberState::Draining, false),
                member(3, MemberState::Removed, false),
                member(4, MemberState::Lost, false),
                member(5, MemberState::Marking, false),
            ],
        }
    }

    #[test]
    fn superblock_round_trips() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn import_without_its_member_is_invalid() {
        let mut raw = sample().encode();
        put(&mut raw, IMPORT_AT, &0_u32.to_le_bytes());
        seal(&mut raw);
        assert!(matches!(Superblock::decode(&raw), Err(SuperblockError::Invalid(_))));
    }

    #[test]
    fn superblock_without_the_feature_has_the_initial_timeline() {
        let mut raw = sample().encode();
        raw[INCOMPATIBLE_AT] &= !(FEATURE_TIMELINE as u8);
        seal(&mut raw);
        let decoded = Superblock::decode(&raw).expect("a valid superblock");
        assert_eq!((decoded.timeline, decoded.former.len()), (0, 0));
        assert!(decoded.members.iter().all(|member| !member.missed_timeline && member.may_hold == 0));
        let reserved = &decoded.encode()[TIMELINE_AT..super::super::CHECKSUM_AT];
        assert!(reserved.iter().all(|byte| *byte == 0), "as in pools of earlier builds");
    }

    #[test]
    fn member_with_a_former_timeline_that_does_not_exist_is_invalid() {
        let mut superblock = sample();
        superblock.former.clear();
        assert!(matches!(Superblock::decode(&superblock.encode()), Err(SuperblockError::Invalid(_))));
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
        assert_eq!(changed(24, 63), Err(SuperblockError::Newer(NewerFormat::with_features(32, needs))));
        assert!(matches!(changed(8, 0), Err(SuperblockError::Invalid(_))));
    }

    #[test]
    fn name_is_cut_at_a_character() {
        assert_eq!(cut("aäb", 2), "a");
        assert_eq!(cut("aäb", 3), "aä");
    }
}
