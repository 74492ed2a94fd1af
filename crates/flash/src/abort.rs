//! Ends the wait for all requests of a device at once. The disk still performs the requests; it owns their buffers
//! until it responds.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Ends the wait for a device's requests. Clones share one state.
#[derive(Clone, Default)]
pub struct AbortHandle(Rc<AbortState>);

/// The state that the clones of a handle share.
#[derive(Default)]
struct AbortState {
    is_aborted: Cell<bool>,
    /// Wakers of tasks that wait for a request; free entries are reused.
    waiting: RefCell<Vec<Option<Waker>>>,
}

/// An entry in the list of waiting tasks, until it is dropped.
struct WaiterEntry<'a> {
    inner: &'a AbortState,
    /// Index of its waker in the list; `None` before the first wait.
    waker_index: Option<usize>,
}

impl WaiterEntry<'_> {
    /// Stores the waker of the waiting task, over an earlier one of the same task.
    fn register(&mut self, waker: &Waker) {
        let mut waiting = self.inner.waiting.borrow_mut();
        let index = *self.waker_index.get_or_insert_with(|| {
            let free = waiting.iter().position(Option::is_none);
            free.unwrap_or_else(|| {
                waiting.push(None);
                waiting.len() - 1
            })
        });
        match &mut waiting[index] {
            Some(registered) => registered.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
    }
}

impl Drop for WaiterEntry<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.waker_index {
            self.inner.waiting.borrow_mut()[index] = None;
        }
    }
}

impl AbortHandle {
    /// Ends the wait for all requests. Later requests are not sent.
    pub fn abort(&self) {
        self.0.is_aborted.set(true);
        let waiting: Vec<_> = self.0.waiting.borrow().iter().flatten().cloned().collect();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Runs `request` to its end. Returns `None` when it is aborted first; a request that begins after the abort is not
    /// sent.
    pub async fn or_aborted<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let (mut request, mut waiter) = (pin!(request), WaiterEntry { inner: &self.0, waker_index: None });
        poll_fn(|context| {
            if self.0.is_aborted.get() {
                return Poll::Ready(None);
            }
            let polled = request.as_mut().poll(context).map(Some);
            if polled.is_pending() {
                waiter.register(context.waker());
            }
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    #[test]
    fn abort_ends_requests_in_flight_and_blocks_later_ones() {
        let abort = AbortHandle::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut hangs = pin!(abort.or_aborted(std::future::pending::<()>()));
        assert!(hangs.as_mut().poll(&mut context).is_pending());
        let mut ends = pin!(abort.or_aborted(std::future::ready(7)));
        assert_eq!(ends.as_mut().poll(&mut context), Poll::Ready(Some(7)));
        assert_eq!(abort.0.waiting.borrow().iter().flatten().count(), 1);
        abort.abort();
        assert_eq!(hangs.as_mut().poll(&mut context), Poll::Ready(None));
        let unsent = Cell::new(true);
        let mut late = pin!(abort.or_aborted(async { unsent.set(false) }));
        assert_eq!(late.as_mut().poll(&mut context), Poll::Ready(None));
        assert!(unsent.get());
    }
}
