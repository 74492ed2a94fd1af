//! Devices that join and leave while the store serves.
//!
//! A device that will carry the log is resynced first. From a point between two batches on it gets every batch, and the
//! earlier content of the log is copied to it (`resync.rs`). No acknowledgement relies on it before it is a member.
//!
//! The membership changes with one write of the superblocks between two batches (`change.rs`). A crash finds the old
//! members or the new ones, never a mixture. Until then the device's own superblock has the state *resyncing*: after
//! a crash the device is recognised by it and ignored.

mod change;
pub mod plan;
mod resync;
pub mod segment_verifier;

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::device::Device;
use crate::error::StoreError;
use crate::format::superblock::{MemberState, Role};
use crate::log_members::{
    LogSuccessor, find_log_successor, largest_successor, log_copies, log_placement, needs_take_over,
};
use crate::member_disk::MemberDisk;
use crate::membership::remove_members;
use crate::number::MemberNo;
use crate::pages::relocate::{has_pages, relocate};
use crate::pages::wait_loaded_if_begun;
use crate::state::Inner;
use crate::state::jobs::{JobKind, RunningJob};
use change::MembershipChange;

pub use resync::{copy_buffer_count, keep_buffers};

/// Adds a device: to the log if that has fewer than two copies, otherwise for only pages. Returns its number.
pub async fn add<S: Seam>(inner: &Rc<Inner<S>>, disk: MemberDisk<S>, force: bool) -> Result<MemberNo, StoreError> {
    let running = RunningJob::begin(inner, JobKind::Add)?;
    let role = plan::role_of_added(inner);
    let device = change::prepare_device(inner, disk, role, force).await?;
    running.set_member(device.member);
    let change = MembershipChange { joining: Some((device, role)), leaving: None, copies_min: 0 };
    change::apply_change(&running, change).await
}

/// Replaces a member, in service or not, by a new device. Returns the new device's number.
///
/// The pages of a member in service are kept: the new device becomes a member beside the old one, the pages move, and
/// the old one leaves. A crash in between finds both as members.
pub async fn replace<S: Seam>(
    inner: &Rc<Inner<S>>,
    old: MemberNo,
    disk: MemberDisk<S>,
    force: bool,
) -> Result<MemberNo, StoreError> {
    let running = RunningJob::begin(inner, JobKind::Replace)?;
    let entry = change::member_entry(inner, old)?;
    let role = plan::role_of_replacement(inner, old, &entry);
    let copies_min = {
        let state = inner.state.borrow();
        log_copies(&state, None).min(log_placement(&state).copies())
    };
    let device = change::prepare_device(inner, disk, role, force).await?;
    running.set_member(device.member);
    wait_loaded_if_begun(inner).await;
    if !has_pages(inner, old) {
        let change = MembershipChange { joining: Some((device, role)), leaving: Some(old), copies_min };
        return change::apply_change(&running, change).await;
    }
    let joins = MembershipChange { joining: Some((device, role)), leaving: None, copies_min: 0 };
    let new = change::apply_change(&running, joins).await?;
    let moved = relocate(&running, old, Some(new), true).await;
    // The old device may have failed meanwhile.
    let is_done = moved.is_ok() || !inner.state.borrow().superblock.serves(old);
    let error = match moved {
        Err(error) if !is_done => error,
        // Its pages stay closed until it has left.
        _vacated_guard => {
            return change::apply_change(&running, MembershipChange { joining: None, leaving: Some(old), copies_min })
                .await
                .map(|_| new);
        }
    };
    if undo_replacement(&running, new, copies_min, &error).await? {
        return Err(error);
    }
    Err(StoreError::Refused(format!("{error}; both devices stay in service")))
}

/// Removes the new device of a replacement that has failed or was cancelled, after its pages were returned. Returns
/// false if it stays: when the log would lose a copy, or the store is closing, which should not take long.
async fn undo_replacement<S: Seam>(
    running: &RunningJob<S>,
    new: MemberNo,
    copies_min: usize,
    error: &StoreError,
) -> Result<bool, StoreError> {
    let inner = &running.inner;
    let is_cancelled = *error == StoreError::Cancelled && !inner.state.borrow().jobs.is_closing();
    let returned = match is_cancelled && has_pages(inner, new) {
        true => Some(relocate(running, new, None, false).await),
        false => None,
    };
    let may_leave = is_cancelled && !matches!(returned, Some(Err(_)));
    if inner.state.borrow().superblock.serves(new) && !may_leave {
        return Ok(false);
    }
    change::apply_change(running, MembershipChange { joining: None, leaving: Some(new), copies_min }).await?;
    Ok(true)
}

