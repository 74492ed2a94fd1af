//! A change of the members: its checks, the preparation of a joining device, and the switch.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, Piece, Seam};

use super::{is_member, resync};
use crate::create::{SEGMENTS_MIN, new_uuid, require_empty, segment_count_of};
use crate::device::{Device, Durability, block_of};
use crate::error::StoreError;
use crate::format::FIRST_SEGMENT_BYTES;
use crate::format::superblock::{MEMBERS_MAX, MemberEntry, MemberState, Role, SUPERBLOCK_OFFSETS};
use crate::log_members::{log_copies, log_placement};
use crate::member_disk::{LogPlacement, MemberDisk};
use crate::membership::persist_membership;
use crate::number::{MemberNo, Sequence};
use crate::state::jobs::RunningJob;
use crate::state::members::{MemberStatus, report};
use crate::state::{Inner, State};
use crate::superblocks::{has_diverged, read_superblock};

/// Blocks per write while the metadata area is erased.
const ERASE_BLOCKS: usize = 64;

/// A joining device with its role, a leaving member, or both.
pub struct MembershipChange<S: Seam> {
    /// The joining device and its role.
    pub joining: Option<(Device<S>, Role)>,
    /// The leaving member.
    pub leaving: Option<MemberNo>,
    /// Minimum number of members in service that carry the log afterwards; otherwise the leaving member stays.
    pub copies_min: usize,
}

/// The entry of a member; fails if the number is vacant.
pub fn member_entry<S: Seam>(inner: &Inner<S>, member: MemberNo) -> Result<MemberEntry, StoreError> {
    let entry = inner.state.borrow().superblock.members.get(member.index()).copied();
    let entry = entry.filter(|entry| entry.state != MemberState::Vacant);
    entry.ok_or_else(|| StoreError::Refused(format!("the flash store has no member number {member}")))
}

/// Checks a new device and marks it as resyncing, under a free number.
pub async fn prepare_device<S: Seam>(
    inner: &Rc<Inner<S>>,
    disk: MemberDisk<S>,
    role: Role,
    force: bool,
) -> Result<Device<S>, StoreError> {
    let mut device: Device<S> = Device::new(MemberNo(0), disk);
    if is_member(inner, &device.disk) {
        return Err(StoreError::Refused(format!("{} is a member of the store already", device.name())));
    }
    let placement = log_placement(&inner.state.borrow());
    let refusal = match (placement, device.disk.is_image()) {
        (LogPlacement::Mirrored, true) => Some("an image carries the log of a new store only"),
        (LogPlacement::Image, true) => Some("the log lies on an image already"),
        (LogPlacement::Image, false) if role == Role::Log => Some("the log lies on an image, and stays there"),
        (LogPlacement::Mirrored | LogPlacement::Image, false) => None,
    };
    if let Some(reason) = refusal {
        return Err(StoreError::Refused(format!("{} cannot join: {reason}", device.name())));
    }
    let mut own_superblock = inner.state.borrow().superblock.clone();
    let min_bytes = FIRST_SEGMENT_BYTES
        + (u64::from(own_superblock.journal_segments()) + SEGMENTS_MIN) * own_superblock.segment_bytes;
    let size_bytes = device.disk.geometry().size_bytes;
    if size_bytes < min_bytes {
        return Err(StoreError::TooSmall { device: device.name(), size_bytes, min_bytes });
    }
    let former = read_superblock(&**inner, &device).await.ok().map(|(superblock, _)| superblock);
    match former.filter(|superblock| superblock.store == own_superblock.store) {
        _ if force => {}
        Some(superblock) if has_diverged(&superblock, &own_superblock) => {
            return Err(StoreError::Refused(format!(
                "{} belongs to this flash store, but was used without the devices in service, and may have data that \
                 they lack; to give up its data, repeat the command with --force",
                device.name()
            )));
        }
        // The content of a former member is old, or was never complete.
        Some(_) => {}
        None => require_empty(&**inner, &device).await?,
    }
    device.member = free_number(&own_superblock.members)?;
    let since_generation = own_superblock.generation.low_bits();
    let segments = segment_count_of(&device, own_superblock.segment_bytes);
    let entry = MemberEntry {
        uuid: new_uuid(&inner.seam),
        state: MemberState::Resyncing,
        role,
        segment_count: segments,
        since_generation,
    };
    match own_superblock.members.get_mut(device.member.index()) {
        Some(old) => *old = entry,
        None => own_superblock.members.push(entry),
    }
    own_superblock.member = device.member;
    for at in SUPERBLOCK_OFFSETS {
        let block = block_of::<S>(inner.alloc_buffer().await, &own_superblock.encode());
        inner
            .write_with_retry_to(&device, at, vec![block], Durability::Flushed)
            .await
            .map_err(|error| device.wrap_error(error))?;
    }
    inner.state.borrow_mut().jobs.set_prepared(entry);
    Ok(device)
}

