//! Timers: wakers and events, ordered by time and then by creation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::world::WorldState;
use crate::Nanos;

/// An object that acts at a time without being a task: a disk's completion, a message's arrival.
pub(super) trait Event {
    /// Acts at the scheduled time; `token` is the one passed to [`Timers::add_event`].
    fn fire(self: Rc<Self>, token: u64);
}

/// Action of a timer.
pub(super) enum Action {
    Wake(Waker),
    Fire(Rc<dyn Event>, u64),
}

/// Handle to a timer, valid until it fires or is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerId {
    slot: u32,
    sequence: u64,
}

struct Slot {
    sequence: u64,
    action: Option<Action>,
}

/// All timers of a world.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    sequence: u64,
}

impl Timers {
    pub(super) fn add(&mut self, at: Nanos, action: Action) -> TimerId {
        self.sequence += 1;
        let entry = Slot { sequence: self.sequence, action: Some(action) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 timers fit in memory")
            }
        };
        self.heap.push(Reverse((at, self.sequence, slot)));
        TimerId { slot, sequence: self.sequence }
    }

    pub(super) fn add_event(&mut self, at: Nanos, event: Rc<dyn Event>, token: u64) {
        self.add(at, Action::Fire(event, token));
    }

    /// Cancels a timer; a fired timer's handle has no effect.
    pub(super) fn cancel(&mut self, id: TimerId) {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        if slot.sequence == id.sequence && slot.action.take().is_some() {
            self.free.push(id.slot);
        }
        // The heap entry is removed at its time, or here once dead entries outnumber live ones (a client that sets a
        // time-out of seconds for every request and never needs it).
        let live = self.slots.len() - self.free.len();
        if self.heap.len() > 64 && self.heap.len() > 2 * live {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|Reverse((_, sequence, slot))| self.is_live(*sequence, *slot));
            self.heap = entries.into();
        }
    }

    /// The time of the next timer.
    pub(super) fn next_at(&mut self) -> Option<Nanos> {
        while let Some(Reverse((at, sequence, slot))) = self.heap.peek().copied() {
            if self.is_live(sequence, slot) {
                return Some(at);
            }
            self.heap.pop();
        }
        None
    }

    /// The next timer's action, if its time has come.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<Action> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.slots[slot as usize].action.take()
    }

    fn is_live(&self, sequence: u64, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        slot.sequence == sequence && slot.action.is_some()
    }
}

/// Completes at the time `at`.
pub(super) struct Sleep {
    world: Rc<WorldState>,
    at: Nanos,
    timer: Option<(TimerId, Waker)>,
}

impl Sleep {
    pub(super) fn new(world: Rc<WorldState>, at: Nanos) -> Sleep {
        Sleep { world, at, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.at {
            return Poll::Ready(());
        }
        let is_endless = self.at == Nanos::MAX;
        if !is_endless && self.timer.as_ref().is_none_or(|(_, waker)| !waker.will_wake(context.waker())) {
            let old = self.timer.take();
            let mut timers = self.world.timers.borrow_mut();
            if let Some((id, _)) = old {
                timers.cancel(id);
            }
            let waker = context.waker().clone();
            let id = timers.add(self.at, Action::Wake(waker.clone()));
            drop(timers);
            self.timer = Some((id, waker));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((id, _)) = self.timer.take() {
            self.world.timers.borrow_mut().cancel(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action() -> Action {
        Action::Wake(Waker::noop().clone())
    }

    #[test]
    fn cancelled_timer_neither_fires_nor_holds_memory() {
        let mut timers = Timers::default();
        for round in 0..10_000 {
            let id = timers.add(Nanos(1_000_000 + round), action());
            timers.cancel(id);
            timers.cancel(id);
        }
        assert!(timers.heap.len() <= 65 && timers.slots.len() == 1);
        assert_eq!(timers.next_at(), None);
    }

    #[test]
    fn timers_fire_at_their_time_and_only_once() {
        let mut timers = Timers::default();
        timers.add(Nanos(20), action());
        timers.add(Nanos(10), action());
        assert_eq!(timers.next_at(), Some(Nanos(10)));
        assert!(timers.pop_due(Nanos(9)).is_none());
        assert!(timers.pop_due(Nanos(10)).is_some());
        assert!(timers.pop_due(Nanos(10)).is_none());
        assert_eq!(timers.next_at(), Some(Nanos(20)));
    }
}
