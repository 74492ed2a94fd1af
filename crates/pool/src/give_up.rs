//! Gives up a group whose device does not come back.
//!
//! The group is no member any more: it counts for no majority, and its device is refused if it appears again. Its
//! slices stay mapped to it, so requests to them fail: a range must not read as zeroes because a device is broken. A
//! discard of a whole slice frees it, in a thick volume as well; it then reads as zeroes and takes data again. The
//! group leaves the pool when no slice is mapped to it.

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::error::PoolError;
use crate::format::superblock::MemberState;
use crate::import;
use crate::journal;
use crate::membership;
use crate::number::GroupNo;
use crate::state::{Group, Inner, State};

/// Gives up a group that is missing or gone, durably.
pub(crate) async fn give_up<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo) -> Result<(), PoolError> {
    let _guard = inner.membership_lock.lock().await;
    let is_absent_import = {
        let state = inner.state.borrow();
        state.current_import().is_some_and(|(importing, _)| importing == group) && state.is_absent(group)
    };
    if is_absent_import {
        return import::undo(inner).await;
    }
    {
        let mut state = inner.state.borrow_mut();
        let member = state.superblock.members.get(group.index()).ok_or(PoolError::NoGroup(group))?;
        match member.state {
            MemberState::Removed => return Err(PoolError::NoGroup(group)),
            MemberState::Lost => return Ok(()),
            MemberState::InService | MemberState::Draining | MemberState::Importing | MemberState::Marking => {}
        }
        let name = state.group_name(group);
        if !state.is_absent(group) {
            let text = match member.state.is_import() {
                true => format!("the import of {name} ends at the next opening of the pool"),
                false => format!("{name} is present: drain it instead, which loses nothing"),
            };
            return Err(PoolError::Refused(text));
        }
        if state.copies().iter().all(|(copy, _)| *copy == group) {
            let text = format!("{name} has the last metadata copy that is in service");
            return Err(PoolError::Refused(text));
        }
        if state.journal.joining == Some(group) {
            state.journal.joining = None;
        }
        let entry = &mut state.superblock.members[group.index()];
        (entry.state, entry.carries_metadata, entry.has_area) = (MemberState::Lost, false, false);
        state.superblock.generation = state.superblock.generation.next();
        let generation = state.superblock.generation;
        // The epochs of the device stay part of the pool's, and its unflushed writes are lost.
        state.extra_epochs += state.groups[group.index()].disk.as_ref().map_or(0, Disk::connection_epoch) + 1;
        let lost = &mut state.groups[group.index()];
        (lost.disk, lost.is_gone, lost.lost_since) = (None, false, generation);
    }
    membership::persist(inner).await?;
    let is_left = remove_unused(&mut inner.state.borrow_mut());
    if is_left {
        membership::persist(inner).await?;
    }
    journal::repair_in_background(inner, false);
    Ok(())
}

/// Removes lost groups to which no slice is mapped, in memory. Returns whether there were any.
pub(crate) fn remove_unused<S: Seam, D: Disk<S>>(state: &mut State<S, D>) -> bool {
    let mut has_removed = false;
    for (member, group) in state.superblock.members.iter_mut().zip(&mut state.groups) {
        if member.state == MemberState::Lost && group.slots.are_unused() {
            member.state = MemberState::Removed;
            let (flush_failures, lost_since) = (group.flush_failures, group.lost_since);
            *group = Group { flush_failures, lost_since, ..Group::new(None, 0) };
            has_removed = true;
        }
    }
    if has_removed {
        state.superblock.generation = state.superblock.generation.next();
    }
    has_removed
}
