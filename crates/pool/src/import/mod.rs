//! Makes a volume of a disk full of data, in place: the disk becomes a group, and its slices are mapped where they lie.
//!
//! A group has superblocks at its start, where the disk has data. So the start of the disk, up to slot 0, is first
//! copied to slots of other groups, and so is a last partial slice. The order of the durable steps:
//!
//! 1. The superblocks of the other groups name the new group as [`MemberState::Importing`], with the volume's number.
//! 2. The volume's record, the copies and the map are written. The disk is only read and flushed.
//! 3. The superblocks of the other groups say [`MemberState::Marking`]: from here on the volume is imported.
//! 4. The disk gets its superblocks.
//! 5. All superblocks say [`MemberState::InService`].
//!
//! A crash before step 3 leaves the disk untouched, and the next opening removes the volume ([`roll_back`]). A crash
//! after it may leave a torn superblock and nothing else on the disk. The opening then recognises the disk by its size
//! and by the content that was copied, and finishes the import ([`resume`]). Until step 5 the volume refuses requests.

mod layout;

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::apply::release_retired;
use crate::create::{failed, new_uuid};
use crate::device::{read_one, write_durably};
use crate::error::PoolError;
use crate::format::record::{Lineage, Record};
use crate::format::superblock::{
    MEMBERS_MAX, MemberEntry, MemberState, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
};
use crate::journal;
use crate::membership;
use crate::number::{GroupNo, SliceAddress, SliceNo, SlotAddress, SlotNo, TierNo, VolumeId};
use crate::policy::VolumeSpec;
use crate::resize;
use crate::sabotage::Sabotage;
use crate::signatures::find_signature;
use crate::snapshots;
use crate::state::{CommitScope, Group, Inner};
use layout::{ImportLayout, copy_unmapped, matches_copies};

/// Slices that one commit maps.
const BATCH_SLICES: u32 = 8192;

/// An imported disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportReport {
    /// The volume.
    pub volume: VolumeId,
    /// The group.
    pub group: GroupNo,
    /// Slices that stay in place.
    pub slices_in_place: u64,
    /// Slices of the disk's start and end that were copied to other groups.
    pub slices_copied: u64,
}

/// Makes a disk with data a group of a tier and a thin volume of that name, durably and whole or not at all. Refuses a
/// disk that belongs to another storage stack unless `force` is set.
pub(crate) async fn import<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    tier: TierNo,
    disk: D,
    name: String,
    force: bool,
) -> Result<ImportReport, PoolError> {
    let _members = inner.membership_lock.lock().await;
    let _volumes = inner.volumes_lock.lock().await;
    require_no_superblock(inner, &disk).await?;
    if !force {
        require_no_signature(inner, &disk).await?;
    }
    resize::check_size(inner, disk.geometry().size_bytes)?;
    let layout = begin(inner, tier, &disk, &name)?;
    membership::persist(inner).await?;
    let (group, volume) = inner.state.borrow().current_import().expect("the import has begun");
    if let Err(error) = make_volume(inner, (group, volume), &disk, name, layout).await {
        undo(inner).await?;
        return Err(error);
    }
    set_import_state(inner, group, MemberState::Marking);
    membership::persist(inner).await?;
    finish(inner, group, &disk).await?;
    let slices_in_place = u64::from(layout.slots);
    Ok(ImportReport { volume, group, slices_in_place, slices_copied: layout.copied_slices() })
}

/// Refuses a disk with a superblock of a pool.
async fn require_no_superblock<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, disk: &D) -> Result<(), PoolError> {
    for at in SUPERBLOCK_OFFSETS {
        let raw = read_one(&inner.buffers, disk, at).await.map_err(|error| failed(disk, error))?;
        let content = match Superblock::decode(&raw) {
            Ok(_) | Err(SuperblockError::Invalid(_)) => "it is a group of a pool already".to_owned(),
            Err(SuperblockError::Newer(newer)) => format!("it is a group of a pool that was {newer}"),
            Err(SuperblockError::NotASuperblock) => continue,
        };
        return not_importable(disk, format!("{content}; drain it from that pool first"));
    }
    Ok(())
}

/// Refuses a disk that belongs to another storage stack, such as an inactive array.
async fn require_no_signature<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, disk: &D) -> Result<(), PoolError> {
    match find_signature(&inner.buffers, disk).await.map_err(|error| failed(disk, error))? {
        None => Ok(()),
        Some(name) => not_importable(
            disk,
            format!(
                "it is {name}, and starting that would change the volume. Remove the device from it first, or wipe a \
                 leftover signature with `wipefs`. If the signature belongs to the content, as on a virtual machine's \
                 disk, use --force"
            ),
        ),
    }
}

fn not_importable<S: Seam, D: Disk<S>, T>(disk: &D, reason: String) -> Result<T, PoolError> {
    Err(PoolError::NotImportable { device: disk.identity(), reason })
}

