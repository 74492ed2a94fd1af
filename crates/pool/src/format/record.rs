//! Records of the journal and of checkpoints. A record that copies a map counts on the state at its place in the
//! journal: a checkpoint is the exact state before the first block to replay.

use super::block::PAYLOAD_BYTES;
use crate::number::{GroupNo, SliceNo, SlotAddress, SlotNo, TierNo, VolumeId};
use crate::policy::{Provisioning, TierPolicy, VolumeSpec};

/// Maximum number of bytes of a volume's name.
pub const VOLUME_NAME_BYTES: usize = 64;
/// Bytes of an encoded [`Record::Map`].
pub const MAP_RECORD_BYTES: usize = 17;
/// Most bytes of an encoded [`Record::Volume`].
pub const VOLUME_RECORD_BYTES_MAX: usize = 22 + VOLUME_NAME_BYTES;
/// Most bytes of an encoded [`Record::Volume`] with a lineage.
pub const DERIVED_RECORD_BYTES_MAX: usize = 38 + VOLUME_NAME_BYTES;
/// Most slices of one [`Record::Map`].
pub const RUN_MAX: u32 = u16::MAX as u32;
/// Most slices of one [`Record::MapList`].
pub const LIST_MAX: usize = 64;
/// Slices of a longer run are cheaper as a [`Record::Map`] than in a list.
const LISTED_RUN_MAX: u32 = 2;

const KIND_MAP: u8 = 1;
const KIND_UNMAP: u8 = 2;
const KIND_VOLUME: u8 = 3;
const KIND_REMOVED: u8 = 4;
const KIND_DERIVED: u8 = 5;
const KIND_MAP_LIST: u8 = 6;

/// A snapshot's volume and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOf {
    /// The volume.
    pub volume: VolumeId,
    /// Time of its creation, in seconds since 1970.
    pub created_secs: u64,
}

/// The relation of a volume to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The family whose slots it may share: the number of the first volume of the family.
    pub family: VolumeId,
    /// It is a snapshot.
    pub snapshot: Option<SnapshotOf>,
}

impl Lineage {
    /// A volume that is derived from no other.
    pub fn of(volume: VolumeId) -> Lineage {
        Lineage { family: volume, snapshot: None }
    }
}

/// The address of a slot in a [`Record::MapList`]: the slot (4 bytes), then the group (2). Maps in memory keep it in
/// this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedSlot([u8; PackedSlot::BYTES]);

impl PackedSlot {
    /// Encoded size.
    pub const BYTES: usize = 6;
    /// The address of no slot.
    pub const NONE: PackedSlot = PackedSlot([u8::MAX; PackedSlot::BYTES]);

    /// The address of a slot, of a group below 65,535.
    pub fn new(SlotAddress { group, slot }: SlotAddress) -> PackedSlot {
        assert!(group.0 < u16::MAX, "group {group} does not exist");
        let ([a, b, c, d], [e, f]) = (slot.0.to_le_bytes(), group.0.to_le_bytes());
        PackedSlot([a, b, c, d, e, f])
    }

    /// The slot.
    pub fn address(self) -> SlotAddress {
        let PackedSlot([a, b, c, d, e, f]) = self;
        let (slot, group) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        SlotAddress { group: GroupNo(group), slot: SlotNo(slot) }
    }

    /// The slots of an encoded list; `None` if one is of group 65,535, which does not exist.
    fn decode_list(raw: &[u8]) -> Option<PackedSlots<'_>> {
        let (slots, rest) = raw.as_chunks::<{ PackedSlot::BYTES }>();
        assert!(rest.is_empty(), "a list of {} bytes", raw.len());
        let are_valid = slots.iter().fold(true, |are_valid, [.., low, high]| are_valid & ((low & high) != u8::MAX));
        are_valid.then_some(PackedSlots(slots))
    }
}

/// The slots of a list in a payload.
#[derive(Clone, Copy, Debug)]
pub struct PackedSlots<'a>(&'a [[u8; PackedSlot::BYTES]]);

impl<'a> PackedSlots<'a> {
    /// The slots in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = PackedSlot> + 'a {
        self.0.iter().map(|slot| PackedSlot(*slot))
    }
}

/// A decoded record. A list, of which a large checkpoint has hundreds of thousands, refers to the payload.
#[derive(Clone, Debug)]
pub enum Decoded<'a> {
    /// A [`Record::MapList`].
    MapList {
        /// The volume.
        volume: VolumeId,
        /// The first slice.
        slice: SliceNo,
        /// The slot of each slice.
        slots: PackedSlots<'a>,
    },
    /// Another record.
    Other(Record),
}

