//! The task executor: one thread; ready tasks run in order of arrival or in an order drawn from the seed.
//!
//! Tasks that reuse a slot share one waker, unless a clone of the waker outlives its task. Neither waking nor polling
//! allocates, and a stale waker wakes no task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use crate::rng::Rng;

/// Index of the task that `run_until` polls in place. Its entry in `Tasks` stays empty.
pub(super) const MAIN: u32 = 0;

/// Order of ready tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// First come, first served: one interleaving, the natural one.
    #[default]
    Fifo,
    /// Drawn from the seed: each seed gives another interleaving.
    Seeded,
}

pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Indices of the ready tasks. Wakers are `Send` by their type, hence the lock, which is never contended.
#[derive(Default)]
struct ReadyIndices(Mutex<VecDeque<u32>>);

impl ReadyIndices {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.0.lock().expect("no holder of the queue panics")
    }
}

/// The target of a waker.
struct WakeTarget {
    index: u32,
    queued: AtomicBool,
    queue: Arc<ReadyIndices>,
}

impl WakeTarget {
    fn new(index: u32, queue: &Arc<ReadyIndices>) -> Arc<WakeTarget> {
        Arc::new(WakeTarget { index, queued: AtomicBool::new(false), queue: Arc::clone(queue) })
    }
}

impl Wake for WakeTarget {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue.lock().push_back(self.index);
        }
    }
}

/// The ready queue and the waker of each slot.
#[derive(Default)]
pub(super) struct ReadyTasks {
    queue: Arc<ReadyIndices>,
    wake_targets: RefCell<Vec<Arc<WakeTarget>>>,
}

impl ReadyTasks {
    /// Empties the ready queue.
    pub(super) fn clear(&self) {
        self.queue.lock().clear();
    }

    /// The waker of a started task.
    pub(super) fn waker(&self, index: u32) -> Waker {
        Waker::from(Arc::clone(&self.wake_targets.borrow()[index as usize]))
    }

    /// Makes a slot's new task ready for its first poll.
    pub(super) fn start(&self, index: u32) {
        let mut targets = self.wake_targets.borrow_mut();
        while targets.len() <= index as usize {
            let next = targets.len() as u32;
            targets.push(WakeTarget::new(next, &self.queue));
        }
        targets[index as usize].wake_by_ref();
    }

    /// Takes the next task to run.
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
        self.wake_targets.borrow()[index as usize].queued.store(false, Ordering::Relaxed);
        Some(index)
    }

    /// Ends a task: its remaining wakers have no effect.
    pub(super) fn end(&self, index: u32) {
        let target = &mut self.wake_targets.borrow_mut()[index as usize];
        if target.queued.load(Ordering::Relaxed) {
            self.queue.lock().retain(|other| *other != index);
        }
        // A remaining waker keeps the old target, which stays marked as queued.
        if Arc::strong_count(target) > 1 {
            target.queued.store(true, Ordering::Relaxed);
            *target = WakeTarget::new(index, &self.queue);
        } else {
            target.queued.store(false, Ordering::Relaxed);
        }
    }
}

/// The tasks; a slot is empty while its task is polled.
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

    /// Takes all tasks out, so that they are dropped without a borrow.
    pub(super) fn take_all(&mut self) -> Vec<Option<Task>> {
        self.free.clear();
        std::mem::take(&mut self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waker_of_an_ended_task_has_no_effect() {
        let (rng, ready) = (Rng::new(1, 1), ReadyTasks::default());
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
    fn task_woken_twice_runs_once() {
        let (rng, ready) = (Rng::new(1, 1), ReadyTasks::default());
        ready.start(3);
        ready.waker(3).wake();
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(3));
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }

    #[test]
    fn ready_task_that_ends_does_not_run_again() {
        let (rng, ready) = (Rng::new(1, 1), ReadyTasks::default());
        ready.start(1);
        ready.start(2);
        ready.end(1);
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), Some(2));
        assert_eq!(ready.pop(TaskOrder::Fifo, &rng), None);
    }
}
