//! Metadata requests with a limit of time: a group that hangs must not keep the changes of the pool waiting.
//!
//! A request that is *late* counts as failed, although it may still take effect. Until it has ended, its group gets no
//! further metadata request, so that nothing of it lands on newer content. A metadata copy with a late request goes out
//! of service as after an error, and can be made again when the request has ended.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, Seam};
use task_sync::within;

use crate::detached::detached_on_drop;
use crate::metadata_requests::{MetadataRequests, TIMEOUT};
use crate::number::GroupNo;
use crate::state::{Inner, State};

/// Waits for the end of a metadata request of a group while the pool needs it. A late one goes on as a task of its own.
pub(crate) async fn in_time<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    request: impl Future<Output = DiskResult<()>> + 'static,
) -> DiskResult<()> {
    let begun_at = inner.seam.now();
    let requests = Rc::clone(&inner.state.borrow().groups[group.index()].metadata_requests);
    if requests.are_late() {
        return Err(DiskError::Hung("an earlier request of the device has not ended".to_owned()));
    }
    requests.begin(begun_at);
    let is_late = Rc::new(Cell::new(false));
    let (task, of_group, was_late) = (Rc::clone(inner), Rc::clone(&requests), Rc::clone(&is_late));
    let mut request = detached_on_drop(&inner.seam, async move {
        let result = request.await;
        of_group.end(begun_at);
        if was_late.get() {
            of_group.end_late();
            end_late(&task, group, &of_group, &result);
        }
        result
    });
    loop {
        if let Some(result) = within(inner.seam.sleep(TIMEOUT), &mut request).await {
            return result;
        }
        if can_go_on_without(&inner.state.borrow(), group, inner.seam.now()) {
            is_late.set(true);
            requests.begin_late();
            let seconds = TIMEOUT.as_secs_f64();
            return Err(DiskError::Hung(format!("a request has not ended within {seconds} s")));
        }
    }
}

/// Waits until a group has no late request: one that takes effect after the device has left the pool could destroy its
/// next content.
pub(crate) async fn wait_for_end<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo) {
    loop {
        let ended = {
            let mut state = inner.state.borrow_mut();
            if !state.groups[group.index()].metadata_requests.are_late() {
                return;
            }
            state.late_ended.add()
        };
        ended.wait().await;
    }
}

/// True if another metadata copy of the durable state answers.
fn can_go_on_without<S: Seam, D: Disk<S>>(state: &State<S, D>, group: GroupNo, now: Nanos) -> bool {
    let mut others = state.durable_copies.iter().filter(|copy| *copy != group);
    others.any(|copy| state.is_durable_copy(copy) && state.groups[copy.index()].metadata_requests.are_in_time(now))
}

/// Notes the end of a late request. After the last one of its group, the group may become a metadata copy again.
fn end_late<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    group: GroupNo,
    requests: &Rc<MetadataRequests>,
    result: &DiskResult<()>,
) {
    if requests.are_late() {
        return;
    }
    let mut state = inner.state.borrow_mut();
    state.late_ended.wake();
    let entry = &mut state.groups[group.index()];
    if result.is_ok() && Rc::ptr_eq(&entry.metadata_requests, requests) {
        (entry.has_answered, entry.failed_as_copy) = (true, false);
    }
}
