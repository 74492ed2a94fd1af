//! Tasks and who is to run next: one thread, first come first served or drawn from the seed.
//!
//! A task's waker is made when its slot is, and serves every later task of that slot unless somebody still holds it, so that
//! neither waking nor polling allocates and a waker that was left over wakes nobody.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use crate::rng::Rng;

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

/// Indices of the tasks that are ready. Wakers are `Send` by their type, hence the lock; nobody ever waits for it.
#[derive(Default)]
struct Queue(Mutex<VecDeque<u32>>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.0.lock().expect("nothing panics while it holds the queue")
    }
}

/// What a waker points to.
struct Slot {
    index: u32,
    queued: AtomicBool,
    queue: Arc<Queue>,
}

impl Slot {
    fn new(index: u32, queue: &Arc<Queue>) -> Arc<Slot> {
        Arc::new(Slot { index, queued: AtomicBool::new(false), queue: Arc::clone(queue) })
    }
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue.lock().push_back(self.index);
        }
    }
}

/// Who is ready: the part of the executor that wakers reach.
#[derive(Default)]
pub(super) struct Ready {
    queue: Arc<Queue>,
    slots: RefCell<Vec<Arc<Slot>>>,
}

impl Ready {
    /// Nobody is ready any more.
    pub(super) fn clear(&self) {
        self.queue.lock().clear();
    }

    /// The waker of a task that was started.
    pub(super) fn waker(&self, index: u32) -> Waker {
        Waker::from(Arc::clone(&self.slots.borrow()[index as usize]))
    }

    /// Makes a slot's new task ready for its first poll.
    pub(super) fn start(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        while slots.len() <= index as usize {
            let next = slots.len() as u32;
            slots.push(Slot::new(next, &self.queue));
        }
        slots[index as usize].wake_by_ref();
    }

    /// The task to run next.
    pub(super) fn pop(&self, order: TaskOrder, rng: &Rng) -> Option<u32> {
        let mut queue = self.queue.lock();
        let index = match order {
            TaskOrder::Seeded if queue.len() > 1 => {
                let drawn = rng.below(queue.len() as u64) as usize;
                queue.swap_remove_front(drawn)?
            }
            _ => queue.pop_front()?,
        };
        drop(queue);
        self.slots.borrow()[index as usize].queued.store(false, Ordering::Relaxed);
        Some(index)
    }

    /// A task has ended: wakers that still name it wake nobody.
    pub(super) fn end(&self, index: u32) {
        let slot = &mut self.slots.borrow_mut()[index as usize];
        if slot.queued.load(Ordering::Relaxed) {
            self.queue.lock().retain(|other| *other != index);
        }
        // A waker that is left over keeps the old slot, marked as queued for good.
        if Arc::strong_count(slot) > 1 {
            slot.queued.store(true, Ordering::Relaxed);
            *slot = Slot::new(index, &self.queue);
        } else {
            slot.queued.store(false, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_of_an_ended_task_wakes_nobody() {
        let (rng, ready) = (Rng::new(1, 1), Ready::default());
        ready.start(1);
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(1));
        let stale = ready.waker(1);
        ready.end(1);
        stale.wake_by_ref();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
        ready.start(1);
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(1));
        stale.wake();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }

    #[test]
    fn a_task_that_is_woken_twice_runs_once() {
        let (rng, ready) = (Rng::new(1, 1), Ready::default());
        ready.start(3);
        ready.waker(3).wake();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(3));
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }

    #[test]
    fn a_task_that_ends_while_it_is_ready_does_not_run_again() {
        let (rng, ready) = (Rng::new(1, 1), Ready::default());
        ready.start(1);
        ready.start(2);
        ready.end(1);
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(2));
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }
}