/// One change of the pool's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `count` slices of a volume lie in as many consecutive slots.
    Map {
        /// The volume.
        volume: VolumeId,
        /// The first slice.
        slice: SliceNo,
        /// The slot of the first slice.
        slot: SlotAddress,
        /// Number of slices, at most [`RUN_MAX`].
        count: u32,
    },
    /// Consecutive slices of a volume lie in these slots. Only checkpoints have this record.
    MapList {
        /// The volume.
        volume: VolumeId,
        /// The first slice.
        slice: SliceNo,
        /// The slot of each slice, at most [`LIST_MAX`].
        slots: Vec<SlotAddress>,
    },
    /// `count` slices of a volume are unallocated.
    Unmap {
        /// The volume.
        volume: VolumeId,
        /// The first slice.
        slice: SliceNo,
        /// Number of slices.
        count: u32,
    },
    /// A volume or snapshot exists and has these properties. Its map becomes that of `from`, if given. Slices past its
    /// size are unallocated.
    Volume {
        /// The volume.
        volume: VolumeId,
        /// Its properties.
        spec: VolumeSpec,
        /// Its relation to others.
        lineage: Lineage,
        /// The volume or snapshot whose present map it gets.
        from: Option<VolumeId>,
    },
    /// A volume and its slices are removed.
    VolumeRemoved {
        /// The volume.
        volume: VolumeId,
    },
}

impl Record {
    /// Appends the encoded record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Map { volume, slice, slot, count } => {
                assert!((1..=RUN_MAX).contains(count), "a run of {count} slices");
                out.push(KIND_MAP);
                out.extend(volume.0.to_le_bytes());
                out.extend(slice.0.to_le_bytes());
                out.extend(slot.slot.0.to_le_bytes());
                out.extend(slot.group.0.to_le_bytes());
                out.extend((*count as u16).to_le_bytes());
            }
            Record::MapList { volume, slice, slots } => {
                assert!((1..=LIST_MAX).contains(&slots.len()), "a list of {} slices", slots.len());
                out.push(KIND_MAP_LIST);
                out.extend(volume.0.to_le_bytes());
                out.extend(slice.0.to_le_bytes());
                out.push(slots.len() as u8);
                slots.iter().for_each(|slot| out.extend(PackedSlot::new(*slot).0));
            }
            Record::Unmap { volume, slice, count } => {
                out.push(KIND_UNMAP);
                out.extend(volume.0.to_le_bytes());
                out.extend(slice.0.to_le_bytes());
                out.extend(count.to_le_bytes());
            }
            Record::Volume { volume, spec, lineage, from } => {
                assert!(spec.name.len() <= VOLUME_NAME_BYTES, "a name of {} bytes", spec.name.len());
                let is_derived = *lineage != Lineage::of(*volume) || from.is_some();
                let (policy, tier) = match spec.policy {
                    TierPolicy::Auto => (0, TierNo(0)),
                    TierPolicy::StartHigh => (1, TierNo(0)),
                    TierPolicy::Highest => (2, TierNo(0)),
                    TierPolicy::Lowest => (3, TierNo(0)),
                    TierPolicy::Tier(tier) => (4, tier),
                };
                let provisioning = match spec.provisioning {
                    Provisioning::Thin => 0,
                    Provisioning::Thick => 1,
                };
                out.push(if is_derived { KIND_DERIVED } else { KIND_VOLUME });
                out.extend(volume.0.to_le_bytes());
                if is_derived {
                    let (of, created_secs) =
                        lineage.snapshot.map_or((0, 0), |snapshot| (snapshot.volume.0, snapshot.created_secs));
                    [from.map_or(0, |from| from.0), lineage.family.0, of]
                        .iter()
                        .for_each(|number| out.extend(number.to_le_bytes()));
                    out.extend(created_secs.to_le_bytes());
                }
                out.extend(spec.size_bytes.to_le_bytes());
                out.extend([policy, tier.0, provisioning, 0]);
                if !is_derived {
                    // Reserved.
                    out.extend(0_u32.to_le_bytes());
                }
                out.push(spec.name.len() as u8);
                out.extend(spec.name.as_bytes());
            }
            Record::VolumeRemoved { volume } => {
                out.push(KIND_REMOVED);
                out.extend(volume.0.to_le_bytes());
            }
        }
    }

    /// The number of [`Record::Map`]s and [`Record::Unmap`]s that it stands for, at most.
    pub fn map_records(&self) -> u64 {
        match self {
            Record::Map { .. } | Record::Unmap { .. } => 1,
            Record::MapList { slots, .. } => slots.len() as u64,
            Record::Volume { .. } | Record::VolumeRemoved { .. } => 0,
        }
    }

    /// Decodes all records of a block's payload; `None` if any is invalid.
    pub fn decode_all(payload: &[u8], mut apply: impl FnMut(Decoded<'_>)) -> Option<()> {
        let mut rest = Reader(payload);
        while !rest.0.is_empty() {
            apply(rest.record()?);
        }
        Some(())
    }
}

