//! The state of an open pool: groups, volumes with their maps, requests in flight, and the journal's position.
//!
//! Invariants:
//! 1. A slot holds one slice of one family. A slot that a map, a durable entry or a request in flight uses is not free.
//! 2. A map entry becomes durable only after the zeroes and data that its slot held at that time (`journal/commit.rs`).
//! 3. Only [`State::set_slot`] and the commit's own records change a map (`sharing.rs`, `apply.rs`).
//! 4. A slot to which several maps refer, in memory or durably, is not written.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, PendingRequests, Seam};

use crate::buffers::Buffers;
use crate::changes::Changes;
use crate::error::PoolError;
use crate::family::Family;
use crate::format::record::{Lineage, Record};
use crate::format::superblock::{MemberState, Superblock};
use crate::group_set::GroupSet;
use crate::heat::{Demand, StreamDetector};
use crate::interference::{Interference, TimedRequest};
use crate::map::VolumeMap;
use crate::metadata_requests::MetadataRequests;
use crate::number::{
    CheckpointNo, GroupNo, PoolGeneration, Sequence, SliceAddress, SliceNo, SlotAddress, SlotNo, VolumeId,
};
use crate::planner::MoveAllowance;
use crate::policy::{GroupRoom, TierPolicy, VolumeSpec, place};
use crate::releases::Releases;
use crate::relocation_report::{Execution, RelocationProgress};
use crate::retired::Retired;
use crate::sabotage::Sabotage;
use crate::slice_bits::SliceBits;
use crate::slots::{GroupSlots, SlotUse};
use crate::volume_heat::VolumeHeat;
use task_sync::{Reply, TaskMutex, Waiters};

/// Part of each tier that is kept from the policy `auto`, in percent.
pub(crate) const RESERVE_PERCENT: u32 = 10;

/// Requests of clients that reached a group. A request over several slices counts in each of them; copies of moves do
/// not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedRequests {
    /// Reads.
    pub reads: u64,
    /// Writes, and zero-ranges that the group does not do by itself.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// A group of the pool.
pub(crate) struct Group<D> {
    /// Its disk; `None` if it was missing at the opening, or is removed.
    pub disk: Option<D>,
    pub slots: GroupSlots,
    /// Held during a flush.
    pub flush_lock: Rc<TaskMutex>,
    /// Failed flushes; part of the pool's connection epoch.
    pub flush_failures: u64,
    /// The disk has reported that it is gone.
    pub is_gone: bool,
    /// It failed as a metadata copy since the opening.
    pub failed_as_copy: bool,
    /// Demand of clients since the last relocation, for the group's utilisation.
    pub demand: Demand,
    /// Requests of clients since the opening.
    pub served: ServedRequests,
    /// Requests of clients in flight. A move gives way to them.
    pub requests: u32,
    /// The generation that both its superblocks hold at least.
    pub durable_generation: PoolGeneration,
    /// The generation that made it a member. It takes no slices before that is durable: a map entry must not refer to a
    /// group that no superblock names.
    pub member_since: PoolGeneration,
    /// The generation in which it was given up, if that was since the opening.
    pub lost_since: PoolGeneration,
    /// It has answered a request since a write of its superblock failed.
    pub has_answered: bool,
    /// Requests for its metadata in flight.
    pub metadata_requests: Rc<MetadataRequests>,
    /// The superblock to overwrite next: the one that is not its newest. A group may have missed writes of the others.
    pub next_place: usize,
}

impl<D> Group<D> {
    pub fn new(disk: Option<D>, slots: u32) -> Group<D> {
        let slots = GroupSlots::new(slots);
        Group {
            disk,
            slots,
            flush_lock: Rc::default(),
            flush_failures: 0,
            is_gone: false,
            failed_as_copy: false,
            demand: Demand::default(),
            served: ServedRequests::default(),
            requests: 0,
            durable_generation: PoolGeneration(0),
            member_since: PoolGeneration(0),
            lost_since: PoolGeneration(0),
            has_answered: false,
            metadata_requests: Rc::default(),
            next_place: 0,
        }
    }
}

