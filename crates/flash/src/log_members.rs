//! The members that carry the log, and the one that takes it over when one of them leaves or fails.

use std::collections::BTreeSet;

use seam::Seam;

use crate::device::Device;
use crate::member_disk::LogPlacement;
use crate::number::MemberNo;
use crate::state::{Inner, State};

/// The device that takes over the log when a member leaves, if the log needs one.
pub enum LogSuccessor<S: Seam> {
    /// The log keeps all its copies without the member.
    NotNeeded,
    /// This device, which has held only pages so far.
    Device(Device<S>),
    /// The log needs a device, and no device holds only pages.
    Missing,
}

/// The device that takes over the log when `member` leaves.
pub fn find_log_successor<S: Seam>(inner: &Inner<S>, member: MemberNo) -> LogSuccessor<S> {
    let is_needed = {
        let state = inner.state.borrow();
        state.superblock.carries_log(member) && log_copies(&state, Some(member)) < log_placement(&state).copies()
    };
    match largest_successor(inner, Some(member)) {
        _ if !is_needed => LogSuccessor::NotNeeded,
        Some(device) => LogSuccessor::Device(device),
        None => LogSuccessor::Missing,
    }
}

/// The number of the device that takes over the log when `member` leaves, if one does.
pub fn log_successor_number<S: Seam>(inner: &Inner<S>, member: MemberNo) -> Option<MemberNo> {
    match find_log_successor(inner, member) {
        LogSuccessor::Device(device) => Some(device.member),
        LogSuccessor::NotNeeded | LogSuccessor::Missing => None,
    }
}

/// Where the store has its log.
pub fn log_placement<S: Seam>(state: &State<S>) -> LogPlacement {
    LogPlacement::of(state.devices.iter().map(|device| &device.disk))
}

/// The members that hold no clean pages. If an image carries the log, only the local disks beside it hold pages: they
/// are faster.
pub fn members_without_pages<S: Seam>(state: &State<S>) -> BTreeSet<MemberNo> {
    let superblock = &state.superblock;
    let (log, pages): (Vec<MemberNo>, Vec<MemberNo>) = superblock
        .numbered_members()
        .map(|(member, _)| member)
        .filter(|member| superblock.serves(*member))
        .partition(|member| superblock.carries_log(*member));
    let is_beside_pages = log_placement(state) == LogPlacement::Image && !pages.is_empty();
    if is_beside_pages { log.into_iter().collect() } else { BTreeSet::new() }
}

/// Number of members in service that carry the log, without the member `except`.
pub fn log_copies<S: Seam>(state: &State<S>, except: Option<MemberNo>) -> usize {
    let members = state.superblock.numbered_members().map(|(member, _)| member);
    members.filter(|member| state.superblock.carries_log(*member) && Some(*member) != except).count()
}

/// True when the log lacks its second copy and a member that holds only pages could take it over.
pub fn needs_take_over<S: Seam>(state: &State<S>) -> bool {
    let is_single = log_copies(state, None) == 1 && log_placement(state) == LogPlacement::Mirrored;
    is_single && largest_page_member(state, None).is_some()
}

/// The member that would take over the log: the largest of those that hold only pages and may carry the log, other than
/// `leaving`.
pub fn largest_successor<S: Seam>(inner: &Inner<S>, leaving: Option<MemberNo>) -> Option<Device<S>> {
    largest_page_member(&inner.state.borrow(), leaving).cloned()
}

/// The largest member that holds only pages and may carry the log, other than `leaving`.
fn largest_page_member<S: Seam>(state: &State<S>, leaving: Option<MemberNo>) -> Option<&Device<S>> {
    let (superblock, placement) = (&state.superblock, log_placement(state));
    let pages = state.devices.iter().filter(|device| {
        let holds_only_pages = superblock.serves(device.member) && !superblock.carries_log(device.member);
        Some(device.member) != leaving && holds_only_pages && placement.admits(&device.disk)
    });
    pages.max_by_key(|device| superblock.members[device.member.index()].segment_count)
}