/// The undecoded rest of a payload.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn take_slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take()?))
    }

    fn long(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    /// The source of the map, and the lineage.
    fn lineage(&mut self) -> Option<(Option<VolumeId>, Lineage)> {
        let [from, family, of] = [self.long()?, self.long()?, self.long()?].map(VolumeId);
        let created_secs = u64::from_le_bytes(self.take()?);
        let some = |number: VolumeId| (number.0 > 0).then_some(number);
        let snapshot = some(of).map(|volume| SnapshotOf { volume, created_secs });
        Some((some(from), Lineage { family: some(family)?, snapshot }))
    }

    fn record(&mut self) -> Option<Decoded<'a>> {
        let [kind] = self.take()?;
        let volume = VolumeId(self.long()?);
        if kind == KIND_MAP_LIST {
            let slice = SliceNo(self.long()?);
            let [count] = self.take()?;
            let slots = PackedSlot::decode_list(self.take_slice(usize::from(count) * PackedSlot::BYTES)?)?;
            let count = usize::from(count);
            let fits = (1..=LIST_MAX).contains(&count) && slice.0.checked_add(count as u32).is_some();
            return fits.then_some(Decoded::MapList { volume, slice, slots });
        }
        self.other_record(kind, volume).map(Decoded::Other)
    }

    fn other_record(&mut self, kind: u8, volume: VolumeId) -> Option<Record> {
        match kind {
            KIND_MAP => {
                let (slice, slot, group) = (SliceNo(self.long()?), SlotNo(self.long()?), GroupNo(self.short()?));
                let count = u32::from(self.short()?);
                let fits = count > 0
                    && slice.0.checked_add(count).is_some()
                    && slot.0.checked_add(count).is_some()
                    && group.0 < u16::MAX;
                fits.then_some(Record::Map { volume, slice, slot: SlotAddress { group, slot }, count })
            }
            KIND_UNMAP => {
                let (slice, count) = (SliceNo(self.long()?), self.long()?);
                (count > 0 && slice.0.checked_add(count).is_some()).then_some(Record::Unmap { volume, slice, count })
            }
            KIND_VOLUME | KIND_DERIVED => {
                let is_derived = kind == KIND_DERIVED;
                let (from, lineage) = if is_derived { self.lineage()? } else { (None, Lineage::of(volume)) };
                let size_bytes = u64::from_le_bytes(self.take()?);
                let [policy, tier, provisioning, _] = self.take()?;
                let reserved = if is_derived { 0 } else { self.long()? };
                let [name_len] = self.take()?;
                let name = self.take_slice(usize::from(name_len))?;
                let policy = match policy {
                    0 => TierPolicy::Auto,
                    1 => TierPolicy::StartHigh,
                    2 => TierPolicy::Highest,
                    3 => TierPolicy::Lowest,
                    4 => TierPolicy::Tier(TierNo(tier)),
                    _ => return None,
                };
                let provisioning = match provisioning {
                    0 => Provisioning::Thin,
                    1 => Provisioning::Thick,
                    _ => return None,
                };
                let name = String::from_utf8(name.to_vec()).ok()?;
                let is_valid = reserved == 0 && name.len() <= VOLUME_NAME_BYTES && size_bytes < 1 << 62;
                let spec = VolumeSpec { name, size_bytes, policy, provisioning };
                is_valid.then_some(Record::Volume { volume, spec, lineage, from })
            }
            KIND_REMOVED => Some(Record::VolumeRemoved { volume }),
            _ => None,
        }
    }
}

/// Packs records into payloads of blocks. A record never crosses two blocks.
pub fn pack<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Vec<u8>> {
    pack_after(Vec::new(), records)
}

