//! Effects of a change of the members on the log and on the clean pages, determined before the change begins.

use seam::Seam;

use super::change;
use crate::create::segments_within;
use crate::error::StoreError;
use crate::format::superblock::{MemberEntry, Role};
use crate::log_members::{log_copies, log_placement};
use crate::number::MemberNo;
use crate::pages::SlotRoom;
use crate::pages::relocate::{has_pages, pages_without_room};
use crate::pages::slot_room::{PlannedChange, slot_room};
use crate::state::Inner;

/// The role of a device that is added.
pub fn role_of_added<S: Seam>(inner: &Inner<S>) -> Role {
    let copies = log_placement(&inner.state.borrow()).copies();
    if inner.log_devices().len() < copies { Role::Log } else { Role::Pages }
}

/// The role of the device that replaces the member `old` with this entry.
pub fn role_of_replacement<S: Seam>(inner: &Inner<S>, old: MemberNo, entry: &MemberEntry) -> Role {
    let state = inner.state.borrow();
    let joins_log = entry.role == Role::Log && log_copies(&state, Some(old)) < log_placement(&state).copies();
    if joins_log { Role::Log } else { Role::Pages }
}

/// Effects on the clean pages of a device that is added or replaces a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinPlan {
    /// The map of clean pages is loaded; before, no page is counted.
    pub is_map_loaded: bool,
    /// Pages of the replaced member for which the new device and the others have room.
    pub kept_pages: u64,
    /// Pages of the replaced member without room. Beside them, pages without a recent use are dropped as well.
    pub dropped_pages: u64,
    /// The room for pages before the change.
    pub room_before: SlotRoom,
    /// The room for pages after the change.
    pub room_after: SlotRoom,
}

/// Plans the addition of a device of this size, or the replacement of the member `replaced` by it.
pub fn plan_join<S: Seam>(
    inner: &Inner<S>,
    replaced: Option<MemberNo>,
    device_bytes: u64,
) -> Result<JoinPlan, StoreError> {
    let role = match replaced {
        Some(old) => role_of_replacement(inner, old, &change::member_entry(inner, old)?),
        None => role_of_added(inner),
    };
    let segment_bytes = inner.state.borrow().superblock.segment_bytes;
    let joining = Some((role, segments_within(device_bytes, segment_bytes)));
    let (kept_pages, dropped_pages) = match replaced.filter(|old| has_pages(inner, *old)) {
        Some(old) => {
            let dropped = pages_without_room(inner, old, joining);
            (inner.pages.borrow().table.pages_on(old) - dropped, dropped)
        }
        None => (0, 0),
    };
    let state = inner.pages.borrow();
    Ok(JoinPlan {
        is_map_loaded: state.is_ready(),
        kept_pages,
        dropped_pages,
        room_before: slot_room(inner, &state, PlannedChange::default()),
        room_after: slot_room(inner, &state, PlannedChange { leaving: replaced, joining }),
    })
}
