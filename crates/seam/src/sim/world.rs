//! A world: clock, tasks, timers, randomness, disks and connections, all from one seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use super::block::{Pool, StoredContent};
use super::executor::{MAIN, ReadyTasks, TaskOrder, Tasks};
use super::metadata_sectors::MetadataSectors;
use super::persist::{PersistTags, PersistedPool};
use super::timer::{Action, Event, Timers};
use super::trace::{Trace, TraceEntry, TraceMode, TraceOp, TracePhase};
use super::{SimBlockMut, SimSeam};
use crate::Nanos;
use crate::rng::Rng;

/// Number of polls at one instant that counts as a livelock.
const POLLS_AT_ONE_INSTANT_MAX: u64 = 20_000_000;

/// Configuration of a world.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// Seed of all randomness.
    pub seed: u64,
    /// Order of ready tasks.
    pub order: TaskOrder,
    /// Ceiling of the buffers, in 4 KiB blocks.
    pub blocks: usize,
    /// Content that buffers and disks keep.
    pub content: StoredContent,
    /// Extent of the recorded trace.
    pub trace: TraceMode,
    /// Buffers and their persistence tags outlive the process ([`World::persisted_pool`]).
    pub persists_memory: bool,
    /// Virtual time at which [`World::run_until`] gives up. Without it, periodic background work would hide a deadlock.
    pub time_max: Nanos,
}

impl WorldSpec {
    /// A world for measurements and plain tests: tasks in order of readiness, 64 MiB of buffers.
    pub fn new(seed: u64) -> WorldSpec {
        WorldSpec {
            seed,
            order: TaskOrder::Fifo,
            blocks: 16_384,
            content: StoredContent::Tags,
            trace: TraceMode::Hash,
            persists_memory: false,
            time_max: Nanos::MAX,
        }
    }
}

/// Reason why a world stopped before the awaited future was ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// No task is ready, no timer is set, and the future still waits.
    #[error("deadlock at {now}: no task is ready, no timer is set, {tasks} tasks wait for ever")]
    Deadlock {
        /// Virtual time.
        now: Nanos,
        /// Waiting tasks, excluding the awaited future.
        tasks: usize,
    },
    /// Tasks keep waking each other and time stands still.
    #[error("livelock at {now}: {POLLS_AT_ONE_INSTANT_MAX} polls and the clock has not moved")]
    Livelock {
        /// Virtual time.
        now: Nanos,
    },
    /// [`WorldSpec::time_max`] has passed and the future still waits.
    #[error("the awaited future is not ready at {now}, the end of the time that the world was given")]
    OutOfTime {
        /// Virtual time.
        now: Nanos,
    },
    /// The I/O of [`World::crash_at_io`] has been reached.
    #[error("the world reached the I/O at which it was to crash")]
    CrashPoint,
}

/// State shared by all handles of a world.
pub(super) struct WorldState {
    pub(super) spec: WorldSpec,
    clock: Cell<Nanos>,
    pub(super) engine_rng: Rng,
    order_rng: Rng,
    pub(super) disk_rng: Rng,
    pub(super) wire_rng: Rng,
    ready: ReadyTasks,
    tasks: RefCell<Tasks>,
    pub(super) timers: RefCell<Timers>,
    trace: RefCell<Trace>,
    pub(super) disks: RefCell<BTreeMap<PathBuf, Rc<super::disk::DiskInner>>>,
    pub(super) metadata: Rc<MetadataSectors>,
    pub(super) network: super::listener::Network,
    violations: RefCell<Vec<String>>,
    io_count: Cell<u64>,
    /// I/O count at which the world stops.
    io_stop: Cell<u64>,
    next_number: Cell<u32>,
    over: Cell<bool>,
    running: Cell<bool>,
}

impl WorldState {
    pub(super) fn now(&self) -> Nanos {
        self.clock.get()
    }

    pub(super) fn spend(&self, cost: Nanos) {
        self.clock.set(self.now() + cost);
    }

