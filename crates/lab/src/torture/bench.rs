//! What clients, administrators and fate share during one life: the volumes, their models, and what may go wrong now.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::{CacheMode, Core, GivenBlocks, RequestError, Volume, WritePolicy, WriteSource};
use seam::sim::{DiskControl, SimBlockMut, SimDisk, SimSeam};
use seam::{BLOCK_BYTES, Nanos, SECTOR_BYTES, Seam};

use super::content::{OpId, Tag};
use super::history::{OpKind, Outcome};
use super::model::{Finding, Model, Submit};
use super::options::{Options, VolumeOptions};

/// After a trouble has ended, failures that it caused may still be told for this long.
const GRACE: Nanos = Nanos::from_secs(2);

/// Longest zero-range of a client.
const ZERO_BYTES_MAX: u64 = 256 << 10;

/// A condition that may be on for a while, and whether it has been on since a mark.
#[derive(Default)]
pub struct Watch {
    on: Cell<bool>,
    times_on: Cell<u64>,
}

impl Watch {
    /// Turns it on or off.
    pub fn set(&self, on: bool) {
        if on && !self.on.get() {
            self.times_on.set(self.times_on.get() + 1);
        }
        self.on.set(on);
    }

    /// True when it is on.
    pub fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Remembers now.
    pub fn mark(&self) -> u64 {
        self.times_on.get() - u64::from(self.on.get())
    }

    /// True when it has been on at any time since `mark`.
    pub fn since(&self, mark: u64) -> bool {
        self.times_on.get() > mark
    }
}

/// What a subject is made of in one world.
pub struct SubjectParts {
    /// Its number in tags and options.
    pub number: u16,
    /// The engine's volume.
    pub volume: Volume<SimSeam>,
    /// The backing as the engine has it open.
    pub disk: SimDisk,
    /// The backing from behind.
    pub control: DiskControl,
}

/// One volume under torture.
pub struct Subject {
    /// Its number in tags and options.
    pub number: u16,
    /// What was drawn for it.
    pub options: VolumeOptions,
    /// What it promised.
    pub model: Rc<RefCell<Model>>,
    /// The engine's volume; another one after it was detached and attached.
    pub volume: RefCell<Volume<SimSeam>>,
    /// The backing as the engine has it open.
    pub disk: SimDisk,
    /// The backing from behind.
    pub control: DiskControl,
    /// A flush promises durability by age alone.
    pub volatile: Watch,
    /// A write may be held by nobody but the backing.
    pub unheld: Watch,
    /// It is being detached.
    pub detaching: Watch,
    /// Only write-back-volatile so far in this life.
    pub always_volatile: Cell<bool>,
    /// The size that a resize under way would give, in sectors.
    pub resizing: Cell<Option<u64>>,
    /// Requests to any place may fail.
    pub trouble: Watch,
    /// When that last ended.
    pub trouble_ended: Cell<Option<Nanos>>,
    /// Bytes that the backing cannot read, and whether it cannot write them either.
    pub bad: RefCell<Vec<(Range<u64>, bool)>>,
    closed: Cell<bool>,
    inside: Cell<u32>,
}

impl Subject {
    /// A subject at the start of a life.
    pub fn new(parts: SubjectParts, options: VolumeOptions, model: Rc<RefCell<Model>>) -> Subject {
        let subject = Subject {
            number: parts.number,
            options,
            model,
            volume: RefCell::new(parts.volume),
            disk: parts.disk,
            control: parts.control,
            volatile: Watch::default(),
            unheld: Watch::default(),
            detaching: Watch::default(),
            always_volatile: Cell::new(true),
            resizing: Cell::new(None),
            trouble: Watch::default(),
            trouble_ended: Cell::new(None),
            bad: RefCell::default(),
            closed: Cell::new(false),
            inside: Cell::new(0),
        };
        subject.settle();
        subject
    }

    /// Takes over the policy and mode that the volume has now.
    pub fn settle(&self) {
        let volume = self.volume();
        self.expect(volume.policy(), volume.mode());
    }

    /// Reckons with what `policy` and `mode` promise.
    pub fn expect(&self, policy: WritePolicy, mode: CacheMode) {
        self.volatile.set(policy == WritePolicy::WriteBackVolatile);
        self.unheld.set(!policy.defers_writes() || mode == CacheMode::Paused);
        self.always_volatile.set(self.always_volatile.get() && policy == WritePolicy::WriteBackVolatile);
    }