/// As [`pack`], but the first payload begins with `partial`, the records of an earlier call.
pub fn pack_after<'a>(partial: Vec<u8>, records: impl IntoIterator<Item = &'a Record>) -> Vec<Vec<u8>> {
    let (mut payloads, mut encoded) = (Vec::<Vec<u8>>::new(), Vec::new());
    if !partial.is_empty() {
        payloads.push(partial);
    }
    for record in records {
        encoded.clear();
        record.encode(&mut encoded);
        match payloads.last_mut().filter(|last| last.len() + encoded.len() <= PAYLOAD_BYTES) {
            Some(last) => last.extend_from_slice(&encoded),
            None => payloads.push(encoded.clone()),
        }
    }
    payloads
}

/// Collects changes of slices, in order of their addresses, into runs.
#[derive(Default)]
pub struct RunBuilder {
    records: Vec<Record>,
}

impl RunBuilder {
    /// Adds the mapping of a slice; `None` if it is unallocated.
    pub fn add(&mut self, to_volume: VolumeId, to_slice: SliceNo, to_slot: Option<SlotAddress>) {
        match (self.records.last_mut(), to_slot) {
            (Some(Record::Map { volume, slice, slot, count }), Some(next))
                if *volume == to_volume
                    && slice.0 + *count == to_slice.0
                    && slot.group == next.group
                    && slot.slot.0 + *count == next.slot.0
                    && *count < RUN_MAX =>
            {
                *count += 1;
            }
            (Some(Record::Unmap { volume, slice, count }), None)
                if *volume == to_volume && slice.0 + *count == to_slice.0 =>
            {
                *count += 1;
            }
            (_, Some(slot)) => self.records.push(Record::Map { volume: to_volume, slice: to_slice, slot, count: 1 }),
            (_, None) => self.records.push(Record::Unmap { volume: to_volume, slice: to_slice, count: 1 }),
        }
    }

    /// The records.
    pub fn finish(self) -> Vec<Record> {
        self.records
    }

