//! Groups come and go: a new disk joins a tier, a group's slices move away before it leaves.

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::apply::release_retired;
use crate::create::{failed, new_uuid, require_empty, slots_of};
use crate::device::{read_one, write_durably};
use crate::error::PoolError;
use crate::format::layout::{AREAS_MAX, COPIES, data_at};
use crate::format::superblock::{MEMBERS_MAX, MemberEntry, MemberState, SUPERBLOCK_OFFSETS, Superblock};
use crate::journal;
use crate::late;
use crate::membership;
use crate::mover::{MoveError, MoveOutcome, Pace, count_failed, move_slice};
use crate::number::{GroupNo, PoolGeneration, SliceAddress, SlotAddress, SlotNo, TierNo};
use crate::policy::{TierPolicy, place};
use crate::state::{CommitScope, Group, Inner, State};

/// Makes a disk a group of a tier, durably.
pub(crate) async fn add_group<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    tier: TierNo,
    disk: D,
    force: bool,
) -> Result<GroupNo, PoolError> {
    let _guard = inner.membership_lock.lock().await;
    if force {
        if inner.state.borrow().current_import().is_some() {
            let text = "the import of a device has not ended, and it may be this one: end that first";
            return Err(PoolError::Refused(text.to_owned()));
        }
        require_no_member(inner, &disk).await?;
    } else {
        require_empty(&inner.buffers, &disk).await?;
    }
    let (group, entry, superblock) = {
        let state = inner.state.borrow();
        let superblock = &state.superblock;
        let refused = |reason: String| Err(PoolError::Refused(reason));
        if usize::from(tier.0) >= superblock.tiers.len() {
            return refused(format!("the pool has no tier {tier}"));
        }
        if superblock.members.len() >= MEMBERS_MAX {
            return refused(format!("the pool has had {MEMBERS_MAX} groups already"));
        }
        let logical_block = disk.geometry().logical_block;
        if logical_block > superblock.logical_block {
            return refused(format!(
                "{} has blocks of {logical_block} bytes, and the pool's volumes have {}",
                disk.identity(),
                superblock.logical_block
            ));
        }
        let in_service = superblock.members.iter().filter(|member| member.state == MemberState::InService);
        let has_area = in_service.filter(|member| member.has_area).count() < AREAS_MAX;
        let data_at = data_at(superblock.journal_blocks, superblock.area_blocks, has_area);
        let slots = slots_of(&disk, data_at, superblock.slice_bytes)?;
        let in_use = superblock.members.iter().filter(|member| member.state != MemberState::Removed);
        let total = in_use.map(|member| u64::from(member.slots)).sum::<u64>() + u64::from(slots);
        if total > u64::from(superblock.slots_max) {
            return refused(format!(
                "the pool would have {total} slots, and its metadata has room for {}",
                superblock.slots_max
            ));
        }
        let entry = MemberEntry {
            uuid: new_uuid(&inner.seam),
            slots,
            tier,
            state: MemberState::InService,
            carries_metadata: false,
            has_area,
            data_at,
            name: disk.identity(),
            missed_timeline: false,
            may_hold: 0,
        };
        (GroupNo(superblock.members.len() as u16), entry, superblock.clone())
    };
    // The new group's superblocks come first: a member that another superblock names must be recognisable.
    let mut own = superblock;
    own.members.push(entry.clone());
    own.group = group;
    // Older than every superblock of the pool: the disk is no member before one of them names it.
    (own.generation, own.revision) = (PoolGeneration(0), 0);
    for at in SUPERBLOCK_OFFSETS {
        let runs = [(at, vec![inner.buffers.metadata(&own.encode()).await])];
        write_durably::<S, D>(&disk, &runs).await.map_err(|error| failed(&disk, error))?;
    }
    {
        let mut state = inner.state.borrow_mut();
        assert_eq!(state.superblock.members.len(), group.index(), "groups are added one at a time");
        state.superblock.generation = state.superblock.generation.next();
        let member_since = state.superblock.generation;
        state.groups.push(Group { member_since, ..Group::new(Some(disk), entry.slots) });
        state.superblock.members.push(entry);
    }
    membership::persist(inner).await?;
    journal::repair_in_background(inner, false);
    Ok(group)
}