/// Removes a member permanently. If it carries the log, a member that holds only pages takes over the log first.
/// Without such a member the log keeps a single copy, if `allow_single_copy` permits it. Its pages are kept as far as
/// the remaining members have room; if another one takes over the log, the pages of both are dropped.
pub async fn remove<S: Seam>(
    inner: &Rc<Inner<S>>,
    member: MemberNo,
    allow_single_copy: bool,
) -> Result<(), StoreError> {
    let running = RunningJob::begin(inner, JobKind::Remove)?;
    change::member_entry(inner, member)?;
    running.set_member(member);
    wait_loaded_if_begun(inner).await;
    let mut joining = require_log_successor(inner, member, allow_single_copy)?;
    let mut _vacated_guard = None;
    if joining.is_none() && has_pages(inner, member) {
        _vacated_guard = Some(relocate(&running, member, None, true).await?);
        // Another member may have failed meanwhile.
        joining = require_log_successor(inner, member, allow_single_copy)?;
    }
    let copies_min = {
        let state = inner.state.borrow();
        let copies_wanted = if allow_single_copy { 1 } else { log_placement(&state).copies() };
        log_copies(&state, None).min(copies_wanted)
    };
    change::apply_change(&running, MembershipChange { joining, leaving: Some(member), copies_min }).await.map(drop)
}

/// The member that takes over the log when `member` leaves, with its new role; `None` if none has to. Fails if the log
/// would have too few copies.
fn require_log_successor<S: Seam>(
    inner: &Inner<S>,
    member: MemberNo,
    allow_single_copy: bool,
) -> Result<Option<(Device<S>, Role)>, StoreError> {
    match find_log_successor(inner, member) {
        LogSuccessor::NotNeeded => Ok(None),
        LogSuccessor::Device(device) => Ok(Some((device, Role::Log))),
        LogSuccessor::Missing if log_copies(&inner.state.borrow(), Some(member)) == 0 => {
            let reason = "it is the only device with the dirty data: add another device first";
            Err(StoreError::Refused(reason.to_owned()))
        }
        LogSuccessor::Missing if !allow_single_copy => {
            let reason = "the dirty data would have one copy only: add another device first, or replace this one";
            Err(StoreError::Refused(reason.to_owned()))
        }
        LogSuccessor::Missing => Ok(None),
    }
}

/// Starts a take-over if the log has a single copy and a member holds only pages: that member will also carry the log.
pub fn start_take_over<S: Seam>(inner: &Inner<S>) {
    let may_start = {
        let state = inner.state.borrow();
        state.failure.is_none() && state.jobs.may_take_over() && needs_take_over(&state)
    };
    if let Some(inner) = inner.self_ref.upgrade().filter(|_| may_start) {
        inner.seam.clone().spawn(take_over(inner));
    }
}

/// Makes a member that holds only pages carry the log, too.
async fn take_over<S: Seam>(inner: Rc<Inner<S>>) {
    // If another job is running, its end starts the take-over again.
    let Ok(running) = RunningJob::begin(&inner, JobKind::TakeOver) else { return };
    let Some(device) = largest_successor(&inner, None).filter(|_| inner.log_devices().len() == 1) else { return };
    let member = device.member;
    running.set_member(member);
    let result = change::apply_change(
        &running,
        MembershipChange { joining: Some((device, Role::Log)), leaving: None, copies_min: 0 },
    )
    .await;
    if let Err(StoreError::Disk { error, .. }) = result {
        // The device rejects writes. Its removal starts the take-over by the next device.
        let _ = remove_members(&inner, vec![(member, error)]).await;
    }
}

/// True when a member in service has this disk's identity.
fn is_member<S: Seam>(inner: &Inner<S>, disk: &MemberDisk<S>) -> bool {
    let state = inner.state.borrow();
    let serves = |device: &Device<S>| state.superblock.members[device.member.index()].state == MemberState::InService;
    state.devices.iter().any(|device| serves(device) && device.disk.identity() == disk.identity())
}
