//! One core: an event loop on one thread over compio's runtime, which spins briefly before it sleeps.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use compio::driver::{OpCode, OpEntry, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};

use super::persist::PersistFile;
use super::pool::Pool;
use super::spin::{LoadMonitor, SpinPolicy};
use super::submitter::FailureDomains;
use super::{RealError, RealSeam};
use crate::Nanos;

/// Configuration of a core.
#[derive(Clone, Debug)]
pub struct RealCoreSpec {
    /// Memory for blocks and their headers, in bytes: the ceiling of [`crate::Seam::alloc`]. The kernel allocates pages
    /// on first use.
    pub pool_bytes: usize,
    /// The file that holds the blocks, if they must outlive the process; `None`: private memory.
    pub persist_file: Option<PersistFile>,
    /// The processor that the thread is pinned to; `None`: not pinned.
    pub cpu: Option<usize>,
    /// Longest spin before sleeping, in nanoseconds; 0: none. [`SPIN_NS`] suits most machines.
    pub spin_ns: u64,
}

impl RealCoreSpec {
    /// A core with this much memory, not pinned, with the default spin.
    pub fn new(pool_bytes: usize) -> RealCoreSpec {
        RealCoreSpec { pool_bytes, persist_file: None, cpu: None, spin_ns: SPIN_NS }
    }
}

/// Default limit of the spin before sleeping, in nanoseconds. The actual spin adapts to recent waits: a tenth of the
/// limit if clients answer within a few microseconds, all of it only if a wake-up takes that long (virtual machines).
/// An SSD takes longer. Spinning for its answer would cost more than a wake-up, and would push clients to another
/// processor, which slows both.
pub const SPIN_NS: u64 = 40_000;

/// A terminating core abandons its disk operations after this time without a completion.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of disk operations gathered before they are submitted to the kernel. If all were submitted at once, the
/// device would idle while the core processes client requests, and the core would idle afterwards.
const UNSUBMITTED_MAX: usize = 4;

/// State shared by all handles of a core.
pub(super) struct Core {
    pub(super) pool: Pool,
    /// Disk operations in flight in the kernel.
    pub(super) in_flight: Cell<usize>,
    /// Disk operations in the ring since the last submission.
    unsubmitted: Cell<usize>,
    /// `main` has ended.
    pub(super) closing: Cell<bool>,
    /// Number of task polls; a change means that the core had work.
    polls: Cell<u64>,
    panic: RefCell<Option<Box<dyn Any + Send>>>,
    pub(super) domains: FailureDomains,
    random: RefCell<RandomBatch>,
}

/// Count of random numbers fetched from the operating system at a time.
const RANDOM_BATCH: usize = 64;

/// Random numbers, used from the last one down.
struct RandomBatch {
    numbers: [u64; RANDOM_BATCH],
    left: usize,
}

impl Core {
    /// A random number from the operating system.
    pub(super) fn random(&self) -> u64 {
        let mut batch = self.random.borrow_mut();
        if batch.left == 0 {
            // SAFETY: the buffer has the stated length.
            let filled_bytes = unsafe { libc::getrandom(batch.numbers.as_mut_ptr().cast(), RANDOM_BATCH * 8, 0) };
            // A request above 256 bytes may be cut short or interrupted by a signal; it is then repeated whole.
            if filled_bytes != (RANDOM_BATCH * 8) as isize {
                drop(batch);
                return self.random();
            }
            batch.left = RANDOM_BATCH;
        }
        batch.left -= 1;
        batch.numbers[batch.left]
    }

    /// Records a disk operation that was put in the ring; submits the ring once enough are gathered.
    pub(super) fn record_queued(&self) {
        self.unsubmitted.set(self.unsubmitted.get() + 1);
        if self.unsubmitted.get() == UNSUBMITTED_MAX {
            self.unsubmitted.set(0);
            Runtime::with_current(|runtime| {
                // `flush` clears the wake-up flag of the core; the next wait must still see it.
                if runtime.flush() {
                    runtime.waker().wake();
                }
            });
        }
    }