/// Refuses a member of this pool: it was absent, and its slices return when the pool opens with it.
async fn require_no_member<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, disk: &D) -> Result<(), PoolError> {
    for at in SUPERBLOCK_OFFSETS {
        let raw = read_one(&inner.buffers, disk, at).await.map_err(|error| failed(disk, error))?;
        let Ok(found) = Superblock::decode(&raw) else { continue };
        let state = inner.state.borrow();
        let own = &found.members[found.group.index()];
        let is_own = |member: &MemberEntry| member.uuid == own.uuid && member.state.is_member();
        if found.pool == state.superblock.pool && state.superblock.members.iter().any(is_own) {
            return Err(PoolError::Refused(format!(
                "{} is group {} of this pool and holds its slices: restart the daemon to use it again",
                disk.identity(),
                found.group
            )));
        }
    }
    Ok(())
}

/// Progress of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Slices moved away.
    pub moved: u64,
    /// Slices that could not be moved now; they stay.
    pub left: u64,
}

/// Moves all slices of a draining group to others, and takes it out of the pool when nothing is left. An interrupted
/// drain continues where it was: the group takes no new slices, after a restart neither. It ends early when its pace
/// cancels a move, or when [`cancel_drain`] returns the group to service.
pub(crate) async fn continue_drain<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    pace: Pace,
) -> Result<DrainReport, PoolError> {
    let mut report = DrainReport::default();
    let mut from = SlotNo(0);
    while is_draining(inner, group) {
        let found = inner.state.borrow().groups[group.index()].slots.slice_from(from);
        let Some(slot) = found else { break };
        from = slot.next();
        let slice = inner.state.borrow().references(SlotAddress { group, slot }).first().copied();
        // A slot without a reference is about to be freed.
        let Some(slice) = slice else { continue };
        match move_away(inner, slice, group, &pace).await {
            Ok(()) => report.moved += 1,
            Err(MoveError::Pool(error)) => return Err(error),
            Err(error) => {
                count_failed(&mut inner.state.borrow_mut().counts, &error);
                report.left += 1;
                if error == MoveError::Cancelled {
                    return Ok(report);
                }
            }
        }
    }
    release_retired(inner).await;
    // A slot that a request still uses, or whose free record is not durable, keeps the group.
    journal::commit(inner, CommitScope::AllMaps, Vec::new()).await?;
    let _guard = inner.membership_lock.lock().await;
    if !is_draining(inner, group) || !is_empty(inner, group) {
        report.left = report.left.max(1);
        return Ok(report);
    }
    remove(inner, group).await?;
    Ok(report)
}

/// Lets a draining group take slices again.
pub(crate) async fn cancel_drain<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
) -> Result<(), PoolError> {
    let _guard = inner.membership_lock.lock().await;
    set_state(inner, group, MemberState::InService).await
}

/// Marks a group as draining, durably: it takes no slices. Refuses a group whose slices have no place on the others.
pub(crate) async fn begin_drain<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo) -> Result<(), PoolError> {
    let _guard = inner.membership_lock.lock().await;
    check_room_for_drain(&inner.state.borrow(), group)?;
    set_state(inner, group, MemberState::Draining).await
}

fn is_draining<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo) -> bool {
    inner.state.borrow().superblock.members[group.index()].state == MemberState::Draining
}

