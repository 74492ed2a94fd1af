//! State that clients, administrators and fault injection share during one session: the volumes, their models, and the
//! errors allowed at present.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::{CacheMode, Core, OwnedBlocks, RequestError, Volume, WritePolicy, WriteSource};
use seam::sim::{DiskControl, SimBlockMut, SimDisk, SimSeam};
use seam::{BLOCK_BYTES, Nanos, SECTOR_BYTES, Seam};

use super::history::{OpKind, Outcome};
use super::model::{Finding, Model, Submit};
use super::options::{Options, VolumeOptions};
use crate::content::{OpId, Tag};

/// Time after a fault during which failures that it caused may still be reported.
const GRACE_TIME: Nanos = Nanos::from_secs(2);

/// Longest zero-range of a client.
const ZERO_BYTES_MAX: u64 = 256 << 10;

/// A flag that records whether it has been set at any time since a mark.
#[derive(Default)]
pub struct LatchedFlag {
    on: Cell<bool>,
    /// Number of times that the flag has changed from cleared to set.
    times_on: Cell<u64>,
}

impl LatchedFlag {
    /// Sets or clears the flag.
    pub fn set(&self, on: bool) {
        if on && !self.on.get() {
            self.times_on.set(self.times_on.get() + 1);
        }
        self.on.set(on);
    }

    /// True while the flag is set.
    pub fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Returns a mark for [`LatchedFlag::was_on_since`].
    pub fn mark(&self) -> u64 {
        self.times_on.get() - u64::from(self.on.get())
    }

    /// True if the flag has been set at any time since `mark`.
    pub fn was_on_since(&self, mark: u64) -> bool {
        self.times_on.get() > mark
    }
}

/// Parts of a test volume in one world.
pub struct TestVolumeParts {
    /// Number of the volume in tags and options.
    pub number: u16,
    /// The engine's volume.
    pub volume: Volume<SimSeam>,
    /// The backing as the engine opened it.
    pub disk: SimDisk,
    /// Control of the simulated backing.
    pub control: DiskControl,
}

/// A volume under test.
pub struct TestVolume {
    /// Number of the volume in tags and options.
    pub number: u16,
    /// Drawn options of the volume.
    pub options: VolumeOptions,
    /// Model of the volume's promises.
    pub model: Rc<RefCell<Model>>,
    /// The engine's volume; replaced when the volume is detached and attached again.
    pub volume: RefCell<Volume<SimSeam>>,
    /// The backing as the engine opened it.
    pub disk: SimDisk,
    /// Control of the simulated backing.
    pub control: DiskControl,
    /// Set while a flush promises durability only after the deferral time.
    pub volatile: LatchedFlag,
    /// Set while an acknowledged write may be held by the backing alone.
    pub write_through: LatchedFlag,
    /// Set while the volume is being detached.
    pub detaching: LatchedFlag,
    /// True if the policy has been write-back-volatile during the whole session.
    pub always_volatile: Cell<bool>,
    /// Size in sectors that a resize in flight will set.
    pub resizing: Cell<Option<u64>>,
    /// Set while a fault may fail any request.
    pub may_fail_requests: LatchedFlag,
    /// End of the last fault.
    pub fault_ended: Cell<Option<Nanos>>,
    /// Unreadable byte ranges of the backing; true for ranges that are also unwritable.
    pub bad_ranges: RefCell<Vec<(Range<u64>, bool)>>,
    is_closed: Cell<bool>,
    requests_inside: Cell<u32>,
}

impl TestVolume {
    /// Creates a test volume at the start of a session.
    pub fn new(parts: TestVolumeParts, options: VolumeOptions, model: Rc<RefCell<Model>>) -> TestVolume {
        let test_volume = TestVolume {
            number: parts.number,
            options,
            model,
            volume: RefCell::new(parts.volume),
            disk: parts.disk,
            control: parts.control,
            volatile: LatchedFlag::default(),
            write_through: LatchedFlag::default(),
            detaching: LatchedFlag::default(),
            always_volatile: Cell::new(true),
            resizing: Cell::new(None),
            may_fail_requests: LatchedFlag::default(),
            fault_ended: Cell::new(None),
            bad_ranges: RefCell::default(),
            is_closed: Cell::new(false),
            requests_inside: Cell::new(0),
        };
        test_volume.sync_expectations();
        test_volume
    }

    /// Sets the expectations from the volume's present policy and mode.
    pub fn sync_expectations(&self) {
        let volume = self.volume();
        self.set_expectations(volume.policy(), volume.mode());
    }

    /// Sets the expectations for `policy` and `mode`.
    pub fn set_expectations(&self, policy: WritePolicy, mode: CacheMode) {
        self.volatile.set(policy == WritePolicy::WriteBackVolatile);
        self.write_through.set(!policy.defers_writes() || mode == CacheMode::Paused);
        self.always_volatile.set(self.always_volatile.get() && policy == WritePolicy::WriteBackVolatile);
    }