    /// Runs `task` on this core. A closing core starts none.
    pub(super) fn spawn(self: &Rc<Core>, task: impl Future<Output = ()> + 'static) {
        if self.closing.get() {
            return;
        }
        let counted = CountedTask { core: self.clone(), task };
        Runtime::with_current(|runtime| runtime.spawn(counted)).detach();
    }
}

/// Zero point of the clocks of all cores in this process.
fn clock_start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Time since [`clock_start`].
pub(super) fn now() -> Nanos {
    Nanos(clock_start().elapsed().as_nanos() as u64)
}

/// Time since [`clock_start`], as of the scheduler's last tick: up to 10 ms behind [`now`], and cheaper.
pub(super) fn coarse_now() -> Nanos {
    static START: OnceLock<Nanos> = OnceLock::new();
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one timespec, and the pointer refers to one.
        let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
        debug_assert_eq!(failed, 0, "every Linux has this clock");
        Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    // Both clocks have the same zero point.
    let start = *START.get_or_init(|| Nanos(read(libc::CLOCK_MONOTONIC).0 - now().0));
    read(libc::CLOCK_MONOTONIC_COARSE).since(start)
}

/// The instant of `at`; an instant out of range becomes a year from now.
pub(super) fn instant(at: Nanos) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    clock_start().checked_add(Duration::from_nanos(at.0)).unwrap_or_else(|| Instant::now() + YEAR)
}

/// A task that counts its polls. Its panic ends the whole core, because the engine cannot run without one of its tasks.
struct CountedTask<F> {
    core: Rc<Core>,
    task: F,
}

impl<F: Future<Output = ()>> Future for CountedTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `task` is pinned with `self` and never moved out of it.
        let (core, task) = unsafe {
            let this = self.get_unchecked_mut();
            (&this.core, Pin::new_unchecked(&mut this.task))
        };
        core.polls.set(core.polls.get() + 1);
        catch_unwind(AssertUnwindSafe(|| task.poll(context))).unwrap_or_else(|panic| {
            *core.panic.borrow_mut() = Some(panic);
            Poll::Ready(())
        })
    }
}

/// Runs one core on this thread until the future returned by `main` completes, and returns its output.
///
/// Remaining tasks are then dropped. Disk operations in flight are awaited until none has completed for
/// [`DRAIN_TIMEOUT`]. A hung operation then keeps the core's memory, and the kernel keeps the process until the
/// operation completes. A panic of any task is propagated.
pub fn run_core<F, T>(spec: RealCoreSpec, main: impl FnOnce(RealSeam) -> F) -> Result<T, RealError>
where
    F: Future<Output = T> + 'static,
    T: 'static,
{
    if let Some(cpu) = spec.cpu {
        pin(cpu).map_err(|error| RealError::Pin { cpu, error })?;
    }
    let runtime = runtime()?;
    let pool = Pool::new(spec.pool_bytes, spec.persist_file.as_ref());
    let pool = pool.map_err(|error| match spec.persist_file {
        Some(PersistFile { path, .. }) => RealError::PersistFile { path, error },
        None => RealError::Memory { bytes: spec.pool_bytes, error },
    })?;
    let core = Rc::new(Core {
        pool,
        in_flight: Cell::new(0),
        unsubmitted: Cell::new(0),
        closing: Cell::new(false),
        polls: Cell::new(0),
        panic: RefCell::new(None),
        domains: FailureDomains::default(),
        random: RefCell::new(RandomBatch { numbers: [0; RANDOM_BATCH], left: 0 }),
    });
    clock_start();
    let output = Rc::new(Cell::new(None));
    runtime.enter(|| {
        let (main, core_and_output) = (main(RealSeam { core: core.clone() }), (core.clone(), output.clone()));
        core.spawn(async move {
            let value = main.await;
            core_and_output.1.set(Some(value));
            core_and_output.0.closing.set(true);
        });
        let waker = runtime.waker();
        let (mut spin, mut load_monitor) = (SpinPolicy::new(spec.spin_ns), LoadMonitor::new());
        while !core.closing.get() {
            core.unsubmitted.set(0);
            let has_more = runtime.run();
            if let Some(panic) = core.panic.take() {
                core.closing.set(true);
                drain(&runtime, &core);
                resume_unwind(panic);
            }
            if has_more {
                poll_ring(&runtime, &waker);
            } else if !core.closing.get() {
                wait_for_work(&runtime, &core, &waker, &mut spin, &mut load_monitor);
            }
        }
        drain(&runtime, &core);
    });
    Ok(output.take().expect("the loop ends when the output is set"))
}

