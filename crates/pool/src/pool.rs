//! The interface to an open pool: volumes, groups, moves, and its state for people.

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::apply;
use crate::check::{self, CheckReport};
use crate::create::{self, CreateOptions, TierSpec};
use crate::detached::detached;
use crate::disk::PoolDisk;
use crate::error::PoolError;
use crate::export::{self, ExportPlan};
use crate::format::Uuid;
use crate::format::record::{Lineage, Record};
use crate::format::superblock::MemberState;
use crate::give_up;
use crate::groups::{self, DrainReport};
use crate::heat_image::{self, HeatImageError};
use crate::import::{self, ImportReport};
use crate::journal;
use crate::lost::{self, LostVolume};
use crate::mover::{self, MoveError, MoveOutcome, Pace};
use crate::number::{GroupNo, SliceAddress, SliceNo, TierNo, VolumeId};
use crate::open::{self, OpenOptions};
use crate::planner::{ClassCost, HeatHistogram};
use crate::policy::{Provisioning, VolumeSpec};
use crate::relocation::{self, Pacer, RelocationPlan, RelocationSettings, VolumeCells};
use crate::relocation_report::{RelocationProgress, RelocationQueue, RelocationReport};
use crate::resize;
use crate::snapshots::{self, SnapshotReport};
use crate::state::{CommitScope, Inner, PoolCounts, ServedRequests, Volume};

/// An open pool. Clones are handles to the same pool, on the same core.
pub struct Pool<S: Seam, D: Disk<S>>(Rc<Inner<S, D>>);

impl<S: Seam, D: Disk<S>> Clone for Pool<S, D> {
    fn clone(&self) -> Self {
        Pool(Rc::clone(&self.0))
    }
}

/// The state of a group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// Its number.
    pub group: GroupNo,
    /// Its tier.
    pub tier: TierNo,
    /// The device's name; the last known one if it is missing.
    pub device: String,
    /// Whether it takes slices.
    pub state: MemberState,
    /// The device was present at the opening and has not reported since that it is gone.
    pub is_present: bool,
    /// It carries a copy of the metadata.
    pub carries_metadata: bool,
    /// Its slots.
    pub slots: u32,
    /// Its free slots.
    pub free: u32,
}

/// The state of a volume, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// Its number.
    pub volume: VolumeId,
    /// Its properties.
    pub spec: VolumeSpec,
    /// Its allocated slices.
    pub allocated: u32,
    /// Its allocated slices by group.
    pub slices: Vec<(GroupNo, u32)>,
}

impl<S: Seam, D: Disk<S>> Pool<S, D> {
    /// Creates a pool on disks, the fastest tier first, and returns its identity. The pool is not opened. Refuses disks
    /// that are not empty unless `force` is set.
    pub async fn create(seam: &S, tiers: &[TierSpec<D>], options: CreateOptions) -> Result<Uuid, PoolError> {
        create::create(seam, tiers, options).await
    }

    /// Opens a pool after any crash on its disks, in any order. Groups may be missing: their slices give errors. The
    /// opening can be interrupted at any point and repeated.
    pub async fn open(seam: &S, disks: &[D], options: OpenOptions) -> Result<Self, PoolError> {
        open::open(seam, disks, options).await.map(Pool)
    }

    /// Checks the metadata of a pool that is not open; nothing is written.
    pub async fn check(seam: &S, disks: &[D]) -> Result<CheckReport, PoolError> {
        check::check(seam, disks).await
    }

    /// The place of every slice of a pool that is not open, one line each: volume, slice, device, byte offset, length.
    pub async fn export_map(seam: &S, disks: &[D]) -> Result<String, PoolError> {
        export::export_map(seam, disks).await
    }

    /// The copies that rebuild a volume of a pool that is not open as a plain disk. `target` is the identity of a
    /// device of the pool that is to be written in place.
    pub async fn export_plan(
        seam: &S,
        disks: &[D],
        volume: &str,
        target: Option<&str>,
    ) -> Result<ExportPlan, PoolError> {
        export::export_plan(seam, disks, volume, target).await
    }

    /// Checks the maps and slots in memory. The pool has to be idle and flushed.
    pub fn check_open(&self) -> CheckReport {
        check::check_open(&self.0.state.borrow())
    }

