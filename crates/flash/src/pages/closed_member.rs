//! Members that accept no new pages for a while, because they leave or will carry the log.

use std::rc::Rc;

use seam::Seam;

use super::segment_lending::CHECK_INTERVAL;
use super::write_intent;
use crate::journal::wait_durable;
use crate::number::MemberNo;
use crate::page_map::PageState;
use crate::state::Inner;

/// Guard: while it exists, its member accepts no new pages.
pub struct ClosedMemberGuard<S: Seam> {
    inner: Rc<Inner<S>>,
    member: MemberNo,
    /// The member was closed before the guard was created, so it stays closed afterwards.
    was_closed: bool,
}

impl<S: Seam> Drop for ClosedMemberGuard<S> {
    fn drop(&mut self) {
        if !self.was_closed {
            self.inner.pages.borrow_mut().closed_members.remove(&self.member);
        }
    }
}

/// Drops all pages of a member that will carry the log, durably. The member accepts no new pages while the result
/// exists.
pub async fn drop_pages_of<S: Seam>(inner: &Rc<Inner<S>>, member: MemberNo) -> ClosedMemberGuard<S> {
    let closed = close_member(inner, member).await;
    inner.pages.borrow_mut().drop_member_pages(member);
    wait_durable(inner).await;
    closed
}

/// Closes a member for new pages, and waits until no page is being written to it.
pub async fn close_member<S: Seam>(inner: &Rc<Inner<S>>, member: MemberNo) -> ClosedMemberGuard<S> {
    write_intent::wait_loaded_if_begun(inner).await;
    let was_closed = !inner.pages.borrow_mut().closed_members.insert(member);
    let closed = ClosedMemberGuard { inner: Rc::clone(inner), member, was_closed };
    let writes = |state: &PageState<S>| state.writes_in_flight.keys().any(|(writing, _)| *writing == member);
    while inner.pages.borrow().is_growing || writes(&inner.pages.borrow()) {
        // Without free slots no new write begins.
        inner.pages.borrow_mut().remove_free_slots(member);
        inner.seam.sleep(CHECK_INTERVAL).await;
    }
    closed
}