/// Submits queued operations and collects completions without waiting. The wake-up counts as a notification,
/// so the driver does not wait.
fn poll_ring(runtime: &Runtime, waker: &Waker) {
    waker.wake_by_ref();
    runtime.poll_with(Some(Duration::ZERO));
}

/// Waits for work: spins if that has recently paid off, then sleeps.
///
/// The spin never yields the processor: a yield to a compute-bound thread lasts for milliseconds. The scheduler
/// preempts the spin when it needs the processor, and the resulting longer wait counts against the next spin.
fn wait_for_work(runtime: &Runtime, core: &Core, waker: &Waker, spin: &mut SpinPolicy, load_monitor: &mut LoadMonitor) {
    let budget = spin.budget_ns();
    let started_at = Instant::now();
    if budget > 0 {
        if load_monitor.is_overloaded() {
            spin.pause_for_load();
        }
        let before = core.polls.get();
        loop {
            poll_ring(runtime, waker);
            let has_more = runtime.run();
            let waited = started_at.elapsed().as_nanos() as u64;
            let has_work = core.polls.get() != before;
            if has_work {
                spin.record_spin(waited);
            }
            if has_work || has_more || core.panic.borrow().is_some() {
                return;
            }
            if waited >= budget {
                break;
            }
        }
    }
    runtime.poll_with(runtime.current_timeout());
    spin.record_sleep(started_at.elapsed().as_nanos() as u64, budget > 0);
}

/// Waits for the disk operations in flight. Hung operations keep the memory they point to: the ring, the buffers, the
/// pool.
fn drain(runtime: &Runtime, core: &Rc<Core>) {
    let mut last_change = (core.in_flight.get(), Instant::now());
    while core.in_flight.get() > 0 {
        if last_change.1.elapsed() > DRAIN_TIMEOUT {
            // A submission that never completes keeps the ring alive; tasks and their sockets are dropped regardless.
            let ring = runtime.submit(Nop);
            std::mem::forget((ring, core.clone()));
            return;
        }
        runtime.poll_with(Some(Duration::from_millis(10)));
        if core.in_flight.get() != last_change.0 {
            last_change = (core.in_flight.get(), Instant::now());
        }
    }
}

/// An operation that does nothing.
struct Nop;

// SAFETY: the operation contains no pointers.
unsafe impl OpCode for Nop {
    type Control = ();

    fn create_entry(&mut self, _: &mut ()) -> OpEntry {
        io_uring::opcode::Nop::new().build().into()
    }
}

/// A runtime on io_uring, or the error that prevents it.
fn runtime() -> Result<Runtime, RealError> {
    let mut proactor = ProactorBuilder::new();
    // One thread submits; completions are processed on its request, and a flag in shared memory signals pending ones.
    proactor.capacity(1024).single_issuer(true).defer_taskrun(true).taskrun_flag(true);
    let mut builder = RuntimeBuilder::new();
    builder.with_proactor(proactor).sync_queue_size(1024);
    builder.build().map_err(RealError::io_uring)
}

/// Pins this thread to `cpu`.
fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a zeroed set is an empty set, and `cpu` is within its bounds.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