    /// The records, with lists in the place of neighbouring short runs.
    pub fn finish_with_lists(self) -> Vec<Record> {
        let mut records = Vec::new();
        for record in self.records {
            let Record::Map { volume, slice, slot, count: count @ 1..=LISTED_RUN_MAX } = record else {
                records.push(record);
                continue;
            };
            let run = (0..count).map(|index| SlotAddress { slot: SlotNo(slot.slot.0 + index), ..slot });
            match records.last_mut() {
                Some(Record::MapList { volume: of, slice: first, slots })
                    if *of == volume
                        && first.0 + slots.len() as u32 == slice.0
                        && slots.len() + count as usize <= LIST_MAX =>
                {
                    slots.extend(run);
                }
                _ => records.push(Record::MapList { volume, slice, slots: run.collect() }),
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(group: u16, slot: u32) -> SlotAddress {
        SlotAddress { group: GroupNo(group), slot: SlotNo(slot) }
    }

    fn samples() -> Vec<Record> {
        let spec =
            |policy, provisioning| VolumeSpec { name: "größe".to_owned(), size_bytes: 1 << 40, policy, provisioning };
        vec![
            Record::Map { volume: VolumeId(1), slice: SliceNo(2), slot: slot(3, 4), count: 5 },
            Record::MapList { volume: VolumeId(1), slice: SliceNo(2), slots: vec![slot(3, 4), slot(0, u32::MAX)] },
            Record::Unmap { volume: VolumeId(1), slice: SliceNo(2), count: 70_000 },
            Record::Volume {
                volume: VolumeId(7),
                spec: spec(TierPolicy::Tier(TierNo(2)), Provisioning::Thick),
                lineage: Lineage::of(VolumeId(7)),
                from: None,
            },
            Record::Volume {
                volume: VolumeId(8),
                spec: spec(TierPolicy::Lowest, Provisioning::Thin),
                lineage: Lineage {
                    family: VolumeId(7),
                    snapshot: Some(SnapshotOf { volume: VolumeId(7), created_secs: 1 << 40 }),
                },
                from: Some(VolumeId(7)),
            },
            Record::Volume {
                volume: VolumeId(7),
                spec: spec(TierPolicy::Auto, Provisioning::Thick),
                lineage: Lineage::of(VolumeId(7)),
                from: Some(VolumeId(8)),
            },
            Record::VolumeRemoved { volume: VolumeId(9) },
        ]
    }

    #[test]
    fn records_round_trip_through_payloads() {
        let records: Vec<Record> = (0..300).flat_map(|_| samples()).collect();
        let payloads = pack(&records);
        assert!(payloads.len() > 1);
        let mut decoded = Vec::new();
        for payload in &payloads {
            let add = |record: Decoded<'_>| {
                decoded.push(match record {
                    Decoded::MapList { volume, slice, slots } => {
                        Record::MapList { volume, slice, slots: slots.iter().map(PackedSlot::address).collect() }
                    }
                    Decoded::Other(record) => record,
                });
            };
            Record::decode_all(payload, add).expect("valid");
        }
        assert_eq!(decoded, records);
    }

    #[test]
    fn cut_payload_is_invalid() {
        let payload = &pack(&samples()[..1])[0];
        assert_eq!(payload.len(), MAP_RECORD_BYTES);
        for end in 1..payload.len() {
            assert_eq!(Record::decode_all(&payload[..end], |_| ()), None, "{end}");
        }
    }

    #[test]
    fn cut_or_overlong_list_is_invalid() {
        let list = |len| Record::MapList { volume: VolumeId(1), slice: SliceNo(2), slots: vec![slot(3, 4); len] };
        let mut payload = pack(&[list(LIST_MAX)]).remove(0);
        assert!(payload.len() < LIST_MAX * MAP_RECORD_BYTES);
        for end in 1..payload.len() {
            assert_eq!(Record::decode_all(&payload[..end], |_| ()), None, "{end}");
        }
        payload[9] += 1;
        payload.extend([0; 6]);
        assert_eq!(Record::decode_all(&payload, |_| ()), None, "one slice too many");
        let mut empty = pack(&[list(1)]).remove(0);
        empty[9] = 0;
        assert_eq!(Record::decode_all(&empty[..10], |_| ()), None, "a list of nothing");
    }

    #[test]
    fn record_of_group_65535_is_invalid() {
        let listed = Record::MapList { volume: VolumeId(1), slice: SliceNo(2), slots: vec![slot(3, u32::MAX); 3] };
        let run = Record::Map { volume: VolumeId(1), slice: SliceNo(2), slot: slot(3, 4), count: 1 };
        for (record, group_at) in [(listed, 10 + 2 * PackedSlot::BYTES + 4), (run, 13)] {
            let mut payload = pack(&[record]).remove(0);
            assert!(Record::decode_all(&payload, |_| ()).is_some());
            payload[group_at..group_at + 2].fill(0xff);
            assert_eq!(Record::decode_all(&payload, |_| ()), None);
        }
    }

    #[test]
    fn short_runs_become_lists_and_long_ones_do_not() {
        let mut runs = RunBuilder::default();
        for slice in 0..80 {
            runs.add(VolumeId(1), SliceNo(slice), Some(slot(slice as u16 % 2, slice)));
        }
        for slice in 80..83 {
            runs.add(VolumeId(1), SliceNo(slice), Some(slot(7, slice)));
        }
        runs.add(VolumeId(1), SliceNo(83), None);
        runs.add(VolumeId(2), SliceNo(84), Some(slot(0, 1)));
        let records = runs.finish_with_lists();
        let lens: Vec<_> = records.iter().map(Record::map_records).collect();
        assert_eq!(lens, [64, 16, 1, 1, 1]);
        assert!(matches!(records[2], Record::Map { count: 3, .. }));
    }

    #[test]
    fn longest_volume_record_has_the_stated_size() {
        let spec = VolumeSpec { name: "x".repeat(VOLUME_NAME_BYTES), ..VolumeSpec::thin("", 0) };
        let lineage = Lineage::of(VolumeId(1));
        for (from, bytes) in [(None, VOLUME_RECORD_BYTES_MAX), (Some(VolumeId(2)), DERIVED_RECORD_BYTES_MAX)] {
            let mut out = Vec::new();
            Record::Volume { volume: VolumeId(1), spec: spec.clone(), lineage, from }.encode(&mut out);
            assert_eq!(out.len(), bytes);
        }
    }

    #[test]
    fn consecutive_slices_in_consecutive_slots_are_one_record() {
        let mut runs = RunBuilder::default();
        for (slice, to) in [(0, Some(slot(0, 5))), (1, Some(slot(0, 6))), (2, Some(slot(1, 7))), (3, None), (4, None)] {
            runs.add(VolumeId(1), SliceNo(slice), to);
        }
        assert_eq!(
            runs.finish(),
            [
                Record::Map { volume: VolumeId(1), slice: SliceNo(0), slot: slot(0, 5), count: 2 },
                Record::Map { volume: VolumeId(1), slice: SliceNo(2), slot: slot(1, 7), count: 1 },
                Record::Unmap { volume: VolumeId(1), slice: SliceNo(3), count: 2 },
            ]
        );
    }
}
