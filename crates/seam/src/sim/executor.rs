//! Tasks and who is to run next: one thread, first come first served or drawn from the seed.
//!
//! A waker is a number (world, task, generation), not an allocation. It finds its world's queue through a list that
//! belongs to the thread, so that one left over from a world that has ended, or carried to another thread, wakes nobody.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::rng::Rng;

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;
const WORLD_BITS: u32 = 20;
const _: () = assert!(INDEX_BITS + GENERATION_BITS + WORLD_BITS == usize::BITS, "a waker's number fills a pointer");

/// The task that `run_until` polls in place; it is in no slot.
pub(super) const MAIN: u32 = 0;

/// Which ready task runs next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// The one that has been ready longest: one interleaving, the natural one.
    #[default]
    Fifo,
    /// Any, drawn from the seed: other seeds, other interleavings.
    Seeded,
}

pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    static LIVE: RefCell<Vec<Rc<Ready>>> = const { RefCell::new(Vec::new()) };
    static WORLDS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Clone, Copy, Default)]
struct State {
    generation: u32,
    queued: bool,
}

/// Who is ready: the part of the executor that wakers reach.
pub(super) struct Ready {
    world: u32,
    queue: RefCell<VecDeque<u32>>,
    states: RefCell<Vec<State>>,
}

impl Ready {
    pub(super) fn new() -> Rc<Ready> {
        let world = WORLDS.get();
        WORLDS.set((world + 1) & low_bits(WORLD_BITS));
        let ready = Rc::new(Ready {
            world,
            queue: RefCell::default(),
            states: RefCell::new(vec![State::default(); MAIN as usize + 1]),
        });
        LIVE.with_borrow_mut(|live| live.push(Rc::clone(&ready)));
        ready
    }

    /// From now on wakers of this world wake nobody.
    pub(super) fn retire(&self) {
        LIVE.with_borrow_mut(|live| live.retain(|other| other.world != self.world));
        self.queue.borrow_mut().clear();
    }

    pub(super) fn waker(&self, index: u32) -> Waker {
        let generation = self.states.borrow()[index as usize].generation;
        let number = (u64::from(self.world) << (INDEX_BITS + GENERATION_BITS))
            | (u64::from(generation) << INDEX_BITS)
            | u64::from(index);
        // SAFETY: the data is a number that is never dereferenced; the functions of the table only look into this thread's own list, so
        // they may be called from any thread and any number of times.
        unsafe { Waker::from_raw(RawWaker::new(ptr::without_provenance(number as usize), &TABLE)) }
    }

    /// Makes a task ready, unless it is or has ended.
    pub(super) fn push(&self, index: u32, generation: u32) {
        let mut states = self.states.borrow_mut();
        let Some(state) = states.get_mut(index as usize) else { return };
        if state.generation == generation && !state.queued {
            state.queued = true;
            self.queue.borrow_mut().push_back(index);
        }
    }

    /// The task to run next.
    pub(super) fn pop(&self, order: TaskOrder, rng: &Rng) -> Option<u32> {
        let mut queue = self.queue.borrow_mut();
        let index = match order {
            TaskOrder::Seeded if queue.len() > 1 => {
                let drawn = rng.below(queue.len() as u64) as usize;
                queue.swap_remove_front(drawn)?
            }
            _ => queue.pop_front()?,
        };
        self.states.borrow_mut()[index as usize].queued = false;
        Some(index)
    }

    /// Makes a slot's task ready for its first poll.
    pub(super) fn start(&self, index: u32) {
        let generation = {
            let mut states = self.states.borrow_mut();
            if states.len() <= index as usize {
                assert!(index <= low_bits(INDEX_BITS), "more than 2^{INDEX_BITS} tasks at once");
                states.resize(index as usize + 1, State::default());
            }
            states[index as usize].generation
        };
        self.push(index, generation);
    }

    /// A task has ended: wakers that still name it wake nobody.
    pub(super) fn end(&self, index: u32) {
        let state = &mut self.states.borrow_mut()[index as usize];
        state.generation = (state.generation + 1) & low_bits(GENERATION_BITS);
        if state.queued {
            state.queued = false;
            self.queue.borrow_mut().retain(|other| *other != index);
        }
    }
}

/// The tasks themselves; a slot is empty while its task is polled.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
}

impl Tasks {
    pub(super) fn add(&mut self, task: Task) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(task);
            return index;
        }
        if self.slots.is_empty() {
            self.slots.push(None);
        }
        self.slots.push(Some(task));
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 tasks fit in memory")
    }

    pub(super) fn take(&mut self, index: u32) -> Option<Task> {
        self.slots[index as usize].take()
    }

    pub(super) fn put_back(&mut self, index: u32, task: Task) {
        self.slots[index as usize] = Some(task);
    }

    pub(super) fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    pub(super) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// All of them, for being dropped while nothing is borrowed.
    pub(super) fn take_all(&mut self) -> Vec<Option<Task>> {
        self.free.clear();
        std::mem::take(&mut self.slots)
    }
}

const fn low_bits(count: u32) -> u32 {
    (1 << count) - 1
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, |_| ());

fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &TABLE)
}

fn wake(data: *const ()) {
    let number = data.addr() as u64;
    let index = number as u32 & low_bits(INDEX_BITS);
    let generation = (number >> INDEX_BITS) as u32 & low_bits(GENERATION_BITS);
    let world = (number >> (INDEX_BITS + GENERATION_BITS)) as u32;
    // A thread that is ending has no list any more, and nobody to wake.
    let _ = LIVE.try_with(|live| {
        if let Some(ready) = live.borrow().iter().find(|ready| ready.world == world) {
            ready.push(index, generation);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_of_an_ended_task_or_world_wakes_nobody() {
        let rng = Rng::new(1, 1);
        let ready = Ready::new();
        ready.start(1);
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(1));
        let stale = ready.waker(1);
        ready.end(1);
        stale.wake_by_ref();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
        let fresh = ready.waker(1);
        ready.retire();
        fresh.wake_by_ref();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }

    #[test]
    fn a_task_that_is_woken_twice_runs_once() {
        let rng = Rng::new(1, 1);
        let ready = Ready::new();
        ready.start(3);
        ready.waker(3).wake();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(3));
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
        ready.retire();
    }

    #[test]
    fn worlds_on_one_thread_do_not_wake_each_other() {
        let rng = Rng::new(1, 1);
        let (one, other) = (Ready::new(), Ready::new());
        one.waker(MAIN).wake();
        assert_eq!(other.pop(TaskOrder::Fifo, &rng), None);
        assert_eq!(one.pop(TaskOrder::Fifo, &rng), Some(MAIN));
        one.retire();
        other.retire();
    }
}
