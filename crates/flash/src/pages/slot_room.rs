//! Room for pages: the number of slots on the devices and in the map, and the reserve that the log keeps.

use seam::Seam;

use crate::format::superblock::Role;
use crate::log_members::members_without_pages;
use crate::number::MemberNo;
use crate::page_map::PageState;
use crate::state::{Inner, State};

/// The log's reserve: 1/32 of the segments that log and pages share.
const RESERVE_SEGMENTS_DIVISOR: usize = 32;
/// Minimum number of segments of the log's reserve.
const RESERVE_SEGMENTS_MIN: usize = 2;

/// Room for pages, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRoom {
    /// Slots on the devices in service while the log needs no more than its reserve.
    pub device_slots: u64,
    /// Slots for which the map has room: its size was set when the store was created.
    pub map_slots: u64,
}

impl SlotRoom {
    /// Slots that can be used.
    pub fn usable_slots(&self) -> u64 {
        self.device_slots.min(self.map_slots)
    }

    /// Slots on the devices for which the map has no room.
    pub fn unmapped_slots(&self) -> u64 {
        self.device_slots - self.usable_slots()
    }
}

/// A possible change of the members, for which the room is computed; the default is no change.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlannedChange {
    /// The member that leaves.
    pub leaving: Option<MemberNo>,
    /// Role and segments of a device that joins.
    pub joining: Option<(Role, u32)>,
}

/// Maximum number of slots while the log needs no more than its reserve.
pub fn slots_max<S: Seam>(inner: &Inner<S>, state: &PageState<S>) -> usize {
    slot_room(inner, state, PlannedChange::default()).usable_slots() as usize
}

/// The room for pages after a change of the members.
pub fn slot_room<S: Seam>(inner: &Inner<S>, state: &PageState<S>, change: PlannedChange) -> SlotRoom {
    let store_state = inner.state.borrow();
    let superblock = &store_state.superblock;
    let PlannedChange { leaving, joining } = change;
    // The smallest log member determines the end of the log on all of them.
    let joining_log = joining.filter(|(role, _)| *role == Role::Log).map(|(_, segments)| segments);
    let log_end =
        joining_log.map_or(superblock.log_segment_count, |segments| segments.min(superblock.log_segment_count));
    let shared_segments = log_end.saturating_sub(superblock.journal_segments());
    let lendable = shared_segments.saturating_sub(log_reserve_of(&store_state, shared_segments) as u32);
    let page_segments = |(role, segments): (Role, u32)| match role {
        Role::Log => u64::from(lendable) + u64::from(segments.saturating_sub(log_end)),
        Role::Pages => u64::from(segments.saturating_sub(superblock.journal_segments())),
    };
    let without_pages = members_without_pages(&store_state);
    let stays =
        |member: MemberNo| superblock.serves(member) && leaving != Some(member) && !without_pages.contains(&member);
    let staying = superblock.numbered_members().filter(|(member, _)| stays(*member));
    let members = staying.map(|(_, entry)| (entry.role, entry.segment_count)).chain(joining);
    SlotRoom {
        device_slots: members.map(page_segments).sum::<u64>() * u64::from(state.table.slots_per_frame()),
        map_slots: state.journal.slots_max() as u64,
    }
}

/// The number of free segments that the log keeps for itself.
pub(super) fn log_reserve_segments<S: Seam>(store_state: &State<S>) -> usize {
    log_reserve_of(store_state, store_state.superblock.log_segment_count - store_state.superblock.journal_segments())
}

/// The number of free segments that the log keeps for itself while it shares `shared_segments` with the pages.
fn log_reserve_of<S: Seam>(store_state: &State<S>, shared_segments: u32) -> usize {
    store_state.segments.tombstone_reserve_segments()
        + (shared_segments as usize / RESERVE_SEGMENTS_DIVISOR).max(RESERVE_SEGMENTS_MIN)
}