    /// Reckons with both what was and what comes: a change is under way.
    pub fn expect_change(&self, policy: WritePolicy, mode: CacheMode) {
        self.volatile.set(self.volatile.is_on() || policy == WritePolicy::WriteBackVolatile);
        self.unheld.set(self.unheld.is_on() || !policy.defers_writes() || mode == CacheMode::Paused);
        self.always_volatile.set(self.always_volatile.get() && policy == WritePolicy::WriteBackVolatile);
    }

    /// The volume as it is attached now.
    pub fn volume(&self) -> Volume<SimSeam> {
        self.volume.borrow().clone()
    }

    /// Sectors that clients may use now.
    pub fn sectors(&self) -> u64 {
        self.model.borrow().sectors()
    }

    /// Waits until no administrator demands to be alone.
    pub async fn enter(&self, seam: &SimSeam) {
        while self.closed.get() {
            seam.sleep(Nanos::from_micros(200)).await;
        }
        self.inside.set(self.inside.get() + 1);
    }

    /// Ends what [`Subject::enter`] began.
    pub fn leave(&self) {
        self.inside.set(self.inside.get() - 1);
    }

    /// Keeps clients out and waits until those inside have left.
    pub async fn close(&self, seam: &SimSeam) {
        while self.closed.replace(true) {
            seam.sleep(Nanos::from_micros(200)).await;
        }
        while self.inside.get() > 0 {
            seam.sleep(Nanos::from_micros(200)).await;
        }
    }

    /// Lets clients in again.
    pub fn open(&self) {
        self.closed.set(false);
    }

    /// True when the error of a request that began at `began` may be told. `range`: the bytes that it touched, `None` for a flush
    /// and its like. `changes`: it had to write.
    pub fn excused(&self, error: &RequestError, marks: &Marks, range: Option<Range<u64>>, changes: bool) -> bool {
        let late = self.trouble_ended.get().is_some_and(|ended| ended + GRACE >= marks.began);
        match error {
            RequestError::Invalid | RequestError::ReadOnly | RequestError::NotFast | RequestError::Dirty(_) => false,
            RequestError::ShuttingDown => self.detaching.since(marks.detaching),
            RequestError::Disk(_) => self.trouble.since(marks.trouble) || late || self.hit_bad(range, changes),
        }
    }

    /// True when a request for `range` has to touch what the backing cannot read or write.
    fn hit_bad(&self, range: Option<Range<u64>>, changes: bool) -> bool {
        let unit = u64::from(self.options.logical_block);
        let partial = unit > SECTOR_BYTES as u64;
        self.bad.borrow().iter().any(|(bad, unwritable)| match &range {
            // Whole blocks alone can be written to a backing of 4 KiB blocks: the part that is missing has to be read.
            None => *unwritable || partial,
            Some(range) if changes => {
                // Another client's zero-range may have taken its place, and fails as a whole.
                let reach = ZERO_BYTES_MAX;
                let near = range.start < bad.end + reach && range.end + reach > bad.start;
                near && (*unwritable || partial)
            }
            Some(range) => {
                let touched = range.start / unit * unit..range.end.next_multiple_of(unit);
                touched.start < bad.end && touched.end > bad.start
            }
        })
    }
}

/// What was so when an operation began.
pub struct Marks {
    began: Nanos,
    volatile: u64,
    detaching: u64,
    trouble: u64,
    range: Option<Range<u64>>,
    changes: bool,
}

/// One life of the world.
pub struct Life {
    /// The world as the engine sees it.
    pub seam: SimSeam,
    /// The engine.
    pub core: Core<SimSeam>,
    /// The volumes.
    pub subjects: Vec<Subject>,
    /// What was drawn.
    pub options: Rc<Options>,
    /// Client operations that this life may begin in all.
    pub given: u64,
    /// Those that it may still begin.
    pub left: Cell<u64>,
    /// Blocks and zero-ranges taken back from the life before.
    pub taken_back: u64,
    /// Clients and administrators at work.
    pub busy: Cell<u32>,
    /// The first promise found broken, with its volume's number.
    pub finding: RefCell<Option<(u16, Finding)>>,
    waiting: RefCell<Option<Waker>>,
}

