//! The dispatch to a backing: every request says why it comes, and each cause has its part of the queue.
//!
//! Client reads may fill the queue. Destage always has at least one place, a fifth while clients read and there is room for
//! dirty data, and more as dirty data nears its bound. Readahead and other background work take a quarter at most.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::wait::Grant;

/// Why a request goes to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client reads what is not in memory.
    ClientRead,
    /// Dirty data goes to the backing, or is made durable there.
    Destage,
    /// A stream is read ahead, or a client asked for a prefetch.
    Readahead,
    /// A page on flash is completed, or compared with the backing.
    Promotion,
}

impl Cause {
    /// All of them, by their names in metrics.
    pub const ALL: [(&'static str, Cause); 4] = [
        ("client-read", Cause::ClientRead),
        ("destage", Cause::Destage),
        ("readahead", Cause::Readahead),
        ("promotion", Cause::Promotion),
    ];
}

/// What is asked of a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To zero or discard a range.
    Zero,
    /// To make durable what it has.
    Flush,
}

impl Op {
    /// All of them, by their names in metrics.
    pub const ALL: [(&'static str, Op); 4] =
        [("read", Op::Read), ("write", Op::Write), ("zero", Op::Zero), ("flush", Op::Flush)];
}

#[derive(Default)]
struct Class {
    in_flight: Cell<u32>,
    limit: Cell<u32>,
    queue: RefCell<VecDeque<Rc<Grant>>>,
}

impl Class {
    /// Gives the free places to those who have waited longest: one place given back may have been one too many, and a limit that
    /// rose is for all of them.
    fn admit(&self) {
        while self.in_flight.get() < self.limit.get() {
            let Some(next) = self.queue.borrow_mut().pop_front() else { return };
            self.in_flight.set(self.in_flight.get() + 1);
            next.give();
        }
    }
}

struct Inner {
    depth: u32,
    classes: [Class; Cause::ALL.len()],
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
        inner.classes[Cause::Promotion as usize].limit.set(depth / 4);
        Dispatch(Rc::new(inner))
    }

    /// Waits for a place in the order of arrival.
    pub async fn enter(&self, cause: Cause) -> Permit {
        if let Some(permit) = self.try_enter(cause) {
            return permit;
        }
        let place = Rc::<Grant>::default();
        self.class(cause).queue.borrow_mut().push_back(Rc::clone(&place));
        place.given().await;
        Permit { dispatch: self.clone(), cause }
    }

    /// A place, if one is free and nobody waits.
    pub fn try_enter(&self, cause: Cause) -> Option<Permit> {
        let class = self.class(cause);
        if self.is_full(cause) || !class.queue.borrow().is_empty() {
            return None;
        }
        class.in_flight.set(class.in_flight.get() + 1);
        Some(Permit { dispatch: self.clone(), cause })
    }

    /// True when a request of this cause would have to wait.
    pub fn is_full(&self, cause: Cause) -> bool {
        let class = self.class(cause);
        class.in_flight.get() >= class.limit.get()
    }

    /// How many requests of this cause may be under way.
    pub fn places(&self, cause: Cause) -> usize {
        self.class(cause).limit.get() as usize
    }

    /// True when nothing that clients wait for is under way.
    pub fn is_idle(&self) -> bool {
        [Cause::ClientRead, Cause::Destage, Cause::Readahead]
            .iter()
            .all(|cause| self.class(*cause).in_flight.get() == 0)
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
        let destage = self.class(Cause::Destage);
        destage.limit.set((depth * percent / 100).max(1) as u32);
        destage.admit();
    }

    fn class(&self, cause: Cause) -> &Class {
        &self.0.classes[cause as usize]
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let class = self.dispatch.class(self.cause);
        class.in_flight.set(class.in_flight.get() - 1);
        class.admit();
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::{World, WorldSpec};
    use seam::{Nanos, Seam};

    use super::*;

    #[test]
    fn destage_always_has_a_place_and_more_when_dirty_data_nears_its_bound() {
        let dispatch = Dispatch::new(32);
        let read = dispatch.try_enter(Cause::ClientRead).expect("the queue is empty");
        let places = |pressure| {
            dispatch.set_destage_share(pressure, false);
            let mut held = Vec::new();
            while let Some(permit) = dispatch.try_enter(Cause::Destage) {
                held.push(permit);
            }
            held.len()
        };
        assert_eq!([places(0), places(50), places(75), places(100)], [6, 6, 19, 32]);
        drop(read);
        assert_eq!(places(0), 32, "nobody reads");
    }

    #[test]
    fn a_limit_that_rises_admits_all_who_wait_up_to_it() {
        let world = World::new(WorldSpec::new(1));
        let (seam, dispatch) = (world.seam(), Dispatch::new(32));
        let read = dispatch.try_enter(Cause::ClientRead).expect("the queue is empty");
        dispatch.set_destage_share(0, false);
        let inside = Rc::new(Cell::new(0));
        for _ in 0..30 {
            let (dispatch, inside) = (dispatch.clone(), Rc::clone(&inside));
            seam.spawn(async move {
                let _place = dispatch.enter(Cause::Destage).await;
                inside.set(inside.get() + 1);
                std::future::pending::<()>().await;
            });
        }
        let settle = || world.run_for(Nanos::from_millis(1)).expect("tasks that wait");
        settle();
        assert_eq!(inside.get(), 6);
        drop(read);
        dispatch.set_destage_share(0, false);
        settle();
        assert_eq!(inside.get(), 30);
    }
}
