//! Waiting inside one core: a signal that wakes all waiting tasks after a change, and an event for a single task.

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

/// An event that one task waits for and another task sets once.
#[derive(Default)]
pub struct OneShotEvent {
    is_set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl OneShotEvent {
    /// Sets the event and wakes the waiting task.
    pub fn set(&self) {
        self.is_set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// True once the event is set.
    pub fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until the event is set.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.is_set.get() {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