/// A number that was never used, or else a vacant one.
fn free_number(members: &[MemberEntry]) -> Result<MemberNo, StoreError> {
    if members.len() < MEMBERS_MAX {
        return Ok(MemberNo(members.len() as u32));
    }
    let vacant = (0..).map(MemberNo).zip(members).filter(|(_, entry)| entry.state == MemberState::Vacant);
    // The number that has been vacant longest.
    let oldest = vacant.min_by_key(|(_, entry)| entry.since_generation).map(|(member, _)| member);
    oldest.ok_or(StoreError::DeviceCount(MEMBERS_MAX + 1))
}

/// Applies the change: resyncs a joining log member, then switches the members between two batches. Returns the number
/// of the joining device, otherwise of the leaving member.
pub async fn apply_change<S: Seam>(
    running: &RunningJob<S>,
    change: MembershipChange<S>,
) -> Result<MemberNo, StoreError> {
    let inner = &running.inner;
    let MembershipChange { joining, leaving, copies_min } = change;
    // The joining device accepts no pages until the switch has ended: then its log segments no longer look free.
    let mut _closed_member_guard = None;
    if let Some((device, role)) = &joining {
        let prepared = match role {
            Role::Log => resync::resync(running, device).await.map(Some),
            Role::Pages => running.wait_if_paused(&device.name()).await.map(|()| None),
        };
        match prepared {
            Ok(closed_member) => _closed_member_guard = closed_member,
            Err(error) => {
                // Erase only a prepared device. An existing member keeps its pages, and a member that was lost
                // meanwhile is not touched.
                if inner.state.borrow().jobs.has_prepared() {
                    erase_metadata(inner, device).await;
                }
                return Err(error);
            }
        }
    }
    let outcome = switch_members(inner, joining.clone(), leaving, copies_min).await?;
    // A new log member needs the map journal, too.
    crate::journal::start_commit(inner);
    match outcome {
        LeaveOutcome::Removed(device) => erase_metadata(inner, &device).await,
        LeaveOutcome::NoDevice => {}
        LeaveOutcome::Stays => {
            let reason = "another device that carries the log has failed meanwhile: the device stays in service";
            return Err(StoreError::Refused(reason.to_owned()));
        }
    }
    Ok(joining
        .map_or_else(|| leaving.expect("a change has a joining or a leaving member"), |(device, _)| device.member))
}

/// Outcome of a switch for the leaving member.
enum LeaveOutcome<S: Seam> {
    /// It is no longer a member; its device can be erased.
    Removed(Device<S>),
    /// There is no device to erase.
    NoDevice,
    /// It stays, because the log would have too few copies.
    Stays,
}

/// A switch of the members in memory, which is not durable yet.
struct PendingSwitch<S: Seam> {
    /// The outcome for the leaving member.
    leave_outcome: LeaveOutcome<S>,
    /// The log's tail in the new superblock.
    tail: Sequence,
}

/// Switches the members between two batches.
async fn switch_members<S: Seam>(
    inner: &Rc<Inner<S>>,
    joining: Option<(Device<S>, Role)>,
    leaving: Option<MemberNo>,
    copies_min: usize,
) -> Result<LeaveOutcome<S>, StoreError> {
    let _guard = inner.batch_lock.lock().await;
    let joining_member = joining.as_ref().map(|(device, _)| device.member);
    let Some(switch) = switch_in_memory(inner, joining, leaving, copies_min)? else {
        return Ok(LeaveOutcome::Stays);
    };
    persist_membership(inner, joining_member).await?;
    let mut state = inner.state.borrow_mut();
    state.segments.durable_tail = state.segments.durable_tail.max(switch.tail);
    match joining_member.filter(|member| !state.superblock.serves(*member)) {
        Some(member) => Err(StoreError::Refused(format!("device number {member} failed as it became a member"))),
        None => Ok(switch.leave_outcome),
    }
}

