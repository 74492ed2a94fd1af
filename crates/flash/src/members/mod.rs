//! Devices that join and leave while the store serves.
//!
//! A device that will carry the log is filled first. From a point between two batches on it gets every batch, and the
//! earlier content of the log is copied to it (`resync.rs`). No acknowledgement relies on it before it is a member.
//!
//! The membership changes with one write of the superblocks between two batches (`change.rs`). A crash finds the old
//! members or the new ones, never a mixture. Until then the device's own superblock has the state *being filled*: after
//! a crash the device is recognised by it and ignored.

mod change;
mod job;
mod resync;
pub mod segment_verifier;

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::device::Device;
use crate::error::StoreError;
use crate::format::superblock::{MemberState, Role};
use crate::membership::remove_members;
use crate::pages::relocate::{has_pages, pages_without_room, relocate};
use crate::store::Inner;
use change::Change;

pub use job::{JobKind, JobReport, Jobs, RunningJob, cancel_jobs, joining_member_failed};
pub use resync::{copy_blocks, keep_buffers};

/// The number of members that carry the log.
const LOG_MEMBERS: usize = 2;

/// Adds a device: to the log if that has fewer than two copies, otherwise for only pages. Returns its number.
pub async fn add<S: Seam>(inner: &Rc<Inner<S>>, disk: S::Disk, force: bool) -> Result<u32, StoreError> {
    let running = RunningJob::begin(inner, JobKind::Add)?;
    let role = if inner.log_devices().len() < LOG_MEMBERS { Role::Log } else { Role::Pages };
    let device = change::prepare(inner, disk, role, force).await?;
    running.set_member(device.member);
    let change = Change { joining: Some((device, role)), leaving: None };
    change::apply(&running, change).await
}

/// Replaces a member, in service or not, by a new device. Returns the new device's number.
///
/// The pages of a member in service are kept: the new device becomes a member beside the old one, the pages move, and
/// the old one leaves. A crash in between finds both as members.
pub async fn replace<S: Seam>(inner: &Rc<Inner<S>>, old: u32, disk: S::Disk, force: bool) -> Result<u32, StoreError> {
    let running = RunningJob::begin(inner, JobKind::Replace)?;
    let entry = change::entry(inner, old)?;
    let others = inner.log_devices().iter().filter(|device| device.member != old).count();
    let joins_log = entry.role == Role::Log && others < LOG_MEMBERS;
    let role = if joins_log { Role::Log } else { Role::Pages };
    let device = change::prepare(inner, disk, role, force).await?;
    running.set_member(device.member);
    if !has_pages(inner, old) {
        return change::apply(&running, Change { joining: Some((device, role)), leaving: Some(old) }).await;
    }
    let new = change::apply(&running, Change { joining: Some((device, role)), leaving: None }).await?;
    let moved = relocate(&running, old, true).await;
    let failed = match &moved {
        Ok(_) if inner.state.borrow().superblock.serves(new) => None,
        Ok(_) => Some(StoreError::Refused(format!("device number {new} failed as pages were copied to it"))),
        Err(error) => Some(error.clone()),
    };
    let Some(error) = failed else {
        return change::apply(&running, Change { joining: None, leaving: Some(old) }).await.map(|_| new);
    };
    drop(moved);
    // The pages return to the old device, except when the store is closing: that should not take long.
    let returned = match has_pages(inner, new) && !inner.state.borrow().jobs.is_closing() {
        true => Some(relocate(&running, new, false).await),
        false => None,
    };
    change::apply(&running, Change { joining: None, leaving: Some(new) }).await?;
    drop(returned);
    Err(error)
}