/// A volume of the pool, or a snapshot of one.
pub(crate) struct Volume {
    /// Its family, and the volume of a snapshot.
    pub lineage: Lineage,
    /// Properties in the last durable record.
    pub spec: VolumeSpec,
    /// Size that clients may use; below the durable size while the volume shrinks.
    pub limit_bytes: u64,
    pub map: VolumeMap,
    /// Slices whose slot is certainly no other volume's.
    pub private: SliceBits,
    /// Changes of slices in progress.
    pub changing: u32,
    /// Changes that wait while a snapshot is made.
    pub hold: Option<Waiters>,
    /// The outcome of its last snapshot or roll back is unknown until the next opening. A write before that would
    /// change the content of a snapshot, or vanish.
    pub is_in_doubt: bool,
    /// Demand of its slices.
    pub heat: VolumeHeat,
    /// Sequential streams of its clients.
    pub streams: StreamDetector,
    /// Groups with writes that completed since the last successful flush.
    pub unflushed: GroupSet,
    pub requests: PendingRequests,
    /// Held while the size changes.
    pub resize_lock: Rc<TaskMutex>,
}

impl Volume {
    pub fn new(spec: VolumeSpec, lineage: Lineage) -> Volume {
        Volume {
            lineage,
            limit_bytes: spec.size_bytes,
            spec,
            map: VolumeMap::default(),
            private: SliceBits::default(),
            changing: 0,
            hold: None,
            is_in_doubt: false,
            heat: VolumeHeat::default(),
            streams: StreamDetector::default(),
            unflushed: GroupSet::default(),
            requests: PendingRequests::default(),
            resize_lock: Rc::default(),
        }
    }
}

/// A copy of a slice to another group in progress.
pub(crate) struct Move {
    /// One bit per block that was written since it was copied.
    pub marks: Vec<u64>,
    /// Writes of the slice wait: the last pass is running.
    pub holds_writes: bool,
    /// The caller has given the move up.
    pub is_cancelled: bool,
    /// Writes that wait for the end of the last pass.
    pub waiters: Waiters,
    /// The mover, waiting for the end of the writes in flight.
    pub drained: Waiters,
}

impl Move {
    /// Marks the blocks of a range of the slice.
    pub fn mark(&mut self, offset: u64, len: u64) {
        let block = seam::BLOCK_BYTES as u64;
        for index in offset / block..(offset + len).div_ceil(block) {
            self.marks[(index / 64) as usize] |= 1 << (index % 64);
        }
    }

    /// Number of marked blocks.
    pub fn marked(&self) -> u32 {
        self.marks.iter().map(|word| word.count_ones()).sum()
    }
}

/// Requests in flight at a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pins {
    pub readers: u32,
    pub writers: u32,
}

/// A request to make changes durable.
pub(crate) struct CommitRequest {
    /// The state that it makes durable besides `records`.
    pub scope: CommitScope,
    /// Records beside the changes of maps.
    pub records: Vec<Record>,
    pub reply: Reply<Result<(), PoolError>>,
}

/// The state that a commit makes durable for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitScope {
    /// All changes of maps.
    AllMaps,
    /// The changes of the map of a volume.
    VolumeMap(VolumeId),
    /// The completed writes of a volume, and the changes of its map.
    VolumeWrites(VolumeId),
}

impl CommitScope {
    /// The volume whose writes are flushed.
    pub fn flushed_volume(self) -> Option<VolumeId> {
        match self {
            CommitScope::VolumeWrites(volume) => Some(volume),
            CommitScope::AllMaps | CommitScope::VolumeMap(_) => None,
        }
    }
}