/// A drain that has begun is not refused.
fn check_room_for_drain<S: Seam, D: Disk<S>>(state: &State<S, D>, group: GroupNo) -> Result<(), PoolError> {
    let member = state.superblock.members.get(group.index()).ok_or(PoolError::NoGroup(group))?;
    if member.state != MemberState::InService {
        return Ok(());
    }
    let others: Vec<_> = state.rooms().into_iter().filter(|room| room.group != group).collect();
    if others.is_empty() {
        return Err(PoolError::LastGroup(group));
    }
    // Slices of other draining groups need a place as well.
    let members = state.superblock.members.iter().zip(&state.groups).enumerate();
    let leaving =
        members.filter(|(number, (member, _))| *number == group.index() || member.state == MemberState::Draining);
    let used: u32 = leaving.map(|(_, (_, group))| group.slots.count() - group.slots.free_count()).sum();
    let free = others.iter().map(|room| u64::from(room.free)).sum::<u64>();
    if u64::from(used) > free {
        let (needed_bytes, free_bytes) = (u64::from(used) * state.slice_bytes(), free * state.slice_bytes());
        return Err(PoolError::NoRoomToDrain { group, needed_bytes, free_bytes });
    }
    Ok(())
}

fn is_empty<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo) -> bool {
    let state = inner.state.borrow();
    state.groups[group.index()].slots.are_unused()
}

/// Moves one slice to the group that its volume's policy chooses.
async fn move_away<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    from: GroupNo,
    pace: &Pace,
) -> Result<(), MoveError> {
    let target = {
        let state = inner.state.borrow();
        let policy = state.volumes.get(&slice.volume).map_or(TierPolicy::Auto, |volume| volume.spec.policy);
        let policy = if policy == TierPolicy::Auto {
            TierPolicy::Tier(state.superblock.members[from.index()].tier)
        } else {
            policy
        };
        place(policy, state.superblock.tiers.len() as u8, &state.rooms(), 0)
    };
    match move_slice(inner, slice, target.ok_or(MoveError::Pool(PoolError::Full))?, Rc::clone(pace)).await? {
        MoveOutcome::Moved | MoveOutcome::AlreadyThere | MoveOutcome::Unallocated => Ok(()),
    }
}

/// Changes a member's state, durably.
async fn set_state<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    to: MemberState,
) -> Result<(), PoolError> {
    {
        let mut state = inner.state.borrow_mut();
        let present = state.groups.get(group.index()).is_some_and(|entry| entry.disk.is_some());
        let is_changeable = |state: MemberState| state != MemberState::Removed && !state.is_import();
        if !present || !is_changeable(state.superblock.members[group.index()].state) {
            return Err(PoolError::NoGroup(group));
        }
        let entry = &mut state.superblock.members[group.index()];
        if std::mem::replace(&mut entry.state, to) != to {
            state.superblock.generation = state.superblock.generation.next();
        }
    }
    membership::persist(inner).await
}

/// Takes an empty group out of the pool; its metadata copy moves to another group first, if it has one.
async fn remove<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo) -> Result<(), PoolError> {
    let copies = inner.state.borrow().copies();
    let is_copy = copies.iter().any(|(copy, _)| *copy == group);
    if is_copy {
        journal::add_copy(inner, copies.len() + 1, true).await?;
    }
    {
        let mut state = inner.state.borrow_mut();
        let others = state.copies().iter().filter(|(copy, _)| *copy != group).count();
        let groups = state.superblock.members.iter().filter(|member| member.state.is_member()).count();
        if is_copy && others < COPIES.min(groups - 1).max(1) {
            return Err(PoolError::Refused(format!(
                "group {group} carries a metadata copy, and no other group has room for it: add a group, then drain \
                 again"
            )));
        }
        let entry = &mut state.superblock.members[group.index()];
        (entry.state, entry.carries_metadata, entry.has_area) = (MemberState::Removed, false, false);
        state.superblock.generation = state.superblock.generation.next();
    }
    // The removed group gets the new superblocks too, so that it is recognised as removed.
    membership::persist(inner).await?;
    late::wait_for_end(inner, group).await;
    let mut state = inner.state.borrow_mut();
    let epoch = state.write_stamp(group);
    state.extra_epochs += epoch;
    state.groups[group.index()] = Group::new(None, 0);
    Ok(())
}
