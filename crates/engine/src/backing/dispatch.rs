//! The dispatch to a backing: every request says why it comes, and each cause has its part of the queue.
//!
//! Client reads may fill the queue. Destage always has at least one place, a fifth while clients read and there is room for
//! dirty data, and more as dirty data nears its bound. Readahead and other background work take a quarter at most.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Why a request goes to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client reads what is not in memory.
    ClientRead,
    /// Dirty data goes to the backing.
    Destage,
    /// A stream is read ahead, or a client asked for a prefetch.
    Readahead,
}

impl Cause {
    /// All of them, by their names in metrics.
    pub const ALL: [(&'static str, Cause); 3] =
        [("client-read", Cause::ClientRead), ("destage", Cause::Destage), ("readahead", Cause::Readahead)];
}

struct Waiter {
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Class {
    in_flight: Cell<u32>,
    served_bytes: Cell<u64>,
    limit: Cell<u32>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Inner {
    depth: u32,
    classes: [Class; 3],
}

/// Who may send how much to one backing. A clone is another handle to the same.
#[derive(Clone)]
pub struct Dispatch(Rc<Inner>);

/// A place in the backing's queue; given back when dropped.
pub struct Permit {
    dispatch: Dispatch,
    cause: Cause,
}

impl Dispatch {
    /// For a backing that works on `depth` requests at once with profit.
    pub fn new(depth: u32) -> Self {
        let depth = depth.max(4);
        let inner = Inner { depth, classes: Default::default() };
        inner.classes[Cause::ClientRead as usize].limit.set(depth * 2);
        inner.classes[Cause::Destage as usize].limit.set(depth);
        inner.classes[Cause::Readahead as usize].limit.set(depth / 4);
        Dispatch(Rc::new(inner))
    }

    /// Waits for a place in the order of arrival. `bytes` is what the request costs.
    pub async fn enter(&self, cause: Cause, bytes: u64) -> Permit {
        if let Some(permit) = self.try_enter(cause, bytes) {
            return permit;
        }
        self.charge(cause, bytes);
        let waiter = Rc::new(Waiter { granted: Cell::new(false), waker: RefCell::default() });
        self.class(cause).queue.borrow_mut().push_back(Rc::clone(&waiter));
        poll_fn(|context| {
            if waiter.granted.get() {
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        Permit { dispatch: self.clone(), cause }
    }

    /// A place, if one is free and nobody waits.
    pub fn try_enter(&self, cause: Cause, bytes: u64) -> Option<Permit> {
        let class = self.class(cause);
        if self.is_full(cause) || !class.queue.borrow().is_empty() {
            return None;
        }
        class.in_flight.set(class.in_flight.get() + 1);
        self.charge(cause, bytes);
        Some(Permit { dispatch: self.clone(), cause })
    }

    /// True when a request of this cause would have to wait.
    pub fn is_full(&self, cause: Cause) -> bool {
        let class = self.class(cause);
        class.in_flight.get() >= class.limit.get()
    }

    /// True when readahead would hurt nobody.
    pub fn may_read_ahead(&self) -> bool {
        let reads = self.class(Cause::ClientRead);
        reads.in_flight.get() < reads.limit.get() && !self.is_full(Cause::Readahead)
    }

    /// Sets destage's part: `pressure` is how much of the dirty bound is in use, in percent; `flush` whether somebody
    /// waits for all of it.
    pub fn set_destage_share(&self, pressure: u64, flush: bool) {
        let depth = u64::from(self.0.depth);
        let contended = self.class(Cause::ClientRead).in_flight.get() > 0;
        let percent = match () {
            () if !contended => 100,
            () if flush => 50.max(pressure),
            () => 20 + pressure.saturating_sub(50) * 8 / 5,
        };
        self.class(Cause::Destage).limit.set((depth * percent / 100).max(1) as u32);
    }

    /// Bytes that were sent for a cause.
    pub fn served_bytes(&self, cause: Cause) -> u64 {
        self.class(cause).served_bytes.get()
    }

    fn charge(&self, cause: Cause, bytes: u64) {
        let served = &self.class(cause).served_bytes;
        served.set(served.get() + bytes);
    }

    fn class(&self, cause: Cause) -> &Class {
        &self.0.classes[cause as usize]
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let class = self.dispatch.class(self.cause);
        class.in_flight.set(class.in_flight.get() - 1);
        if class.in_flight.get() < class.limit.get()
            && let Some(next) = class.queue.borrow_mut().pop_front()
        {
            class.in_flight.set(class.in_flight.get() + 1);
            next.granted.set(true);
            if let Some(waker) = next.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destage_always_has_a_place_and_more_when_dirty_data_nears_its_bound() {
        let dispatch = Dispatch::new(32);
        let read = dispatch.try_enter(Cause::ClientRead, 4096).expect("the queue is empty");
        let places = |pressure| {
            dispatch.set_destage_share(pressure, false);
            let mut held = Vec::new();
            while let Some(permit) = dispatch.try_enter(Cause::Destage, 4096) {
                held.push(permit);
            }
            held.len()
        };
        assert_eq!([places(0), places(50), places(75), places(100)], [6, 6, 19, 32]);
        drop(read);
        assert_eq!(places(0), 32, "nobody reads");
    }
}