/// Checks the request, and names the group and the volume in memory. Nothing is written.
fn begin<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    tier: TierNo,
    disk: &D,
    name: &str,
) -> Result<ImportLayout, PoolError> {
    let mut guard = inner.state.borrow_mut();
    let state = &mut *guard;
    let superblock = &state.superblock;
    if let Some((group, volume)) = state.current_import() {
        return not_importable(
            disk,
            format!(
                "the import of {} to volume {volume} was interrupted; attach that device and restart the daemon, or \
                 give it up with `hotset pool replace --lost`, by its group number {group}",
                state.group_name(group)
            ),
        );
    }
    if usize::from(tier.0) >= superblock.tiers.len() {
        return Err(PoolError::Refused(format!("the pool has no tier {tier}")));
    }
    if superblock.members.len() >= MEMBERS_MAX {
        return Err(PoolError::Refused(format!("the pool has had {MEMBERS_MAX} groups already")));
    }
    snapshots::check_new_name(state, name)?;
    snapshots::check_volume_count(state)?;
    let geometry = disk.geometry();
    if geometry.logical_block != superblock.logical_block {
        let (found, wanted) = (geometry.logical_block, superblock.logical_block);
        let reason = format!(
            "its logical block is {found} bytes, that of the pool {wanted}; partition tables and file systems \
             depend on it"
        );
        return not_importable(disk, reason);
    }
    let slice_bytes = superblock.slice_bytes;
    let Some(layout) = ImportLayout::of(geometry.size_bytes, slice_bytes) else {
        let min_bytes = 2 * slice_bytes.max(crate::format::layout::DATA_ALIGNMENT);
        return Err(PoolError::TooSmall { device: disk.identity(), size_bytes: geometry.size_bytes, min_bytes });
    };
    let in_use = superblock.members.iter().filter(|member| member.state != MemberState::Removed);
    let total = in_use.map(|member| u64::from(member.slots)).sum::<u64>() + u64::from(layout.slots);
    if total > u64::from(superblock.slots_max) {
        let reason =
            format!("the pool would have {total} slots, and its metadata has room for {}", superblock.slots_max);
        return not_importable(disk, reason);
    }
    let free: u64 = state.rooms().iter().map(|room| u64::from(room.free)).sum();
    if free < layout.copied_slices() {
        let needed = layout.copied_slices();
        let reason = format!("its first and last bytes need {needed} free slices on other devices; {free} are free");
        return not_importable(disk, reason);
    }
    let entry = MemberEntry {
        uuid: new_uuid(&inner.seam),
        slots: layout.slots,
        tier,
        state: MemberState::Importing,
        carries_metadata: false,
        has_area: false,
        data_at: layout.data_at,
        name: disk.identity(),
        missed_timeline: false,
        may_hold: 0,
    };
    state.superblock.import = Some(state.next_volume);
    state.next_volume = state.next_volume.next();
    state.superblock.members.push(entry);
    state.superblock.generation = state.superblock.generation.next();
    state.groups.push(Group::new(Some(disk.clone()), layout.slots));
    Ok(layout)
}

/// Makes the volume of the disk's content, durably. The disk is read and flushed, and nothing is written to it.
async fn make_volume<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    (group, volume): (GroupNo, VolumeId),
    disk: &D,
    name: String,
    layout: ImportLayout,
) -> Result<(), PoolError> {
    let lineage = Lineage::of(volume);
    let record = Record::Volume { volume, spec: VolumeSpec::thin(&name, layout.size_bytes), lineage, from: None };
    journal::commit(inner, CommitScope::AllMaps, vec![record]).await?;
    copy_unmapped(inner, volume, disk, layout).await?;
    let sabotage = inner.state.borrow().sabotage;
    if sabotage.is(Sabotage::MarkBeforeMap) {
        write_superblocks(inner, group, disk).await?;
    }
    if sabotage.is(Sabotage::ImportBeforeMap) {
        set_import_state(inner, group, MemberState::Marking);
        membership::persist(inner).await?;
    }
    let mut first = 0;
    while first < layout.slots {
        let end = (first + BATCH_SLICES).min(layout.slots);
        {
            let mut state = inner.state.borrow_mut();
            let stamp = state.write_stamp(group);
            for slot in first..end {
                let slice = SliceAddress { volume, slice: SliceNo(layout.first_slice() + slot) };
                state.set_slot(slice, Some(SlotAddress { group, slot: SlotNo(slot) }), stamp);
            }
        }
        journal::commit(inner, CommitScope::VolumeWrites(volume), Vec::new()).await?;
        first = end;
    }
    // A device that has lost writes meanwhile took changes of the map along.
    let is_whole = {
        let state = inner.state.borrow();
        let allocated = state.volumes.get(&volume).map_or(0, |volume| u64::from(volume.map.allocated()));
        allocated == u64::from(layout.slots) + layout.copied_slices() && !state.changes.has_changes_of(volume)
    };
    if !is_whole || !matches_copies(inner, volume, disk, layout).await.map_err(|error| failed(disk, error))? {
        return not_importable(disk, "a device lost its connection, or the content changed meanwhile".to_owned());
    }
    Ok(())
}