    /// Sets the expectations for a change in flight: those of the old and of the new policy and mode.
    pub fn expect_either(&self, policy: WritePolicy, mode: CacheMode) {
        self.volatile.set(self.volatile.is_on() || policy == WritePolicy::WriteBackVolatile);
        self.write_through.set(self.write_through.is_on() || !policy.defers_writes() || mode == CacheMode::Paused);
        self.always_volatile.set(self.always_volatile.get() && policy == WritePolicy::WriteBackVolatile);
    }

    /// The currently attached volume.
    pub fn volume(&self) -> Volume<SimSeam> {
        self.volume.borrow().clone()
    }

    /// Sectors that clients may use.
    pub fn sectors(&self) -> u64 {
        self.model.borrow().sectors()
    }

    /// Waits until no administrator requires exclusive access, then enters.
    pub async fn enter(&self, seam: &SimSeam) {
        while self.is_closed.get() {
            seam.sleep(Nanos::from_micros(200)).await;
        }
        self.requests_inside.set(self.requests_inside.get() + 1);
    }

    /// Ends an [`TestVolume::enter`].
    pub fn leave(&self) {
        self.requests_inside.set(self.requests_inside.get() - 1);
    }

    /// Excludes new clients and waits until the present ones have left.
    pub async fn close(&self, seam: &SimSeam) {
        while self.is_closed.replace(true) {
            seam.sleep(Nanos::from_micros(200)).await;
        }
        while self.requests_inside.get() > 0 {
            seam.sleep(Nanos::from_micros(200)).await;
        }
    }

    /// Admits clients again.
    pub fn open(&self) {
        self.is_closed.set(false);
    }

    /// True when a request that began at `at_start` may fail with `error`. `range` holds the bytes that it accessed; it
    /// is `None` for a flush and similar requests. `changes` is true for requests that write.
    pub fn may_fail(
        &self,
        error: &RequestError,
        at_start: &OperationStart,
        range: Option<Range<u64>>,
        changes: bool,
    ) -> bool {
        let is_in_grace = self.fault_ended.get().is_some_and(|ended| ended + GRACE_TIME >= at_start.began);
        match error {
            RequestError::Invalid
            | RequestError::ReadOnly
            | RequestError::NotFast
            | RequestError::Dirty(_)
            | RequestError::MovedAway
            | RequestError::NotOwner => false,
            RequestError::ShuttingDown => self.detaching.was_on_since(at_start.detaching),
            RequestError::Disk(_) => {
                self.may_fail_requests.was_on_since(at_start.may_fail_requests)
                    || is_in_grace
                    || self.accesses_bad_range(range, changes)
            }
        }
    }

    /// True when a request for `range` must access a part of the backing that cannot be read or written.
    fn accesses_bad_range(&self, range: Option<Range<u64>>, changes: bool) -> bool {
        let unit = u64::from(self.options.logical_block);
        let needs_read = unit > SECTOR_BYTES as u64;
        self.bad_ranges.borrow().iter().any(|(bad, unwritable)| match &range {
            // A backing with 4 KiB blocks accepts whole blocks only, so the missing part must be read.
            None => *unwritable || needs_read,
            Some(range) if changes => {
                // The write may have been replaced by another client's zero-range, which fails as a whole.
                let reach = ZERO_BYTES_MAX;
                let is_in_reach = range.start < bad.end + reach && range.end + reach > bad.start;
                is_in_reach && (*unwritable || needs_read)
            }
            Some(range) => {
                let accessed = range.start / unit * unit..range.end.next_multiple_of(unit);
                accessed.start < bad.end && accessed.end > bad.start
            }
        })
    }
}

/// State at the beginning of an operation.
pub struct OperationStart {
    began: Nanos,
    volatile: u64,
    detaching: u64,
    may_fail_requests: u64,
    range: Option<Range<u64>>,
    changes: bool,
}

/// One session: the engine in one world, from its start to its end.
pub struct Session {
    /// The world's seam, which the engine runs on.
    pub seam: SimSeam,
    /// The engine.
    pub core: Core<SimSeam>,
    /// The volumes.
    pub test_volumes: Vec<TestVolume>,
    /// The drawn options.
    pub options: Rc<Options>,
    /// Client operations of this session.
    pub operations: u64,
    /// Client operations left in this session.
    pub operations_left: Cell<u64>,
    /// Blocks and zero-ranges recovered from the previous session's memory.
    pub recovered_from_memory: u64,
    /// Running clients, administrators and fault injectors.
    pub running_tasks: Cell<u32>,
    /// The first violated promise, with its volume's number.
    pub finding: RefCell<Option<(u16, Finding)>>,
    waker: RefCell<Option<Waker>>,
}

