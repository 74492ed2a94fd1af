//! Waiting inside one core: a signal that wakes all waiting tasks after a change, and a grant for a single task.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes all waiting tasks. Each task checks its condition itself, before it waits and after it wakes.
#[derive(Default)]
pub struct Signal {
    wakers: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Wakes all tasks that wait now.
    pub fn notify(&self) {
        if self.wakers.borrow().is_empty() {
            return;
        }
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Returns as soon as `ready` returns a value; `ready` is called now and after each [`Signal::notify`].
    pub async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                let mut wakers = self.wakers.borrow_mut();
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// A permission that one task queues for and another task gives.
#[derive(Default)]
pub struct Grant {
    given: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Grant {
    /// Gives the permission.
    pub fn give(&self) {
        self.given.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// True once the permission is given.
    pub fn is_given(&self) -> bool {
        self.given.get()
    }

    /// Waits until the permission is given.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.given.get() {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