/// Removes a member permanently. If it carries the log, a member that holds only pages takes over the log first.
/// Without such a member the log keeps a single copy, if `allow_single_copy` permits it.
pub async fn remove<S: Seam>(inner: &Rc<Inner<S>>, member: u32, allow_single_copy: bool) -> Result<(), StoreError> {
    let running = RunningJob::begin(inner, JobKind::Remove)?;
    change::entry(inner, member)?;
    running.set_member(member);
    let mut joining = None;
    let others = inner.log_devices().iter().filter(|device| device.member != member).count();
    if inner.state.borrow().superblock.carries_log(member) && others < LOG_MEMBERS {
        joining = find_successor(inner, member).map(|device| (device, Role::Log));
        if joining.is_none() && others == 0 {
            let reason = "it is the only device with the dirty data: add another device first";
            return Err(StoreError::Refused(reason.to_owned()));
        }
        if joining.is_none() && !allow_single_copy {
            let reason = "the dirty data would have one copy only: add another device first, or replace this one";
            return Err(StoreError::Refused(reason.to_owned()));
        }
    }
    // A successor drops its own pages, and cannot be returned to its former role if the change is cancelled.
    let _vacated = match joining.is_none() && has_pages(inner, member) {
        true => Some(relocate(&running, member, true).await?),
        false => None,
    };
    change::apply(&running, Change { joining, leaving: Some(member) }).await.map(drop)
}

/// Pages that [`remove`] drops, because they find no room on the remaining members.
pub fn pages_lost_without<S: Seam>(inner: &Inner<S>, member: u32) -> u64 {
    let others = inner.log_devices().iter().filter(|device| device.member != member).count();
    let is_succeeded = inner.state.borrow().superblock.carries_log(member) && others < LOG_MEMBERS;
    match find_successor(inner, member).filter(|_| is_succeeded) {
        Some(successor) => {
            let table = &inner.pages.borrow().table;
            table.pages_on(member) + table.pages_on(successor.member)
        }
        None => pages_without_room(inner, member),
    }
}

/// The largest of the members that hold only pages.
fn find_successor<S: Seam>(inner: &Inner<S>, leaving: u32) -> Option<Device<S>> {
    let state = inner.state.borrow();
    let superblock = &state.superblock;
    let pages = state.devices.iter().filter(|device| {
        device.member != leaving && superblock.serves(device.member) && !superblock.carries_log(device.member)
    });
    pages.max_by_key(|device| superblock.members[device.member as usize].segments).cloned()
}

/// Starts a take-over if the log has a single copy and a member holds only pages: that member will also carry the log.
pub fn start_take_over<S: Seam>(inner: &Inner<S>) {
    let needs_take_over = {
        let state = inner.state.borrow();
        let log = (0..).zip(&state.superblock.members).filter(|(member, _)| state.superblock.carries_log(*member));
        log.count() == 1 && state.failed.is_none() && state.jobs.may_take_over()
    };
    if let Some(inner) = inner.me.upgrade().filter(|_| needs_take_over && find_successor(inner, u32::MAX).is_some()) {
        inner.seam.clone().spawn(take_over(inner));
    }
}

/// Makes a member that holds only pages carry the log, too.
async fn take_over<S: Seam>(inner: Rc<Inner<S>>) {
    // If another job is running, its end starts the take-over again.
    let Ok(running) = RunningJob::begin(&inner, JobKind::TakeOver) else { return };
    let Some(device) = find_successor(&inner, u32::MAX).filter(|_| inner.log_devices().len() == 1) else { return };
    let member = device.member;
    running.set_member(member);
    let result = change::apply(&running, Change { joining: Some((device, Role::Log)), leaving: None }).await;
    if let Err(StoreError::Disk { error, .. }) = result {
        // The device rejects writes. Its removal starts the take-over by the next device.
        let _ = remove_members(&inner, vec![(member, error)]).await;
    }
}

/// True when a member in service has this disk's identity.
fn is_member<S: Seam>(inner: &Inner<S>, disk: &S::Disk) -> bool {
    let state = inner.state.borrow();
    let serves = |device: &Device<S>| state.superblock.members[device.member as usize].state == MemberState::InService;
    state.devices.iter().any(|device| serves(device) && device.disk.identity() == disk.identity())
}
