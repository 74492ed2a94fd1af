//! Snapshots, roll back and clones: each is one record of the journal that copies a map.
//!
//! The volumes concerned are held meanwhile: new changes of their slices wait, the ones in flight end, and everything
//! is durable before the record is written. So the record's place in the journal and the maps in memory mean the same.

use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, Seam};

use crate::apply::release_retired;
use crate::error::PoolError;
use crate::format::layout::{SNAPSHOTS_MAX, VOLUMES_AND_SNAPSHOTS_MAX, VOLUMES_MAX};
use crate::format::record::{Lineage, Record, SnapshotOf, VOLUME_NAME_BYTES};
use crate::format::superblock::FEATURE_SNAPSHOTS;
use crate::journal;
use crate::membership;
use crate::number::{GroupNo, SliceAddress, SliceNo, VolumeId};
use crate::policy::{Provisioning, VolumeSpec};
use crate::state::{CommitScope, Inner, State};
use task_sync::Waiters;

/// Longest time that changes of a volume wait for the ones in flight.
const HOLD_MAX: Nanos = Nanos::from_secs(5);
/// Time between two looks at them.
const HOLD_STEP: Nanos = Nanos::from_micros(200);
/// Attempts to make all changes durable.
const ATTEMPTS_MAX: u32 = 4;

/// A snapshot, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// Its number.
    pub snapshot: VolumeId,
    /// Its volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Size of the volume when it was made.
    pub size_bytes: u64,
    /// Time of its creation, in seconds since 1970.
    pub created_secs: u64,
    /// Its allocated slices.
    pub allocated: u32,
    /// Slices that no other volume or snapshot shares: its deletion frees them.
    pub own_slices: u32,
}

/// Lets the changes of volumes wait until it is dropped.
struct Hold<S: Seam, D: Disk<S>> {
    inner: Rc<Inner<S, D>>,
    volumes: Vec<VolumeId>,
}

impl<S: Seam, D: Disk<S>> Hold<S, D> {
    /// Holds volumes, and makes their former changes durable. Operations that hold volumes run one after the other.
    async fn begin(inner: &Rc<Inner<S, D>>, volumes: Vec<VolumeId>) -> Result<Self, PoolError> {
        {
            let mut state = inner.state.borrow_mut();
            for id in &volumes {
                let volume = state.volumes.get_mut(id).ok_or(PoolError::NoVolume(*id))?;
                assert!(volume.hold.is_none(), "the lock of volumes admits one holder");
                volume.hold = Some(Waiters::default());
            }
        }
        let hold = Hold { inner: Rc::clone(inner), volumes };
        let end = inner.seam.now() + HOLD_MAX;
        while hold.any(|state, id| state.volumes.get(&id).is_some_and(|volume| volume.changing > 0)) {
            if inner.seam.now() >= end {
                let text = "requests of the volume do not end: a device of the pool may hang; try again later";
                return Err(PoolError::Refused(text.to_owned()));
            }
            inner.seam.sleep(HOLD_STEP).await;
        }
        for _ in 0..ATTEMPTS_MAX {
            for volume in &hold.volumes {
                journal::commit(inner, CommitScope::VolumeWrites(*volume), Vec::new()).await?;
            }
            if !hold.any(|state, id| state.changes.has_changes_of(id)) {
                return Ok(hold);
            }
        }
        Err(PoolError::Refused("a device of the pool keeps losing writes; try again later".to_owned()))
    }

    /// True if a condition holds for one of the volumes.
    fn any(&self, condition: impl Fn(&State<S, D>, VolumeId) -> bool) -> bool {
        let state = self.inner.state.borrow();
        self.volumes.iter().any(|id| condition(&state, *id))
    }
}

impl<S: Seam, D: Disk<S>> Drop for Hold<S, D> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        let waiting: Vec<_> = self.volumes.iter().filter_map(|id| state.volumes.get_mut(id)?.hold.take()).collect();
        drop(state);
        waiting.into_iter().for_each(|mut waiters| waiters.wake());
    }
}