    /// True after the end of the world: no task runs any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    pub(super) fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        if self.is_over() {
            return;
        }
        let index = self.tasks.borrow_mut().add(task);
        self.ready.start(index);
    }

    /// Assigns a number that identifies a disk or a stream in the trace.
    pub(super) fn assign_number(&self) -> u32 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    pub(super) fn schedule(&self, at: Nanos, event: Rc<dyn Event>, token: u64) {
        self.timers.borrow_mut().add_event(at, event, token);
    }

    pub(super) fn record(&self, source: u32, op: TraceOp, phase: TracePhase, at: u64, len: u64, content: u64) {
        self.trace.borrow_mut().add(TraceEntry { time: self.now(), source, op, phase, at, len, content });
    }

    /// Counts a submission or completion of an I/O, at which a run may stop.
    pub(super) fn count_io(&self) {
        self.io_count.set(self.io_count.get() + 1);
    }

    fn is_crash_point(&self) -> bool {
        self.io_count.get() >= self.io_stop.get()
    }

    pub(super) fn record_violation(&self, message: String) {
        self.violations.borrow_mut().push(message);
    }
}

/// A world. It owns all its tasks, disks and connections; dropping it discards them without running any task.
pub struct World {
    pub(super) shared: Rc<WorldState>,
    pool: Rc<Pool>,
}

impl World {
    /// An empty world at time 0.
    pub fn new(spec: WorldSpec) -> World {
        let seed = spec.seed;
        let metadata = Rc::<MetadataSectors>::default();
        let persist_tags = spec.persists_memory.then(PersistTags::default);
        let pool = Pool::new(spec.blocks, spec.content, Rc::clone(&metadata), persist_tags);
        let shared = WorldState {
            clock: Cell::new(Nanos::ZERO),
            engine_rng: Rng::new(seed, 1),
            order_rng: Rng::new(seed, 2),
            disk_rng: Rng::new(seed, 3),
            wire_rng: Rng::new(seed, 4),
            ready: ReadyTasks::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            trace: RefCell::new(Trace::new(spec.trace)),
            disks: RefCell::default(),
            metadata,
            network: super::listener::Network::default(),
            violations: RefCell::default(),
            io_count: Cell::new(0),
            io_stop: Cell::new(u64::MAX),
            next_number: Cell::new(0),
            over: Cell::new(false),
            running: Cell::new(false),
            spec,
        };
        World { shared: Rc::new(shared), pool }
    }

    /// The seam of the world for the engine.
    pub fn seam(&self) -> SimSeam {
        SimSeam { world: Rc::clone(&self.shared), pool: Rc::clone(&self.pool) }
    }

    /// The seam of another core: the same clock, disks and connections, with its own `blocks` buffers.
    pub fn another_core(&self, blocks: usize) -> SimSeam {
        let pool = Pool::new(blocks, self.shared.spec.content, Rc::clone(&self.shared.metadata), None);
        SimSeam { world: Rc::clone(&self.shared), pool }
    }

    /// Counts the handles and buffers that remain after the end of the world.
    pub fn leak_check(&self) -> LeakCheck {
        LeakCheck { shared: Rc::downgrade(&self.shared), pool: Rc::downgrade(&self.pool) }
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.shared.now()
    }

    /// Buffers allocated through [`World::seam`] and not returned.
    pub fn blocks_out(&self) -> usize {
        self.pool.allocated.get()
    }

    /// A buffer with one tag per sector, for a test's client.
    pub fn block(&self, tags: [u64; crate::SECTORS_PER_BLOCK]) -> Option<SimBlockMut> {
        let mut block = self.pool.alloc()?;
        block.set_tags(0, &tags);
        Some(block)
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        self.shared.trace.borrow().clone()
    }

    /// Appends an entry of the test to the trace.
    pub fn add_trace_entry(&self, at: u64, len: u64, content: u64) {
        self.shared.record(0, TraceOp::Note, TracePhase::Done, at, len, content);
    }

    /// Broken rules that no result shows: a buffer that changed during its write to a disk (R1, docs/rules.md), or a
    /// buffer returned with a persistence tag.
    pub fn violations(&self) -> Vec<String> {
        let dropped_tags = self.pool.persist_tags.iter().flat_map(PersistTags::violations);
        self.shared.violations.borrow().iter().cloned().chain(dropped_tags).collect()
    }

    /// The memory image that a kill of the process would leave now.
    pub fn persisted_pool(&self) -> PersistedPool {
        self.pool.persist_tags.as_ref().map_or_else(PersistedPool::default, PersistTags::persisted_pool)
    }

    /// Submissions and completions of disk operations so far.
    pub fn io_count(&self) -> u64 {
        self.shared.io_count.get()
    }

    /// Makes every run stop with [`Stop::CrashPoint`] once [`World::io_count`] reaches `count`.
    pub fn crash_at_io(&self, count: u64) {
        self.shared.io_stop.set(count);
    }