/// Checks and switches the members in memory. Returns `None` if nothing changes: no device joins, and the leaving
/// member stays.
fn switch_in_memory<S: Seam>(
    inner: &Rc<Inner<S>>,
    joining: Option<(Device<S>, Role)>,
    leaving: Option<MemberNo>,
    copies_min: usize,
) -> Result<Option<PendingSwitch<S>>, StoreError> {
    let mut guard = inner.state.borrow_mut();
    let state = &mut *guard;
    if let Some(error) = &state.failure {
        return Err(error.clone());
    }
    let joining_member = joining.as_ref().map(|(device, _)| device.member);
    let joins_log = joining.as_ref().is_some_and(|(_, role)| *role == Role::Log);
    let copies = log_copies(state, leaving) + usize::from(joins_log);
    if copies == 0 {
        return Err(StoreError::Refused("no member would be left that carries the log".to_owned()));
    }
    let was_lost = |member| !state.superblock.serves(member) && !state.jobs.has_prepared();
    if (joins_log && state.joining_device.is_none()) || joining_member.is_some_and(was_lost) {
        return Err(StoreError::Refused("the joining device has failed".to_owned()));
    }
    let leaves_log = leaving.is_some_and(|member| state.superblock.carries_log(member));
    let stays = leaves_log && copies < copies_min;
    if stays && joining.is_none() {
        return Ok(None);
    }
    let leaving = leaving.filter(|_| !stays);
    state.superblock.generation = state.superblock.generation.next();
    let since_generation = state.superblock.generation.low_bits();
    let mut leave_outcome = if stays { LeaveOutcome::Stays } else { LeaveOutcome::NoDevice };
    if let Some(leaving) = leaving {
        let was_serving = state.superblock.serves(leaving);
        let entry = &mut state.superblock.members[leaving.index()];
        (entry.state, entry.since_generation) = (MemberState::Vacant, since_generation);
        state.member_reports.retain(|report| report.member != leaving);
        inner.pages.borrow_mut().drop_member_pages(leaving);
        let index = state.devices.iter().position(|device| device.member == leaving);
        // A failed device may never answer, so it is not erased.
        let removed = index.map(|index| state.devices.remove(index)).filter(|_| was_serving);
        leave_outcome = removed.map_or(LeaveOutcome::NoDevice, LeaveOutcome::Removed);
    }
    if let Some((device, role)) = joining {
        // A new device accepts pages, even if the former device with this number was closed after a failed write.
        if state.jobs.has_prepared() {
            inner.pages.borrow_mut().closed_members.remove(&device.member);
        }
        admit_member(state, device, role, since_generation);
    }
    state.joining_device = None;
    let next = state.next_sequence;
    let tail = state.segments.advance_tail(next);
    state.superblock.tail = tail;
    Ok(Some(PendingSwitch { leave_outcome, tail }))
}

/// Makes a device a member of this role, in the superblock in memory.
fn admit_member<S: Seam>(state: &mut State<S>, device: Device<S>, role: Role, since_generation: u32) {
    let index = device.member.index();
    if !state.superblock.serves(device.member) {
        let entry = state.jobs.take_prepared().expect("a device that is no member was prepared");
        match state.superblock.members.get_mut(index) {
            Some(old) => *old = entry,
            None => state.superblock.members.push(entry),
        }
        state.next_copies.resize(state.superblock.members.len(), 0);
        state.next_copies[index] = 0;
        // Another device may have had this number since the opening.
        state.latency_trackers.remove(&device.member);
        assert!(
            state.devices.iter().all(|other| other.member != device.member),
            "a member number belongs to one device"
        );
        state.devices.push(device.clone());
        state.devices.sort_by_key(|device| device.member);
    }
    if role == Role::Log {
        // Lost log members become vacant: the log has a replacement, so they are no longer missed.
        for (member, entry) in (0..).map(MemberNo).zip(&mut state.superblock.members) {
            if entry.state == MemberState::Lost && entry.role == Role::Log && member != device.member {
                entry.state = MemberState::Vacant;
                state.member_reports.retain(|report| report.member != member);
                state.devices.retain(|device| device.member != member);
            }
        }
    }
    let entry = &mut state.superblock.members[index];
    (entry.state, entry.role, entry.since_generation) = (MemberState::InService, role, since_generation);
    state.superblock.log_segment_count = state.segments.limit_segment.0.min(state.superblock.log_segment_count);
    state.member_reports.retain(|report| report.member != device.member);
    state.member_reports.push(report(device.member, role, Some(&device), MemberStatus::InService));
    state.member_reports.sort_by_key(|report| report.member);
}

/// Erases the metadata area of a device: it is no longer recognised as a member and counts as empty. Errors are
/// ignored: for a broken device, the membership generation of the others shows that it was removed.
async fn erase_metadata<S: Seam>(inner: &Rc<Inner<S>>, device: &Device<S>) {
    for at in (0..FIRST_SEGMENT_BYTES).step_by(ERASE_BLOCKS * BLOCK_BYTES) {
        let zeroes = (0..ERASE_BLOCKS).map(|_| Piece::whole(inner.seam.zero_block())).collect();
        let _ = inner.write_to(device, at, zeroes).await;
    }
    let _ = inner.flush_member(device).await;
}
