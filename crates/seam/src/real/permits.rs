//! A fair semaphore on one core: a bounded number of permits, granted in order of request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A set of permits. A clone is another handle to the same set.
#[derive(Clone)]
pub(super) struct Permits(Rc<Inner>);

struct Inner {
    free: Cell<usize>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

#[derive(Default)]
struct Waiter {
    has_permit: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A permit, returned on drop.
pub(super) struct Permit(Permits);

impl Permits {
    pub(super) fn new(count: usize) -> Permits {
        Permits(Rc::new(Inner { free: Cell::new(count), waiters: RefCell::default() }))
    }

    /// Returns a permit if more than `spare` are free.
    #[inline]
    pub(super) fn try_acquire(&self, spare: usize) -> Option<Permit> {
        let free = &self.0.free;
        (free.get() > spare).then(|| {
            free.set(free.get() - 1);
            Permit(self.clone())
        })
    }

    /// Waits for a permit, starting with the first poll.
    pub(super) fn acquire(&self) -> Acquire {
        Acquire { permits: self.clone(), waiter: None }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let inner = &self.0.0;
        let next = inner.waiters.borrow_mut().pop_front();
        match next {
            Some(next) => {
                next.has_permit.set(true);
                let waker = next.waker.borrow_mut().take();
                waker.into_iter().for_each(Waker::wake);
            }
            None => inner.free.set(inner.free.get() + 1),
        }
    }
}

/// Future of [`Permits::acquire`].
pub(super) struct Acquire {
    permits: Permits,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let Some(waiter) = &self.waiter else {
            // No permit is free while a waiter exists: a returned permit goes to the longest waiter.
            if let Some(permit) = self.permits.try_acquire(0) {
                return Poll::Ready(permit);
            }
            let waiter = Rc::new(Waiter::default());
            *waiter.waker.borrow_mut() = Some(context.waker().clone());
            self.permits.0.waiters.borrow_mut().push_back(Rc::clone(&waiter));
            self.waiter = Some(waiter);
            return Poll::Pending;
        };
        if !waiter.has_permit.get() {
            *waiter.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.waiter = None;
        Poll::Ready(Permit(self.permits.clone()))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.has_permit.get() {
            drop(Permit(self.permits.clone()));
        } else {
            self.permits.0.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiter));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(acquire: &mut Acquire) -> Option<Permit> {
        match Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn permit_goes_to_the_longest_remaining_waiter() {
        let permits = Permits::new(1);
        let held = poll(&mut permits.acquire()).expect("a permit is free");
        let [mut first, mut second, mut third] = [permits.acquire(), permits.acquire(), permits.acquire()];
        assert!([&mut first, &mut second, &mut third].into_iter().all(|waiter| poll(waiter).is_none()));
        drop(first);
        drop(held);
        assert!(poll(&mut third).is_none(), "the permit belongs to the second waiter");
        drop(second);
        let held = poll(&mut third).expect("the second waiter was dropped before it took the permit");
        assert!(permits.try_acquire(0).is_none());
        drop(held);
        assert_eq!(permits.0.free.get(), 1);
        assert!(permits.try_acquire(1).is_none(), "one permit is reserved");
        assert!(permits.try_acquire(0).is_some());
    }
}