    /// The pool's identity.
    pub fn uuid(&self) -> Uuid {
        self.0.state.borrow().superblock.pool
    }

    /// Bytes of a slice.
    pub fn slice_bytes(&self) -> u64 {
        self.0.state.borrow().slice_bytes()
    }

    /// Names of the tiers, the fastest first.
    pub fn tiers(&self) -> Vec<String> {
        self.0.state.borrow().superblock.tiers.clone()
    }

    /// Creates a volume, durably. A thick one is allocated before this returns.
    pub async fn create_volume(&self, spec: VolumeSpec) -> Result<VolumeId, PoolError> {
        let _guard = self.0.volumes_lock.lock().await;
        resize::check_size(&self.0, spec.size_bytes)?;
        let volume = {
            let mut state = self.0.state.borrow_mut();
            snapshots::check_new_name(&state, &spec.name)?;
            snapshots::check_volume_count(&state)?;
            let volume = state.next_volume;
            state.next_volume = volume.next();
            volume
        };
        let (is_thick, size_bytes) = (spec.provisioning == Provisioning::Thick, spec.size_bytes);
        let record = Record::Volume { volume, spec, lineage: Lineage::of(volume), from: None };
        journal::commit(&self.0, CommitScope::AllMaps, vec![record]).await?;
        if is_thick && let Err(error) = PoolDisk::new(&self.0, volume).reserve(0, size_bytes).await {
            journal::commit(&self.0, CommitScope::AllMaps, vec![Record::VolumeRemoved { volume }]).await?;
            apply::release_retired(&self.0).await;
            return Err(match error {
                seam::DiskError::NoSpace => PoolError::Full,
                error => PoolError::Disk { device: format!("volume {volume}"), error },
            });
        }
        Ok(volume)
    }

    /// Removes a volume and frees its slices, durably. Requests in flight end with an error or find nothing. A volume
    /// with snapshots is refused.
    pub async fn remove_volume(&self, volume: VolumeId) -> Result<(), PoolError> {
        let _guard = self.0.volumes_lock.lock().await;
        {
            let state = self.0.state.borrow();
            let entry = state.volumes.get(&volume).filter(|entry| entry.lineage.snapshot.is_none());
            let name = &entry.ok_or(PoolError::NoVolume(volume))?.spec.name;
            state.require_imported(volume)?;
            match snapshots::snapshots_of(&state, volume).count() {
                0 => {}
                1 => return Err(PoolError::Refused(format!("volume \"{name}\" has a snapshot: delete it first"))),
                count => {
                    let text = format!("volume \"{name}\" has {count} snapshots: delete them first");
                    return Err(PoolError::Refused(text));
                }
            }
        }
        let inner = Rc::clone(&self.0);
        let work = async move {
            journal::commit(&inner, CommitScope::AllMaps, vec![Record::VolumeRemoved { volume }]).await?;
            apply::release_retired(&inner).await;
            Ok(())
        };
        detached(&self.0.seam, work).await
    }

    /// Makes a snapshot of a volume, durably: its content with all writes that were acknowledged before. `created_secs`
    /// is the time in seconds since 1970. New changes of the volume wait meanwhile, for a few seconds at most.
    pub async fn create_snapshot(
        &self,
        volume: VolumeId,
        name: &str,
        created_secs: u64,
    ) -> Result<VolumeId, PoolError> {
        let (inner, named) = (Rc::clone(&self.0), (name.to_owned(), created_secs));
        let before = snapshots::loss_marks(&self.0.state.borrow());
        detached(&self.0.seam, async move { snapshots::create(&inner, volume, named, before).await }).await
    }

    /// Returns the volume of a snapshot to the snapshot's content and size, durably.
    pub async fn roll_back(&self, snapshot: VolumeId) -> Result<(), PoolError> {
        let inner = Rc::clone(&self.0);
        detached(&self.0.seam, async move { snapshots::roll_back(&inner, snapshot).await }).await
    }

    /// Creates a volume with the content of a snapshot, durably. It is thin, has the policy of the snapshot's volume,
    /// and shares all slices.
    pub async fn clone_snapshot(&self, snapshot: VolumeId, name: &str) -> Result<VolumeId, PoolError> {
        let (inner, name) = (Rc::clone(&self.0), name.to_owned());
        detached(&self.0.seam, async move { snapshots::clone(&inner, snapshot, name).await }).await
    }