/// Position and tasks of the journal.
#[derive(Default)]
pub(crate) struct JournalState {
    /// The next block to write.
    pub next: Sequence,
    /// Checksum of the block before it.
    pub previous: u32,
    /// The first block whose records the maps in memory may lack; a checkpoint begins here.
    pub settled: Sequence,
    /// Checksum of the block before `settled`.
    pub settled_previous: u32,
    /// The first block that the newest complete checkpoint needs.
    pub replay_from: Sequence,
    /// The newest complete checkpoint.
    pub checkpoint: CheckpointNo,
    /// A random number of this opening.
    pub boot: u64,
    /// A task is committing.
    pub is_committing: bool,
    pub requests: Vec<CommitRequest>,
    /// Groups whose flush for a commit lasts too long. Commits go on without them.
    pub hung: GroupSet,
    /// Ended flushes of hung groups, until the end of the present pass; `None` between passes.
    pub late_flushes: Option<Vec<(GroupNo, DiskResult<()>)>>,
    /// Requests that need a hung group.
    pub parked: Vec<CommitRequest>,
    /// A task is writing a checkpoint.
    pub is_checkpointing: bool,
    /// Tasks that wait for the end of a checkpoint.
    pub checkpoint_waiters: Waiters,
    /// The group to which a new metadata copy is being written: it gets every block, but nothing relies on it yet.
    pub joining: Option<GroupNo>,
    /// Map records of the newest complete checkpoint.
    pub checkpoint_records: u64,
    /// Map records in journal blocks since the opening.
    pub journal_records: u64,
    /// [`JournalState::journal_records`] when the newest complete checkpoint began.
    pub journal_records_before: u64,
}

/// Counters of an open pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Commits of the journal.
    pub commits: u64,
    /// Journal blocks written.
    pub journal_blocks: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Slices allocated.
    pub allocations: u64,
    /// Moves completed.
    pub moves: u64,
    /// Planned moves of slices that had been freed or moved, and moves that were cancelled.
    pub skipped_moves: u64,
    /// Moves that failed; their slices stay.
    pub failed_moves: u64,
    /// Blocks of moves that were copied again because of a write.
    pub blocks_copied_again: u64,
    /// Changes taken back because a group lost unflushed content.
    pub reverts: u64,
}

pub(crate) struct State<S: Seam, D: Disk<S>> {
    /// The superblock as the groups hold it. The group number in it is set when a copy is written.
    pub superblock: Superblock,
    /// The newest generation that no opening can miss: too few groups lack it.
    pub durable_generation: PoolGeneration,
    /// Number of members of the durable generation.
    pub durable_members: usize,
    /// Metadata copies of the durable generation.
    pub durable_copies: GroupSet,
    /// Tasks that wait for the end of a group's late metadata requests.
    pub late_ended: Waiters,
    /// Groups that were missing when the pool was opened in spite of that: their older state was given up.
    pub given_up: GroupSet,
    pub groups: Vec<Group<D>>,
    /// Volumes and snapshots.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// The volumes and snapshots of each family.
    pub families: BTreeMap<VolumeId, Family>,
    /// Former maps whose slots are not released yet.
    pub retired: Vec<Retired>,
    pub next_volume: VolumeId,
    pub changes: Changes,
    /// Slices whose new slot is being filled, with the changes that wait for that.
    pub allocating: BTreeMap<SliceAddress, Waiters>,
    /// Moves in progress, by the slot that is copied.
    pub moving: BTreeMap<SlotAddress, Move>,
    pub releases: Releases,
    pins: BTreeMap<SlotAddress, Pins>,
    /// Slots that are free as soon as no request uses them.
    free_when_unpinned: BTreeSet<SlotAddress>,
    pub journal: JournalState,
    /// The reason why the metadata cannot be written any more.
    pub failed: Option<PoolError>,
    /// Moves in progress, up to the end of their commit.
    pub moves: usize,
    /// Latencies of clients beside moves.
    pub interference: Interference,
    pub relocation: RelocationProgress,
    /// The plan in execution.
    pub execution: Option<Execution>,
    /// The last relocation had moves of balance.
    pub is_balancing: bool,
    /// Allowance of moves by heat and balance, with the size of the fast tier for which it was made.
    pub allowance: Option<(u64, MoveAllowance)>,
    /// Time since which [`Group::demand`] counts.
    pub demand_since: Nanos,
    pub counts: PoolCounts,
    /// Events for people, such as a lost metadata copy.
    pub notices: Vec<String>,
    /// Part of the connection epoch: epochs of removed groups, and one for each change that was taken back.
    pub extra_epochs: u64,
    pub sabotage: Sabotage,
    pub _seam: std::marker::PhantomData<S>,
}