impl Session {
    /// Creates a session without clients.
    pub fn new(core: Core<SimSeam>, test_volumes: Vec<TestVolume>, options: Rc<Options>, operations: u64) -> Session {
        Session {
            seam: core.seam().clone(),
            core,
            test_volumes,
            options,
            operations,
            operations_left: Cell::new(operations),
            recovered_from_memory: 0,
            running_tasks: Cell::new(0),
            finding: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    /// Takes one of the remaining operations; false when none is left or a promise is violated.
    pub fn take_operation(&self) -> bool {
        let remaining = self.operations_left.get();
        if remaining == 0 || self.finding.borrow().is_some() {
            self.operations_left.set(0);
            self.notify();
            return false;
        }
        self.operations_left.set(remaining - 1);
        true
    }

    /// True when no operations are left.
    pub fn is_exhausted(&self) -> bool {
        self.operations_left.get() == 0
    }

    /// Records a violated promise; only the first is kept.
    pub fn report(&self, test_volume: &TestVolume, result: Result<(), Finding>) {
        if let Err(finding) = result {
            self.finding.borrow_mut().get_or_insert((test_volume.number, finding));
            self.operations_left.set(0);
            self.notify();
        }
    }

    /// Records that a client, administrator or fault injector has ended.
    pub fn leave(&self) {
        self.running_tasks.set(self.running_tasks.get() - 1);
        self.notify();
    }

    /// Waits until `condition` holds. The condition is evaluated when a task ends, operations run out or a promise is
    /// violated.
    pub async fn wait_until(&self, condition: impl Fn(&Session) -> bool) {
        poll_fn(|context| {
            if condition(self) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn notify(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Begins an operation of `client` on the sectors.
    pub fn begin(
        &self,
        test_volume: &TestVolume,
        client: u16,
        kind: OpKind,
        sectors: Range<u64>,
        fua: bool,
    ) -> (OpId, OperationStart) {
        let is_whole_volume = matches!(kind, OpKind::Flush | OpKind::Drain(_) | OpKind::Event(_));
        let bytes = sectors.start * SECTOR_BYTES as u64..sectors.end * SECTOR_BYTES as u64;
        let at_start = OperationStart {
            began: self.seam.now(),
            volatile: test_volume.volatile.mark(),
            detaching: test_volume.detaching.mark(),
            may_fail_requests: test_volume.may_fail_requests.mark(),
            range: (!is_whole_volume && !fua).then_some(bytes),
            changes: kind.changes(),
        };
        let submit = Submit {
            client,
            first: sectors.start,
            count: sectors.end - sectors.start,
            fua,
            write_through: test_volume.write_through.is_on(),
        };
        (test_volume.model.borrow_mut().begin(kind, submit, self.seam.now()), at_start)
    }

    /// Ends an operation without content and reports an error that is not allowed. True when the operation succeeded.
    pub fn end(
        &self,
        test_volume: &TestVolume,
        op: OpId,
        at_start: &OperationStart,
        result: &Result<(), RequestError>,
    ) -> bool {
        let volatile = test_volume.volatile.was_on_since(at_start.volatile);
        let outcome = match result {
            Ok(()) => Outcome::Ok,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        test_volume.model.borrow_mut().end(op, outcome, volatile, self.seam.now());
        if let Err(error) = result
            && !test_volume.may_fail(error, at_start, at_start.range.clone(), at_start.changes)
        {
            let message = format!("op {op} failed although its part of the backing was healthy: {error}");
            self.report(
                test_volume,
                Err(Finding {
                    message,
                    sector: at_start.range.as_ref().map(|range| range.start / SECTOR_BYTES as u64),
                }),
            );
        }
        result.is_ok()
    }
}

/// Source of a write's content: a tag per sector.
pub struct TagSource {
    /// The volume's number.
    pub volume: u16,
    /// The operation.
    pub op: OpId,
    /// Its first sector.
    pub first: u64,
}

impl TagSource {
    /// Content of a write of `len` bytes in whole blocks, in the engine's own buffers; `None` when there are too few.
    pub fn blocks(&mut self, volume: &Volume<SimSeam>, len: usize) -> Option<OwnedBlocks<SimSeam>> {
        let mut blocks = volume.try_alloc_buffers(len / BLOCK_BYTES)?;
        for (index, block) in blocks.iter_mut().enumerate() {
            self.fill(index * BLOCK_BYTES, block, 0, BLOCK_BYTES);
        }
        Some(OwnedBlocks::new(blocks))
    }
}

impl WriteSource<SimSeam> for TagSource {
    fn fill(&mut self, from: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        assert!([from, at, len].iter().all(|value| value.is_multiple_of(SECTOR_BYTES)), "a source fills whole sectors");
        let first = self.first + (from / SECTOR_BYTES) as u64;
        for (index, sector) in (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).enumerate() {
            block.set_tag(sector, Tag::new(self.volume, self.op, first + index as u64).0);
        }
    }
}
