//! The members that carry the log, and the one that takes it over when one of them leaves or fails.

use seam::Seam;

use crate::create::LOG_MEMBERS;
use crate::device::Device;
use crate::number::MemberNo;
use crate::state::{Inner, State};

/// The device that takes over the log when a member leaves.
pub enum Succession<S: Seam> {
    /// None: the log keeps two copies without the member.
    NotNeeded,
    /// This one, which has held only pages so far.
    By(Device<S>),
    /// The log needs one, and no device holds only pages.
    Missing,
}

/// The device that takes over the log when `member` leaves.
pub fn succession<S: Seam>(inner: &Inner<S>, member: MemberNo) -> Succession<S> {
    let is_needed = {
        let state = inner.state.borrow();
        state.superblock.carries_log(member) && log_copies(&state, Some(member)) < LOG_MEMBERS
    };
    match find_successor(inner, Some(member)) {
        _ if !is_needed => Succession::NotNeeded,
        Some(device) => Succession::By(device),
        None => Succession::Missing,
    }
}

/// The number of the device that takes over the log when `member` leaves, if one does.
pub fn successor_number<S: Seam>(inner: &Inner<S>, member: MemberNo) -> Option<MemberNo> {
    match succession(inner, member) {
        Succession::By(device) => Some(device.member),
        Succession::NotNeeded | Succession::Missing => None,
    }
}

/// Number of members in service that carry the log, without the member `except`.
pub fn log_copies<S: Seam>(state: &State<S>, except: Option<MemberNo>) -> usize {
    let members = state.superblock.numbered_members().map(|(member, _)| member);
    members.filter(|member| state.superblock.carries_log(*member) && Some(*member) != except).count()
}

/// True when the log has a single copy and a member that holds only pages could take it over.
pub fn needs_take_over<S: Seam>(state: &State<S>) -> bool {
    log_copies(state, None) == 1 && largest_page_member(state, None).is_some()
}

/// The largest of the members that hold only pages, other than `leaving`.
pub fn find_successor<S: Seam>(inner: &Inner<S>, leaving: Option<MemberNo>) -> Option<Device<S>> {
    largest_page_member(&inner.state.borrow(), leaving).cloned()
}

fn largest_page_member<S: Seam>(state: &State<S>, leaving: Option<MemberNo>) -> Option<&Device<S>> {
    let superblock = &state.superblock;
    let pages = state.devices.iter().filter(|device| {
        Some(device.member) != leaving && superblock.serves(device.member) && !superblock.carries_log(device.member)
    });
    pages.max_by_key(|device| superblock.members[device.member.index()].segment_count)
}