/// Makes a snapshot of a volume, durably. It has all writes that were acknowledged before, flushed or not. `before` has
/// the marks at that time: a loss of writes since then refuses the snapshot.
pub(crate) async fn create<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    (name, created_secs): (String, u64),
    before: LossMarks,
) -> Result<VolumeId, PoolError> {
    // Requests of the volume wait for the snapshot, so that it waits for no other change of volumes.
    let Some(_guard) = inner.volumes_lock.try_lock() else {
        return refused("a volume or snapshot of the pool is being created or deleted: try again later".to_owned());
    };
    let lock = {
        let state = inner.state.borrow();
        let entry = volume_of(&state, volume)?;
        check_name_length(&name)?;
        let mut others = snapshots_of(&state, volume);
        if others.any(|snapshot| state.volumes[&snapshot].spec.name == name) {
            return refused(format!("volume \"{}\" has a snapshot \"{name}\" already", entry.spec.name));
        }
        if snapshots_of(&state, volume).count() >= SNAPSHOTS_MAX {
            return refused(format!(
                "volume \"{}\" has {SNAPSHOTS_MAX} snapshots already: delete one first",
                entry.spec.name
            ));
        }
        Rc::clone(&entry.resize_lock)
    };
    let _size = lock.lock().await;
    prepare(inner).await?;
    let _hold = Hold::begin(inner, vec![volume]).await?;
    let (snapshot, record) = {
        let mut state = inner.state.borrow_mut();
        if has_loss(&state, &before) {
            return refused("a device of the pool has lost writes meanwhile: try again".to_owned());
        }
        let entry = volume_of(&state, volume)?;
        let spec = VolumeSpec { name, provisioning: Provisioning::Thin, ..entry.spec.clone() };
        let snapshot = Some(SnapshotOf { volume, created_secs });
        let lineage = Lineage { family: entry.lineage.family, snapshot };
        let snapshot = state.next_volume;
        state.next_volume = snapshot.next();
        (snapshot, Record::Volume { volume: snapshot, spec, lineage, from: Some(volume) })
    };
    commit_change(inner, volume, record).await?;
    Ok(snapshot)
}

/// Makes a record of a snapshot or a roll back of `volume` durable. If it fails, the record may still be durable; the
/// volume is then in doubt.
async fn commit_change<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    record: Record,
) -> Result<(), PoolError> {
    if let Some(failed) = &inner.state.borrow().failed {
        return Err(failed.clone());
    }
    let result = journal::commit(inner, CommitScope::AllMaps, vec![record]).await;
    if result.is_err()
        && let Some(volume) = inner.state.borrow_mut().volumes.get_mut(&volume)
    {
        volume.is_in_doubt = true;
    }
    result
}

/// Returns a volume to the content and size of one of its snapshots, durably.
pub(crate) async fn roll_back<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    snapshot: VolumeId,
) -> Result<(), PoolError> {
    let _guard = inner.volumes_lock.lock().await;
    let (volume, lock) = {
        let state = inner.state.borrow();
        let volume = snapshot_of(&state, snapshot)?;
        (volume, Rc::clone(&volume_of(&state, volume)?.resize_lock))
    };
    let _size = lock.lock().await;
    prepare(inner).await?;
    let hold = Hold::begin(inner, vec![volume, snapshot]).await?;
    let record = {
        let state = inner.state.borrow();
        let (entry, source) = (volume_of(&state, volume)?, &state.volumes[&snapshot]);
        let spec = VolumeSpec { size_bytes: source.spec.size_bytes, ..entry.spec.clone() };
        Record::Volume { volume, spec, lineage: entry.lineage, from: Some(snapshot) }
    };
    commit_change(inner, volume, record).await?;
    drop(hold);
    release_retired(inner).await;
    Ok(())
}