    /// Deletes a snapshot, durably, and frees the slices that only it has.
    pub async fn delete_snapshot(&self, snapshot: VolumeId) -> Result<(), PoolError> {
        let inner = Rc::clone(&self.0);
        detached(&self.0.seam, async move { snapshots::delete(&inner, snapshot).await }).await
    }

    /// The snapshots of a volume, the oldest first.
    pub fn snapshots(&self, volume: VolumeId) -> Vec<SnapshotReport> {
        snapshots::reports(&self.0.state.borrow(), volume)
    }

    /// The number of a volume's snapshot of this name.
    pub fn snapshot_named(&self, volume: VolumeId, name: &str) -> Option<VolumeId> {
        let state = self.0.state.borrow();
        let mut snapshots = snapshots::snapshots_of(&state, volume);
        snapshots.find(|snapshot| state.volumes[snapshot].spec.name == name)
    }

    /// Changes a volume's policy, durably. Slices that are allocated stay where they are.
    pub async fn set_policy(&self, volume: VolumeId, policy: crate::TierPolicy) -> Result<(), PoolError> {
        let lock = {
            let state = self.0.state.borrow();
            state.require_imported(volume)?;
            Rc::clone(&state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?.resize_lock)
        };
        let _guard = lock.lock().await;
        let record = {
            let state = self.0.state.borrow();
            let entry = state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?;
            state.volume_record(volume, VolumeSpec { policy, ..entry.spec.clone() })
        };
        journal::commit(&self.0, CommitScope::AllMaps, vec![record]).await
    }

    /// A volume as a disk, or a snapshot as a read-only one.
    pub fn volume(&self, volume: VolumeId) -> Result<PoolDisk<S, D>, PoolError> {
        let exists = self.0.state.borrow().volumes.contains_key(&volume);
        exists.then(|| PoolDisk::new(&self.0, volume)).ok_or(PoolError::NoVolume(volume))
    }