/// The state of an open pool, with the locks and buffers of its tasks.
pub(crate) struct Inner<S: Seam, D: Disk<S>> {
    pub seam: S,
    pub state: RefCell<State<S, D>>,
    pub buffers: Buffers<S>,
    /// Held during a pass of commits.
    pub commit_lock: TaskMutex,
    /// Held while superblocks are written.
    pub superblock_lock: TaskMutex,
    /// Held while a metadata copy is made.
    pub copies_lock: TaskMutex,
    /// Held while groups are added, drained or removed.
    pub membership_lock: TaskMutex,
    /// Held while volumes are created or removed.
    pub volumes_lock: TaskMutex,
}

impl<S: Seam, D: Disk<S>> State<S, D> {
    pub fn new(superblock: Superblock, groups: Vec<Group<D>>, sabotage: Sabotage) -> State<S, D> {
        State {
            durable_generation: superblock.generation,
            durable_members: superblock.member_count(),
            late_ended: Waiters::default(),
            durable_copies: superblock.metadata_groups().into_iter().collect(),
            given_up: GroupSet::default(),
            superblock,
            groups,
            volumes: BTreeMap::new(),
            families: BTreeMap::new(),
            retired: Vec::new(),
            next_volume: VolumeId(1),
            changes: Changes::default(),
            allocating: BTreeMap::new(),
            moving: BTreeMap::new(),
            releases: Releases::default(),
            pins: BTreeMap::new(),
            free_when_unpinned: BTreeSet::new(),
            journal: JournalState::default(),
            failed: None,
            moves: 0,
            interference: Interference::default(),
            relocation: RelocationProgress::default(),
            execution: None,
            is_balancing: false,
            allowance: None,
            demand_since: Nanos::ZERO,
            counts: PoolCounts::default(),
            notices: Vec::new(),
            extra_epochs: 0,
            sabotage,
            _seam: std::marker::PhantomData,
        }
    }

    /// Bytes of a slice.
    pub fn slice_bytes(&self) -> u64 {
        self.superblock.slice_bytes
    }

    /// The slice at a byte offset, and the offset in it.
    pub fn slice_at(&self, at: u64) -> (SliceNo, u64) {
        let slice = u32::try_from(at / self.slice_bytes()).expect("a volume has fewer than 2^32 slices");
        (SliceNo(slice), at % self.slice_bytes())
    }

    /// The group and the volume of the import in progress.
    pub fn current_import(&self) -> Option<(GroupNo, VolumeId)> {
        self.superblock.import_group().zip(self.superblock.import)
    }

    /// Refuses the volume of an import that has not ended.
    pub fn require_imported(&self, volume: VolumeId) -> Result<(), PoolError> {
        match self.current_import() {
            Some((group, importing)) if importing == volume => {
                let name = self.volumes.get(&volume).map(|volume| volume.spec.name.clone());
                let volume = name.unwrap_or_else(|| volume.to_string());
                Err(PoolError::ImportPending { device: self.group_name(group), volume })
            }
            _ => Ok(()),
        }
    }

    /// True if the slice is mapped to a group that was given up.
    pub fn is_given_up(&self, slice: SliceAddress) -> bool {
        let slot = self.slot_of(slice);
        slot.is_some_and(|slot| self.superblock.members[slot.group.index()].state == MemberState::Lost)
    }