/// Creates a volume with the content of a snapshot, durably. It is thin and shares all slices.
pub(crate) async fn clone<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    snapshot: VolumeId,
    name: String,
) -> Result<VolumeId, PoolError> {
    let _guard = inner.volumes_lock.lock().await;
    let origin = {
        let state = inner.state.borrow();
        check_new_name(&state, &name)?;
        snapshot_of(&state, snapshot)?
    };
    prepare(inner).await?;
    let _hold = Hold::begin(inner, vec![snapshot]).await?;
    let (volume, record) = {
        let mut state = inner.state.borrow_mut();
        let policy = volume_of(&state, origin)?.spec.policy;
        let source = &state.volumes[&snapshot];
        let (size_bytes, family) = (source.spec.size_bytes, source.lineage.family);
        let spec = VolumeSpec { name, size_bytes, policy, provisioning: Provisioning::Thin };
        let volume = state.next_volume;
        state.next_volume = volume.next();
        let lineage = Lineage { family, snapshot: None };
        (volume, Record::Volume { volume, spec, lineage, from: Some(snapshot) })
    };
    journal::commit(inner, CommitScope::AllMaps, vec![record]).await?;
    Ok(volume)
}

/// Deletes a snapshot, durably, and frees the slots that only it refers to.
pub(crate) async fn delete<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, snapshot: VolumeId) -> Result<(), PoolError> {
    let _guard = inner.volumes_lock.lock().await;
    snapshot_of(&inner.state.borrow(), snapshot)?;
    journal::commit(inner, CommitScope::AllMaps, vec![Record::VolumeRemoved { volume: snapshot }]).await?;
    release_retired(inner).await;
    Ok(())
}

/// The snapshots of a volume, the oldest first.
pub(crate) fn reports<S: Seam, D: Disk<S>>(state: &State<S, D>, volume: VolumeId) -> Vec<SnapshotReport> {
    let report = |snapshot: VolumeId| {
        let entry = &state.volumes[&snapshot];
        let is_own = |(slice, slot)| state.is_private(SliceAddress { volume: snapshot, slice }, slot);
        SnapshotReport {
            snapshot,
            volume,
            name: entry.spec.name.clone(),
            size_bytes: entry.spec.size_bytes,
            created_secs: entry.lineage.snapshot.map_or(0, |of| of.created_secs),
            allocated: entry.map.allocated(),
            own_slices: entry.map.allocated_from(SliceNo(0)).filter(|slice| is_own(*slice)).count() as u32,
        }
    };
    snapshots_of(state, volume).map(report).collect()
}

/// The snapshots of a volume, the oldest first.
pub(crate) fn snapshots_of<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    volume: VolumeId,
) -> impl Iterator<Item = VolumeId> {
    let family = state.volumes.get(&volume).map_or(volume, |entry| entry.lineage.family);
    let is_of = move |id: &&VolumeId| state.volumes[id].lineage.snapshot.is_some_and(|of| of.volume == volume);
    state.members(family).iter().filter(is_of).copied()
}

/// Refuses a volume's name that is not valid or not new, and one volume too many.
pub(crate) fn check_new_name<S: Seam, D: Disk<S>>(state: &State<S, D>, name: &str) -> Result<(), PoolError> {
    check_name_length(name)?;
    let mut volumes = state.volumes.values().filter(|volume| volume.lineage.snapshot.is_none());
    if volumes.any(|volume| volume.spec.name == name) {
        return refused(format!("the pool has a volume \"{name}\" already"));
    }
    Ok(())
}

/// Refuses another volume or snapshot beyond the maximum.
pub(crate) fn check_volume_count<S: Seam, D: Disk<S>>(state: &State<S, D>) -> Result<(), PoolError> {
    let has_derived = state.volumes.iter().any(|(id, volume)| volume.lineage != Lineage::of(*id));
    let max = if has_derived { VOLUMES_AND_SNAPSHOTS_MAX } else { VOLUMES_MAX };
    if state.volumes.len() >= max {
        return refused(format!("the pool has {max} volumes and snapshots already"));
    }
    Ok(())
}