/// Changes the state of the group of an import, in memory.
fn set_import_state<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo, to: MemberState) {
    let mut state = inner.state.borrow_mut();
    state.superblock.members[group.index()].state = to;
    if !to.is_import() {
        state.superblock.import = None;
    }
    state.superblock.generation = state.superblock.generation.next();
}

/// Writes both superblocks of the disk. The one in the middle of the start goes first: as long as block 0 is whole, so
/// is what other programs recognise the disk by.
async fn write_superblocks<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    group: GroupNo,
    disk: &D,
) -> Result<(), PoolError> {
    let mut own = inner.state.borrow().superblock.clone();
    own.group = group;
    for at in SUPERBLOCK_OFFSETS.into_iter().rev() {
        let runs = [(at, vec![inner.buffers.metadata(&own.encode()).await])];
        write_durably::<S, D>(disk, &runs).await.map_err(|error| failed(disk, error))?;
    }
    Ok(())
}

/// Marks the disk of a complete volume, and takes it into service.
async fn finish<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo, disk: &D) -> Result<(), PoolError> {
    write_superblocks(inner, group, disk).await?;
    set_import_state(inner, group, MemberState::InService);
    {
        let mut state = inner.state.borrow_mut();
        let generation = state.superblock.generation;
        state.groups[group.index()].member_since = generation;
    }
    membership::persist(inner).await
}

/// Undoes an import whose volume is not complete, or which was given up: removes the volume, then the group. Nothing is
/// written to the disk.
pub(crate) async fn undo<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<(), PoolError> {
    let Some((group, volume)) = inner.state.borrow().current_import() else { return Ok(()) };
    let exists = inner.state.borrow().volumes.contains_key(&volume);
    if exists {
        journal::commit(inner, CommitScope::AllMaps, vec![Record::VolumeRemoved { volume }]).await?;
        release_retired(inner).await;
        journal::commit(inner, CommitScope::AllMaps, Vec::new()).await?;
    }
    set_import_state(inner, group, MemberState::Removed);
    {
        let mut state = inner.state.borrow_mut();
        let epoch = state.write_stamp(group);
        state.extra_epochs += epoch;
        let entry = &mut state.groups[group.index()];
        entry.disk = None;
        if entry.slots.are_unused() {
            *entry = Group::new(None, 0);
        }
    }
    membership::persist(inner).await
}

/// Ends an import that was interrupted, at the opening: undoes it if its volume is not complete, and finishes it if the
/// disk is there. `without_superblock` has the disks without a superblock.
pub(crate) async fn recover<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    without_superblock: &[D],
) -> Result<(), PoolError> {
    let Some((group, volume)) = inner.state.borrow().current_import() else { return Ok(()) };
    let (entry, spec, with_superblock) = {
        let state = inner.state.borrow();
        let spec = state.volumes.get(&volume).map(|volume| volume.spec.clone());
        (state.superblock.members[group.index()].clone(), spec, state.groups[group.index()].disk.clone())
    };
    let name = &entry.name;
    // An import that was given up removes its volume first.
    if entry.state == MemberState::Importing || spec.is_none() {
        undo(inner).await?;
        let text = format!(
            "the import of {name} was interrupted and undone; the device is unchanged and not part of the pool"
        );
        inner.state.borrow_mut().notices.push(text);
        return Ok(());
    }
    let spec = spec.expect("an import without its volume was undone");
    let slice_bytes = inner.state.borrow().slice_bytes();
    let layout = ImportLayout::of(spec.size_bytes, slice_bytes);
    let layout = layout.filter(|layout| (layout.slots, layout.data_at) == (entry.slots, entry.data_at));
    let layout = layout.ok_or_else(|| PoolError::Damaged(format!("group {group} is not the disk of {volume}")))?;
    let mut found = with_superblock;
    for disk in without_superblock {
        if found.is_none() && matches_copies(inner, volume, disk, layout).await == Ok(true) {
            found = Some(disk.clone());
        }
    }
    let Some(disk) = found else {
        let text = format!(
            "the import of {name} to volume \"{}\" was interrupted before its superblocks were written: attach the \
             device and restart the daemon; until then the volume is refused",
            spec.name
        );
        inner.state.borrow_mut().notices.push(text);
        return Ok(());
    };
    if let Err(error) = write_superblocks(inner, group, &disk).await {
        let text = format!("the import of {name} cannot be finished, and volume \"{}\" is refused: {error}", spec.name);
        let mut state = inner.state.borrow_mut();
        state.groups[group.index()].disk = None;
        state.notices.push(text);
        return Ok(());
    }
    inner.state.borrow_mut().groups[group.index()].disk = Some(disk.clone());
    finish(inner, group, &disk).await?;
    let text = format!("the import of {} to volume \"{}\" was interrupted and is complete now", name, spec.name);
    inner.state.borrow_mut().notices.push(text);
    Ok(())
}