    /// Byte offset of a slot on its group.
    pub fn slot_offset(&self, slot: SlotAddress) -> u64 {
        let member = &self.superblock.members[slot.group.index()];
        assert!(slot.slot.0 < member.slots, "{slot} lies past the group's end");
        member.data_at + u64::from(slot.slot.0) * self.slice_bytes()
    }

    /// The name of a group for people.
    pub fn group_name(&self, group: GroupNo) -> String {
        match &self.groups[group.index()].disk {
            Some(disk) => disk.identity(),
            None => self.superblock.members[group.index()].name.clone(),
        }
    }

    /// True for a group that was missing at the opening, or has reported that it is gone.
    pub fn is_absent(&self, group: GroupNo) -> bool {
        let group = &self.groups[group.index()];
        group.disk.is_none() || group.is_gone
    }

    /// The disk of a group that is present.
    pub fn disk(&self, group: GroupNo) -> Result<D, DiskError> {
        let missing = || DiskError::Io(format!("group {group} ({}) is missing", self.group_name(group)));
        self.groups[group.index()].disk.clone().ok_or_else(missing)
    }

    /// Identifies the period in which unflushed writes to a group stay: it changes when they may be lost.
    pub fn write_stamp(&self, group: GroupNo) -> u64 {
        let group = &self.groups[group.index()];
        group.disk.as_ref().map_or(0, Disk::connection_epoch) + group.flush_failures
    }

    /// Changes whenever any group may have lost unflushed writes.
    pub fn connection_epoch(&self) -> u64 {
        let groups = (0..self.groups.len() as u16).map(|group| self.write_stamp(GroupNo(group)));
        self.extra_epochs + groups.sum::<u64>()
    }

    /// The slot of a slice.
    pub fn slot_of(&self, slice: SliceAddress) -> Option<SlotAddress> {
        self.volumes.get(&slice.volume)?.map.get(slice.slice)
    }

    /// Number of slices that clients of a volume may use.
    pub fn slice_count(&self, volume: &Volume) -> u32 {
        u32::try_from(volume.limit_bytes.div_ceil(self.slice_bytes())).expect("checked when the size was set")
    }

    /// True if a group takes new slices: it is in service and present.
    pub fn takes_slices(&self, group: GroupNo) -> bool {
        let (member, group) = (&self.superblock.members[group.index()], &self.groups[group.index()]);
        let is_durable = group.member_since <= self.durable_generation;
        member.state == MemberState::InService && group.disk.is_some() && !group.is_gone && is_durable
    }

    /// Free slots of the groups that take new slices.
    pub fn rooms(&self) -> Vec<GroupRoom> {
        let members = self.superblock.numbered_members().zip(&self.groups);
        let takes = members.filter(|((number, _), _)| self.takes_slices(*number));
        let room = |((number, member), group): ((GroupNo, &crate::format::superblock::MemberEntry), &Group<D>)| {
            GroupRoom { group: number, tier: member.tier, slots: group.slots.count(), free: group.slots.free_count() }
        };
        takes.map(room).collect()
    }

    /// Takes a free slot for a new slice, on a group of `avoided` only if no other has one.
    pub fn take_slot(&mut self, policy: TierPolicy, avoided: GroupSet) -> Option<SlotAddress> {
        let (tiers, rooms) = (self.superblock.tiers.len() as u8, self.rooms());
        let others: Vec<_> = rooms.iter().copied().filter(|room| !avoided.contains(room.group)).collect();
        let group =
            place(policy, tiers, &others, RESERVE_PERCENT).or_else(|| place(policy, tiers, &rooms, RESERVE_PERCENT))?;
        self.take_slot_on(group)
    }

    /// Takes a free slot on a group.
    pub fn take_slot_on(&mut self, group: GroupNo) -> Option<SlotAddress> {
        let slot = self.groups[group.index()].slots.take()?;
        let slot = SlotAddress { group, slot };
        assert!(!self.pins.contains_key(&slot), "{slot} is free although a request uses it");
        Some(slot)
    }