    /// The number of the volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<VolumeId> {
        let state = self.0.state.borrow();
        let is_named =
            |(_, volume): &(&VolumeId, &Volume)| volume.lineage.snapshot.is_none() && volume.spec.name == name;
        state.volumes.iter().find(is_named).map(|(id, _)| *id)
    }

    /// Allocation of the volume with this name.
    pub fn provisioning_of(&self, name: &str) -> Option<Provisioning> {
        let volume = self.volume_named(name)?;
        Some(self.0.state.borrow().volumes.get(&volume)?.spec.provisioning)
    }

    /// Names of all volumes; of a snapshot the name of its volume, `@` and its own.
    pub fn volume_names(&self) -> std::collections::BTreeMap<VolumeId, String> {
        let state = self.0.state.borrow();
        let name = |volume: &Volume| match volume.lineage.snapshot {
            Some(of) => {
                let of = state.volumes.get(&of.volume).map_or("?", |volume| volume.spec.name.as_str());
                format!("{of}@{}", volume.spec.name)
            }
            None => volume.spec.name.clone(),
        };
        state.volumes.iter().map(|(id, volume)| (*id, name(volume))).collect()
    }

    /// All volumes, without snapshots.
    pub fn volumes(&self) -> Vec<VolumeReport> {
        let state = self.0.state.borrow();
        let report = |(id, volume): (&VolumeId, &crate::state::Volume)| {
            let mut slices = std::collections::BTreeMap::<GroupNo, u32>::new();
            volume.map.allocated_from(SliceNo(0)).for_each(|(_, slot)| *slices.entry(slot.group).or_default() += 1);
            let allocated = volume.map.allocated();
            VolumeReport { volume: *id, spec: volume.spec.clone(), allocated, slices: slices.into_iter().collect() }
        };
        state.volumes.iter().filter(|(_, volume)| volume.lineage.snapshot.is_none()).map(report).collect()
    }

    /// All groups, removed ones included.
    pub fn groups(&self) -> Vec<GroupReport> {
        let state = self.0.state.borrow();
        let members = state.superblock.numbered_members().zip(&state.groups);
        let report = |((number, member), group): ((GroupNo, &crate::format::superblock::MemberEntry), &_)| {
            let group: &crate::state::Group<D> = group;
            let used = group.slots.count() - group.slots.free_count();
            // A group that was given up has no room any more.
            let (slots, free) = match member.state {
                MemberState::Lost => (used, 0),
                _ => (group.slots.count(), group.slots.free_count()),
            };
            GroupReport {
                group: number,
                tier: member.tier,
                device: state.group_name(number),
                state: member.state,
                is_present: !state.is_absent(number),
                carries_metadata: member.carries_metadata,
                slots,
                free,
            }
        };
        members.map(report).collect()
    }

    /// Requests of clients that each group has served since the opening.
    pub fn served(&self) -> Vec<(GroupNo, ServedRequests)> {
        let state = self.0.state.borrow();
        let members = state.superblock.numbered_members().zip(&state.groups);
        members.map(|((number, _), group)| (number, group.served)).collect()
    }

    /// The group of a slice; `None` if it is unallocated.
    pub fn group_of(&self, slice: SliceAddress) -> Option<GroupNo> {
        self.0.state.borrow().slot_of(slice).map(|slot| slot.group)
    }

    /// The allocated slices of a volume with their groups, in order.
    pub fn slices_of(&self, volume: VolumeId) -> Vec<(SliceNo, GroupNo)> {
        let state = self.0.state.borrow();
        let map = state.volumes.get(&volume).map(|volume| &volume.map);
        map.into_iter()
            .flat_map(|map| map.allocated_from(SliceNo(0)))
            .map(|(slice, slot)| (slice, slot.group))
            .collect()
    }

    /// Volumes with ranges on groups that are missing or gone; at most `max` ranges of all volumes together are listed.
    pub async fn lost(&self, max: usize) -> Vec<LostVolume> {
        lost::lost(&self.0, max).await
    }

    /// The heat of the slices as of now, for a file of the caller: at most 64 MiB. `unix_seconds` is the wall-clock
    /// time.
    pub async fn heat_image(&self, unix_seconds: u64) -> Vec<u8> {
        heat_image::encode(&self.0, unix_seconds).await
    }

    /// Takes over the heat of an earlier opening, aged by the wall-clock time since then. Returns that time in seconds.
    pub async fn load_heat(&self, image: &[u8], unix_seconds: u64) -> Result<u64, HeatImageError> {
        heat_image::load(&self.0, image, unix_seconds).await
    }

    /// Moves a slice to a group; `pace` decides when each copy begins.
    pub async fn move_slice(&self, slice: SliceAddress, target: GroupNo, pace: Pace) -> Result<MoveOutcome, MoveError> {
        mover::move_slice(&self.0, slice, target, pace).await
    }

    /// Asks the running move of a slice to end. The slice stays at its source unless its last pass has begun.
    pub fn cancel_move(&self, slice: SliceAddress) {
        mover::cancel(&self.0, slice);
    }

    /// Plans moves that bring slices closer to the tiers that suit their demand. Nothing moves.
    pub async fn plan(&self, settings: &RelocationSettings) -> Result<RelocationPlan, PoolError> {
        relocation::plan(&self.0, settings).await
    }

    /// Plans once and moves the slices of the plan, two at once, behind the requests of clients. Refuses a second
    /// relocation at the same time.
    pub async fn relocate(&self, settings: &RelocationSettings) -> Result<RelocationReport, PoolError> {
        relocation::relocate(&Rc::downgrade(&self.0), &self.0.seam, settings).await
    }

    /// Starts a task that relocates slices again and again, until the stop flag is set or the pool is dropped.
    pub fn start_relocation(&self, settings: RelocationSettings) {
        relocation::start(&self.0, settings);
    }

    /// The present relocation, or the last one.
    pub fn relocation(&self) -> RelocationProgress {
        self.0.state.borrow().relocation
    }

    /// The moves of the present relocation that have not ended, at most `waiting_max` of those that have not begun.
    pub fn relocation_queue(&self, waiting_max: usize) -> RelocationQueue {
        let state = self.0.state.borrow();
        state.execution.as_ref().map(|execution| execution.queue(self.0.seam.now(), waiting_max)).unwrap_or_default()
    }

    /// True while slices are being moved.
    pub fn is_moving(&self) -> bool {
        let state = self.0.state.borrow();
        state.moves > 0 || state.relocation.is_running
    }

    /// A pace for moves one after the other, such as a drain, under the settings of relocation.
    pub fn pace(&self, settings: &RelocationSettings) -> Pace {
        Pacer::new(&Rc::downgrade(&self.0), &self.0.seam, settings).worker()
    }

    /// Slices by the disk time per hour that they would cost on the slowest tier. `classes` has the costs of each tier.
    pub async fn heat_histogram(&self, classes: &[ClassCost]) -> Result<HeatHistogram, PoolError> {
        relocation::heat_histogram(&self.0, classes).await
    }

    /// Utilisation of each group that takes slices by the requests of clients since the last relocation, in millionths.
    /// `classes` has the costs of each tier.
    pub fn utilisation(&self, classes: &[ClassCost]) -> Result<Vec<(GroupNo, u64)>, PoolError> {
        relocation::utilisation(&self.0, classes)
    }

    /// The slices of a volume in at most `cells_max` cells, with their tiers and their disk time on the slowest tier.
    /// `classes` has the costs of each tier.
    pub async fn volume_cells(
        &self,
        volume: VolumeId,
        classes: &[ClassCost],
        cells_max: u32,
    ) -> Result<VolumeCells, PoolError> {
        relocation::volume_cells(&self.0, volume, classes, cells_max).await
    }

    /// Makes a disk a group of a tier, durably. Refuses a disk that is not empty unless `force` is set.
    pub async fn add_group(&self, tier: TierNo, disk: D, force: bool) -> Result<GroupNo, PoolError> {
        groups::add_group(&self.0, tier, disk, force).await
    }

    /// Makes a disk with data a group of a tier and a thin volume of this name, durably, and whole or not at all. Its
    /// slices stay where they are, but for those of its start, where the superblocks go, and a last partial one.
    /// Refuses a member of another storage stack unless `force` is set.
    pub async fn import(&self, tier: TierNo, disk: D, name: &str, force: bool) -> Result<ImportReport, PoolError> {
        let (inner, name) = (Rc::clone(&self.0), name.to_owned());
        detached(&self.0.seam, async move { import::import(&inner, tier, disk, name, force).await }).await
    }

    /// Marks a group as draining, durably: it takes no slices until its drain is cancelled. Refuses a group whose
    /// slices have no place on the others.
    pub async fn begin_drain(&self, group: GroupNo) -> Result<(), PoolError> {
        groups::begin_drain(&self.0, group).await
    }

    /// Begins a drain, and goes on with it as [`Pool::continue_drain`] does.
    pub async fn drain(&self, group: GroupNo, pace: Pace) -> Result<DrainReport, PoolError> {
        groups::begin_drain(&self.0, group).await?;
        groups::continue_drain(&self.0, group, pace).await
    }

    /// Moves all slices of a draining group to others, and takes it out of the pool when nothing is left on it. Does
    /// nothing for a group that is not draining.
    pub async fn continue_drain(&self, group: GroupNo, pace: Pace) -> Result<DrainReport, PoolError> {
        groups::continue_drain(&self.0, group, pace).await
    }

    /// Lets a draining group take slices again. A drain that is running ends after its present move.
    pub async fn cancel_drain(&self, group: GroupNo) -> Result<(), PoolError> {
        groups::cancel_drain(&self.0, group).await
    }

    /// Gives up a group that is missing or gone, durably: it counts for no majority any more. Requests to its slices
    /// fail until the slices are discarded.
    pub async fn give_up(&self, group: GroupNo) -> Result<(), PoolError> {
        give_up::give_up(&self.0, group).await
    }

    /// Makes all changes of the maps durable.
    pub async fn commit(&self) -> Result<(), PoolError> {
        journal::commit(&self.0, CommitScope::AllMaps, Vec::new()).await
    }

    /// Writes a checkpoint.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        journal::checkpoint(&self.0).await
    }

    /// Makes another metadata copy if fewer than two are in service, on a group that has failed as one before, too.
    /// Returns whether a copy was made.
    pub async fn restore_copies(&self) -> Result<bool, PoolError> {
        journal::add_copy(&self.0, crate::format::layout::COPIES, true).await
    }

    /// Counters since the opening.
    pub fn counts(&self) -> PoolCounts {
        self.0.state.borrow().counts
    }

    /// Takes the events since the last call: a missing group, a lost or a new metadata copy.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.0.state.borrow_mut().notices)
    }
}
