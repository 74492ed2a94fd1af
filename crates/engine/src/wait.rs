//! Waiting inside one core: a signal that wakes everybody who waits for something to change, and a grant that is for one alone.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes all who wait. A waiter looks at the condition itself, before and after.
#[derive(Default)]
pub struct Signal {
    wakers: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Wakes everybody who waits now.
    pub fn notify(&self) {
        if self.wakers.borrow().is_empty() {
            return;
        }
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Returns as soon as `ready` gives a value; it is asked now and after each [`Signal::notify`].
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

/// Something that one waits for in a line, and another one gives.
#[derive(Default)]
pub struct Grant {
    given: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Grant {
    /// Gives it.
    pub fn give(&self) {
        self.given.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// True once it was given.
    pub fn is_given(&self) -> bool {
        self.given.get()
    }

    /// Waits until it is given.
    pub async fn given(&self) {
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