impl Life {
    /// A life with nobody at work yet.
    pub fn new(core: Core<SimSeam>, subjects: Vec<Subject>, options: Rc<Options>, operations: u64) -> Life {
        Life {
            seam: core.seam().clone(),
            core,
            subjects,
            options,
            given: operations,
            left: Cell::new(operations),
            taken_back: 0,
            busy: Cell::new(0),
            finding: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Takes one of the operations that are left, unless a promise is broken already.
    pub fn take_turn(&self) -> bool {
        let left = self.left.get();
        if left == 0 || self.finding.borrow().is_some() {
            self.left.set(0);
            self.notify();
            return false;
        }
        self.left.set(left - 1);
        true
    }

    /// True when clients have nothing more to begin.
    pub fn spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Notes a broken promise; the first counts.
    pub fn report(&self, subject: &Subject, result: Result<(), Finding>) {
        if let Err(finding) = result {
            self.finding.borrow_mut().get_or_insert((subject.number, finding));
            self.left.set(0);
            self.notify();
        }
    }

    /// Somebody ended.
    pub fn leave(&self) {
        self.busy.set(self.busy.get() - 1);
        self.notify();
    }

    /// Waits until `condition` holds; it is asked whenever somebody ended, operations ran out or a promise broke.
    pub async fn until(&self, condition: impl Fn(&Life) -> bool) {
        poll_fn(|context| {
            if condition(self) {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn notify(&self) {
        if let Some(waker) = self.waiting.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Begins an operation of `client` on sectors `first..first + count`.
    pub fn begin(&self, subject: &Subject, client: u16, kind: OpKind, sectors: Range<u64>, fua: bool) -> (OpId, Marks) {
        let whole = matches!(kind, OpKind::Flush | OpKind::Drain(_) | OpKind::Event(_));
        let bytes = sectors.start * SECTOR_BYTES as u64..sectors.end * SECTOR_BYTES as u64;
        let marks = Marks {
            began: self.seam.now(),
            volatile: subject.volatile.mark(),
            detaching: subject.detaching.mark(),
            trouble: subject.trouble.mark(),
            range: (!whole && !fua).then_some(bytes),
            changes: kind.changes(),
        };
        let submit = Submit {
            client,
            first: sectors.start,
            count: sectors.end - sectors.start,
            fua,
            unheld: subject.unheld.is_on(),
        };
        (subject.model.borrow_mut().begin(kind, submit, self.seam.now()), marks)
    }

    /// Ends an operation that returns no content, and reports an error that nothing excuses. True when it succeeded.
    pub fn end(&self, subject: &Subject, op: OpId, marks: &Marks, result: &Result<(), RequestError>) -> bool {
        let volatile = subject.volatile.since(marks.volatile);
        let outcome = match result {
            Ok(()) => Outcome::Ok,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        subject.model.borrow_mut().end(op, outcome, volatile, self.seam.now());
        if let Err(error) = result
            && !subject.excused(error, marks, marks.range.clone(), marks.changes)
        {
            let what = format!("op {op} failed though nothing was wrong with its part of the backing: {error}");
            self.report(subject, Err(Finding { what, sector: marks.range.as_ref().map(|range| range.start / 512) }));
        }
        result.is_ok()
    }
}

/// The bytes of a write: a tag a sector.
pub struct Source {
    /// The volume's number.
    pub volume: u16,
    /// The operation.
    pub op: OpId,
    /// Its first sector.
    pub first: u64,
}

impl Source {
    /// The content of a write of `len` bytes, all in whole blocks, in the engine's own buffers, if it has as many.
    pub fn blocks(&mut self, volume: &Volume<SimSeam>, len: usize) -> Option<GivenBlocks<SimSeam>> {
        let mut blocks = volume.buffers(len / BLOCK_BYTES)?;
        for (index, block) in blocks.iter_mut().enumerate() {
            self.fill(index * BLOCK_BYTES, block, 0, BLOCK_BYTES);
        }
        Some(GivenBlocks::new(blocks))
    }
}

impl WriteSource<SimSeam> for Source {
    fn fill(&mut self, from: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        assert!(
            [from, at, len].iter().all(|value| value.is_multiple_of(SECTOR_BYTES)),
            "a source is asked for whole sectors"
        );
        let first = self.first + (from / SECTOR_BYTES) as u64;
        for (index, sector) in (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).enumerate() {
            block.set_tag(sector, Tag::new(self.volume, self.op, first + index as u64).0);
        }
    }
}