/// Fails if checkpoints have no room for more copies of shared slices. The estimate grows until the next checkpoint, so
/// that one is made first.
pub(crate) async fn make_room_for_copies<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> DiskResult<()> {
    if has_room(&inner.state.borrow(), 75) {
        return Ok(());
    }
    journal::checkpoint(inner).await.map_err(PoolError::into_disk_error)?;
    if has_room(&inner.state.borrow(), 75) { Ok(()) } else { Err(DiskError::NoSpace) }
}

/// True if the records of all maps take at most this part of a checkpoint area, also after the changes since the last
/// checkpoint. A change inside of a run of slices makes three records of one.
fn has_room<S: Seam, D: Disk<S>>(state: &State<S, D>, percent: u64) -> bool {
    let max = state.superblock.map_records_max() * percent / 100;
    let changes = state.journal.journal_records - state.journal.journal_records_before;
    // Most often the first bound suffices, which no volume needs to be asked for.
    state.journal.checkpoint_records + 3 * changes <= max
        || state.volumes.values().map(|volume| u64::from(volume.map.allocated())).sum::<u64>() <= max
}

/// Prepares the pool for another derived volume: its superblocks announce them, and its metadata has room.
async fn prepare<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<(), PoolError> {
    if inner.state.borrow().volumes.len() >= VOLUMES_AND_SNAPSHOTS_MAX {
        return refused(format!("the pool has {VOLUMES_AND_SNAPSHOTS_MAX} volumes and snapshots already"));
    }
    if !has_room(&inner.state.borrow(), 50) {
        // The estimate grows until the next checkpoint.
        journal::checkpoint(inner).await?;
        if !has_room(&inner.state.borrow(), 50) {
            return refused("the pool's metadata has no room for more shared slices: delete snapshots".to_owned());
        }
    }
    {
        let mut state = inner.state.borrow_mut();
        if state.superblock.features & FEATURE_SNAPSHOTS == 0 {
            state.superblock.features |= FEATURE_SNAPSHOTS;
            state.superblock.generation = state.superblock.generation.next();
        }
    }
    membership::persist(inner).await
}

fn check_name_length(name: &str) -> Result<(), PoolError> {
    if name.is_empty() || name.len() > VOLUME_NAME_BYTES {
        return refused(format!("the name of a volume or snapshot has 1 to {VOLUME_NAME_BYTES} bytes"));
    }
    Ok(())
}

/// A volume that is no snapshot.
fn volume_of<S: Seam, D: Disk<S>>(state: &State<S, D>, volume: VolumeId) -> Result<&crate::state::Volume, PoolError> {
    state.require_imported(volume)?;
    let entry = state.volumes.get(&volume).filter(|entry| entry.lineage.snapshot.is_none());
    entry.ok_or(PoolError::NoVolume(volume))
}

/// Write stamps of the groups, and the number of changes that were taken back.
pub(crate) type LossMarks = (Vec<u64>, u64);

/// The marks now.
pub(crate) fn loss_marks<S: Seam, D: Disk<S>>(state: &State<S, D>) -> LossMarks {
    let stamps = (0..state.groups.len() as u16).map(|group| state.write_stamp(GroupNo(group)));
    (stamps.collect(), state.counts.reverts)
}

/// True if a group may have lost writes since. Groups may have been added and removed.
fn has_loss<S: Seam, D: Disk<S>>(state: &State<S, D>, (stamps, reverts): &LossMarks) -> bool {
    let has_lost = |(group, stamp): (GroupNo, &u64)| {
        state.groups[group.index()].disk.is_some() && state.write_stamp(group) != *stamp
    };
    (0..).map(GroupNo).zip(stamps).any(has_lost) || state.counts.reverts != *reverts
}

/// The volume of a snapshot.
fn snapshot_of<S: Seam, D: Disk<S>>(state: &State<S, D>, snapshot: VolumeId) -> Result<VolumeId, PoolError> {
    let entry = state.volumes.get(&snapshot).and_then(|entry| entry.lineage.snapshot);
    entry.map(|of| of.volume).ok_or(PoolError::NoSnapshot(snapshot))
}

fn refused<T>(text: String) -> Result<T, PoolError> {
    Err(PoolError::Refused(text))
}