    /// Frees a slot to which no durable map entry refers, once no request uses it.
    pub fn free_slot(&mut self, slot: SlotAddress) {
        let SlotAddress { group, slot: SlotNo(_) } = slot;
        if self.pins.contains_key(&slot) {
            self.groups[group.index()].slots.set(slot.slot, SlotUse::Released);
            self.free_when_unpinned.insert(slot);
        } else {
            self.groups[group.index()].slots.set(slot.slot, SlotUse::Free);
        }
    }

    /// Counts a change of a slice; a snapshot of its volume waits for the end.
    pub fn begin_change(&mut self, slice: SliceAddress) {
        if let Some(volume) = self.volumes.get_mut(&slice.volume) {
            volume.changing += 1;
        }
    }

    /// Ends a [`State::begin_change`].
    pub fn end_change(&mut self, slice: SliceAddress) {
        if let Some(volume) = self.volumes.get_mut(&slice.volume) {
            volume.changing = volume.changing.checked_sub(1).expect("a change ends once");
        }
    }

    /// Requests in flight at a slot.
    pub fn pins(&self, slot: SlotAddress) -> Pins {
        self.pins.get(&slot).copied().unwrap_or_default()
    }

    /// Counts a request of a client at a slot.
    pub fn pin(&mut self, slot: SlotAddress, is_write: bool) {
        self.groups[slot.group.index()].requests += 1;
        self.hold(slot, is_write);
    }

    /// Ends a request of a client at a slot.
    pub fn unpin(&mut self, slot: SlotAddress, is_write: bool) {
        self.end_group_request(slot.group);
        self.release(slot, is_write);
    }

    /// Ends a request of a client that [`Group::requests`] counts.
    pub fn end_group_request(&mut self, group: GroupNo) {
        let requests = &mut self.groups[group.index()].requests;
        *requests = requests.checked_sub(1).expect("a request ends once");
    }

    /// Keeps a slot as it is, for a request or for a copy of a move.
    pub fn hold(&mut self, slot: SlotAddress, is_write: bool) {
        let pins = self.pins.entry(slot).or_default();
        *(if is_write { &mut pins.writers } else { &mut pins.readers }) += 1;
    }

    /// Ends a [`State::hold`].
    pub fn release(&mut self, slot: SlotAddress, is_write: bool) {
        let pins = self.pins.get_mut(&slot).expect("a pinned slot is counted");
        let count = if is_write { &mut pins.writers } else { &mut pins.readers };
        *count = count.checked_sub(1).expect("a request ends once");
        if pins.readers + pins.writers == 0 {
            self.pins.remove(&slot);
            if self.free_when_unpinned.remove(&slot) {
                self.groups[slot.group.index()].slots.set(slot.slot, SlotUse::Free);
            }
        }
    }

    /// Begins to time a request of a client while slices move.
    pub fn time_request(&self, now: Nanos) -> Option<TimedRequest> {
        (self.moves > 0).then(|| self.interference.begin(now))
    }

    /// True for the only group in service with a metadata copy of the durable generation. A copy that is not durably
    /// one cannot replace it: an opening that finds this group alone would miss the state of the other.
    pub fn is_last_copy(&self, group: GroupNo) -> bool {
        let others = self.durable_copies.iter().filter(|copy| *copy != group);
        self.is_durable_copy(group) && !others.into_iter().any(|copy| self.is_durable_copy(copy))
    }

    /// True for a metadata copy of the durable generation that is in service.
    pub fn is_durable_copy(&self, group: GroupNo) -> bool {
        let member = &self.superblock.members[group.index()];
        self.durable_copies.contains(group) && member.carries_metadata && self.groups[group.index()].disk.is_some()
    }

    /// The groups that carry the metadata, with their disks.
    pub fn copies(&self) -> Vec<(GroupNo, D)> {
        let copies = self.superblock.metadata_groups().into_iter();
        copies.filter_map(|group| Some((group, self.groups[group.index()].disk.clone()?))).collect()
    }
}