    /// Runs until `future` is ready; drops it if the world stops before.
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> Result<T, Stop> {
        let mut future = pin!(future);
        self.shared.ready.start(MAIN);
        let waker = self.shared.ready.waker(MAIN);
        let ended = self.run_loop(Nanos::MAX, || match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        });
        drop(waker);
        self.shared.ready.end(MAIN);
        ended.map(|value| value.expect("a run without an end time returns only when its future is ready"))
    }

    /// Runs until `future` is ready.
    ///
    /// # Panics
    /// If the world stops before that; the message names the seed.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.run_until(future).unwrap_or_else(|stop| panic!("seed {}: {stop}", self.shared.spec.seed))
    }

    /// Runs for `time`, even without work. A deadlock is no error here: clients may come later.
    pub fn run_for(&self, time: Nanos) -> Result<(), Stop> {
        self.run_loop(self.now() + time, || None::<()>).map(|_| ())
    }

    fn run_loop<T>(&self, end: Nanos, mut poll_main: impl FnMut() -> Option<T>) -> Result<Option<T>, Stop> {
        let world = &*self.shared;
        assert!(!world.running.replace(true), "a task inside the world must not run the world");
        let _running = FlagReset(&world.running);
        let (mut instant, mut polls) = (world.now(), 0);
        loop {
            if world.now() > instant {
                (instant, polls) = (world.now(), 0);
            }
            polls += 1;
            if polls > POLLS_AT_ONE_INSTANT_MAX {
                return Err(Stop::Livelock { now: instant });
            }
            if end != Nanos::MAX && world.now() >= end {
                return Ok(None);
            }
            if end == Nanos::MAX && world.now() >= world.spec.time_max {
                return Err(Stop::OutOfTime { now: world.now() });
            }
            self.fire_due();
            if world.is_crash_point() {
                return Err(Stop::CrashPoint);
            }
            match world.ready.pop(world.spec.order, &world.order_rng) {
                Some(MAIN) => {
                    if let Some(value) = poll_main() {
                        return Ok(Some(value));
                    }
                }
                Some(index) => self.poll_task(index),
                None => {
                    let next = world.timers.borrow_mut().next_at();
                    match next {
                        Some(at) if at <= end => world.clock.set(at.max(world.now())),
                        _ if end == Nanos::MAX => {
                            return Err(Stop::Deadlock { now: instant, tasks: world.tasks.borrow().count() });
                        }
                        _ => {
                            world.clock.set(end.max(world.now()));
                            return Ok(None);
                        }
                    }
                }
            }
        }
    }

    /// Runs the actions of all timers whose time has come.
    fn fire_due(&self) {
        while !self.shared.is_crash_point() {
            let due = self.shared.timers.borrow_mut().pop_due(self.shared.now());
            match due {
                Some(Action::Wake(waker)) => waker.wake(),
                Some(Action::Fire(event, token)) => event.fire(token),
                None => return,
            }
        }
    }

    fn poll_task(&self, index: u32) {
        let world = &*self.shared;
        let taken = world.tasks.borrow_mut().take(index);
        let Some(mut task) = taken else { return };
        let waker = world.ready.waker(index);
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => world.tasks.borrow_mut().put_back(index, task),
            Poll::Ready(()) => {
                drop(task);
                drop(waker);
                world.ready.end(index);
                world.tasks.borrow_mut().release(index);
            }
        }
    }

    /// Discards tasks, timers and connections; the disks keep their content.
    pub(super) fn end(&self) {
        let world = &*self.shared;
        world.over.set(true);
        world.ready.clear();
        world.network.clear();
        let timers = std::mem::take(&mut *world.timers.borrow_mut());
        drop(timers);
        let tasks = world.tasks.borrow_mut().take_all();
        drop(tasks);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end();
        let disks = std::mem::take(&mut *self.shared.disks.borrow_mut());
        disks.values().for_each(|disk| disk.discard_operations());
    }
}

/// Weak references that count a world's remaining handles and buffers.
pub struct LeakCheck {
    shared: Weak<WorldState>,
    pool: Weak<Pool>,
}

impl LeakCheck {
    /// Remaining handles to the world.
    pub fn world(&self) -> usize {
        self.shared.strong_count()
    }

    /// Remaining handles to the buffer pool, including allocated buffers.
    pub fn buffers(&self) -> usize {
        self.pool.strong_count()
    }
}

/// Clears a flag on every exit, including a panic.
struct FlagReset<'a>(&'a Cell<bool>);

impl Drop for FlagReset<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
