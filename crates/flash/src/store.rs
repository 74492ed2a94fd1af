//! The store as its owner sees it: append, read, retire, and who is in service.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use seam::{BLOCK_BYTES, Disk, Nanos, Seam};

use crate::create::{FormatOptions, format};
use crate::device::Device;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::batch::RECORDS_MAX;
use crate::format::superblock::{Role, Superblock};
use crate::hang::Outstanding;
use crate::members::{JobReport, Jobs};
use crate::pages::Pages;
use crate::pages::state::PageState;
use crate::record::{Content, LostBlocks, Owner, Position, Record, Recovered};
use crate::recovery::{OpenOptions, open};
use crate::scrub::{Scrub, ScrubStats};
use crate::segments::Segments;
use crate::slow::Speed;
use crate::wait::{Answer, Boxed, Gate};

/// How long to wait for a buffer before asking again.
const BUFFER_PAUSE: Nanos = Nanos::from_millis(1);

/// A rule that the store breaks on purpose, so that a test can show that its checker notices.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// An append is acknowledged when the first member has it.
    AckBeforeMirror,
    /// Batches are not flushed.
    SkipFlush,
    /// A block is returned without being checked.
    SkipChecksum,
    /// The last batch counts even if its data is torn.
    ReplayTorn,
    /// A segment is used again before the tail behind it is durable.
    ReuseBeforeTail,
    /// A failed member is taken out after the acknowledgement that relies on fewer copies.
    AckBeforeMembership,
    /// A device joins the log without what was in it before.
    SkipResync,
    /// A write to the backing goes on before its region is durably in flux.
    WriteBeforeMark,
    /// A region is unmarked in a commit before the one with its invalidations.
    UnmarkEarly,
    /// A slot is written again before it is durable that nothing speaks of it.
    ReuseSlotEarly,
    /// A page's block is returned without being checked.
    SkipPageChecksum,
    /// Pages are kept although the map journal ends short of what is known to have been durable.
    KeepShortMap,
    /// A `put` does not notice that its blocks were invalidated.
    PutOverInvalidate,
    /// A read does not notice that a block was written again while it was under way.
    ReadOverPut,
}

/// Whether a member serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberStatus {
    /// It holds everything that was acknowledged.
    InService,
    /// It was taken out, or is missing; says why.
    Lost(String),
    /// It is here and was taken out earlier; what it holds is old and is not read.
    Stale,
}

/// A member for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// Its number in the store.
    pub member: u32,
    /// What it carries.
    pub role: Role,
    /// The device, where it is here.
    pub device: Option<String>,
    /// Its size, where it is here.
    pub size_bytes: Option<u64>,
    /// Whether it serves.
    pub status: MemberStatus,
}

/// Notes a generation of the members durably; the error says why it could not.
pub(crate) type Note = dyn Fn(u64) -> Boxed<'static, Result<(), String>>;

/// An append that waits for its batch.
pub(crate) struct Request<S: Seam> {
    pub(crate) records: Vec<Record<S>>,
    /// It may use what the log keeps for this.
    pub(crate) buries: bool,
    pub(crate) answer: Answer<Result<Vec<Position>, StoreError>>,
}

impl<S: Seam> Request<S> {
    /// Blocks of data in it.
    pub(crate) fn data_blocks(&self) -> u32 {
        self.records.iter().filter(|record| matches!(record.content, Content::Data(_))).count() as u32
    }
}

pub(crate) struct State<S: Seam> {
    /// The devices that serve or served since the opening.
    pub(crate) devices: Vec<Device<S>>,
    /// As the members in service know it; the member's own number is set when one is written.
    pub(crate) superblock: Superblock,
    pub(crate) segments: Segments,
    pub(crate) pending: VecDeque<Request<S>>,
    /// A task is writing batches.
    pub(crate) committing: bool,
    /// Sequence of the next batch.
    pub(crate) next: u64,
    /// Checksum of the last batch's header, 0 if there is none.
    pub(crate) previous: u32,
    pub(crate) reports: Vec<MemberReport>,
    /// Which of its two places each member's next superblock goes to: the one that does not hold its newest.
    pub(crate) next_places: Vec<usize>,
    /// Why nothing can be written any more.
    pub(crate) failed: Option<StoreError>,
    /// Buffers for headers and superblocks, so that a full pool stops no commit.
    pub(crate) spare: Vec<S::BlockMut>,
    /// Who waits until nothing is being written.
    pub(crate) idle: Vec<Answer<()>>,
    /// The generation of the membership that every member in service durably knows.
    pub(crate) durable_generation: u64,
    /// The generation that the owner has noted.
    pub(crate) noted_generation: u64,
    /// Why the owner could not note the newest one, since it failed.
    pub(crate) unnoted: Option<String>,
    /// The device that is becoming a log member: it takes every batch, and nothing relies on it yet.
    pub(crate) joining: Option<Device<S>>,
    /// Buffers for copying and scrubbing, so that a full pool stops neither.
    pub(crate) copying: Vec<S::BlockMut>,
    /// How fast each member has been.
    pub(crate) speeds: BTreeMap<u32, Speed>,
    /// What the scrub does.
    pub(crate) scrub: Scrub,
    /// Blocks that were found to have no good copy.
    pub(crate) lost: LostBlocks,
    /// Who notes each new generation of the members elsewhere.
    pub(crate) note: Option<Rc<Note>>,
    /// What is being done to the members.
    pub(crate) jobs: Jobs,
}

impl<S: Seam> State<S> {
    /// How fast a member has been.
    pub(crate) fn speed(&mut self, member: u32) -> &mut Speed {
        self.speeds.entry(member).or_default()
    }
}

pub(crate) struct Inner<S: Seam> {
    pub(crate) seam: S,
    pub(crate) state: RefCell<State<S>>,
    /// Whoever writes a batch is inside, and whoever changes the members between two batches.
    pub(crate) batches: Gate,
    /// Whoever writes superblocks is inside.
    pub(crate) change: Gate,
    /// This, for tasks of its own.
    pub(crate) me: Weak<Inner<S>>,
    pub(crate) pages: RefCell<PageState<S>>,
    pub(crate) sabotage: Sabotage,
    pub(crate) outstanding: Outstanding,
    /// Where buffers come from when the pool has none left.
    pub(crate) more_buffers: RefCell<Option<Buffers<S>>>,
}

/// The oldest part of the log is this part of its segments, and so many at least.
const OLDEST_PART: usize = 8;
const OLDEST_MIN: usize = 2;

/// Gives a buffer at somebody else's cost, if that can be.
pub(crate) type Buffers<S> = Box<dyn Fn() -> Option<<S as Seam>::BlockMut>>;

impl<S: Seam> Inner<S> {
    /// A buffer, if one can be had at once.
    pub(crate) fn alloc(&self) -> Option<S::BlockMut> {
        self.seam.alloc().or_else(|| self.more_buffers.borrow().as_ref()?())
    }

    /// A buffer, as soon as there is one.
    pub(crate) async fn buffer(&self) -> S::BlockMut {
        loop {
            match self.alloc() {
                Some(buffer) => return buffer,
                None => self.seam.sleep(BUFFER_PAUSE).await,
            }
        }
    }

    /// Members that serve.
    pub(crate) fn in_service(&self) -> Vec<Device<S>> {
        let state = self.state.borrow();
        let devices = state.devices.iter().filter(|device| state.superblock.serves(device.member));
        devices.cloned().collect()
    }

    /// Members that serve and carry the log: at most two.
    pub(crate) fn log_devices(&self) -> Vec<Device<S>> {
        let state = self.state.borrow();
        let devices = state.devices.iter().filter(|device| state.superblock.carries_log(device.member));
        devices.cloned().collect()
    }
}

/// An open store. A clone is another handle to the same, on the same core.
pub struct Store<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Store<S> {
    fn clone(&self) -> Self {
        Store(Rc::clone(&self.0))
    }
}

impl<S: Seam> Store<S> {
    /// Makes a store of one to eight devices; the first two carry the log. Refuses devices that hold anything unless told to destroy it.
    pub async fn format(seam: &S, disks: &[S::Disk], options: FormatOptions) -> Result<(), StoreError> {
        format(seam, disks, options).await
    }

    /// Opens a store after whatever happened to it, and says what is live in its log, in the owners' order. Can be repeated, and
    /// cut off anywhere.
    pub async fn open(seam: &S, disks: &[S::Disk], options: OpenOptions) -> Result<(Self, Vec<Recovered>), StoreError> {
        open(seam, disks, options).await
    }

    /// Where buffers come from when the pool has none left: a cache that fills the pool gives one of its own. Asked between two steps of the
    /// store's, never while its owner is in one of its calls that do not wait.
    pub fn use_buffers(&self, more: impl Fn() -> Option<S::BlockMut> + 'static) {
        *self.0.more_buffers.borrow_mut() = Some(Box::new(more));
    }

    /// The clean pages. To be loaded once, at any time after the opening.
    pub fn pages(&self) -> Pages<S> {
        Pages(Rc::clone(&self.0))
    }

    /// The most records of one append.
    pub fn records_max(&self) -> usize {
        let segment = self.0.state.borrow().superblock.segment_bytes as usize / BLOCK_BYTES;
        RECORDS_MAX.min(segment - 1)
    }

    /// Appends `records`, all in one batch, and returns their positions when they are durable on every member in service.
    ///
    /// After [`StoreError::Full`] nothing was written. After any other error recovery may find the records or not.
    ///
    /// # Panics
    /// With no records, or more than [`Store::records_max`].
    pub async fn append(&self, records: Vec<Record<S>>) -> Result<Vec<Position>, StoreError> {
        self.append_with(records, false).await
    }

    /// As [`Store::append`] for tombstones after which a volume has nothing in the log: there is room kept for them, so that a log full of what
    /// is not the volume's own does not hold it up.
    ///
    /// # Panics
    /// With anything but tombstones.
    pub async fn bury(&self, tombstones: Vec<Record<S>>) -> Result<Vec<Position>, StoreError> {
        let buries = |record: &Record<S>| matches!(record.content, Content::Retire { .. });
        assert!(tombstones.iter().all(buries), "room is kept for tombstones alone");
        self.append_with(tombstones, true).await
    }

    async fn append_with(&self, records: Vec<Record<S>>, buries: bool) -> Result<Vec<Position>, StoreError> {
        assert!((1..=self.records_max()).contains(&records.len()), "{} records in one append", records.len());
        for record in &records {
            let blocks = match record.content {
                Content::Data(_) => 1,
                Content::Zero { blocks, .. } | Content::Retire { blocks } => blocks,
            };
            let fits = record.owner.block.checked_add(u64::from(blocks)).is_some();
            assert!(blocks > 0 && fits, "a record of {blocks} blocks from {} on", record.owner.block);
        }
        let answer = Answer::default();
        let start = {
            let mut state = self.0.state.borrow_mut();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state.pending.push_back(Request { records, buries, answer: answer.clone() });
            !std::mem::replace(&mut state.committing, true)
        };
        if start {
            self.0.seam.spawn(crate::commit::run(Rc::clone(&self.0)));
        }
        answer.wait().await
    }

    /// Reads the block that was appended at `position` into `buffer`. Checked; a bad copy is replaced by its mirror's.
    pub async fn read(&self, owner: Owner, position: Position, buffer: S::BlockMut) -> Result<S::Block, StoreError> {
        crate::read::read(&self.0, owner, position, buffer).await
    }

    /// As [`Store::read`] for many blocks at once, each into the buffer beside it; results in the same order.
    pub async fn read_all(&self, wanted: Vec<(Owner, Position, S::BlockMut)>) -> Vec<Result<S::Block, StoreError>> {
        crate::read::read_all(&self.0, wanted).await
    }

    /// What lay at these positions is dead: on the backing and flushed there, or older than a durable record of the same blocks.
    /// Each position is retired once.
    ///
    /// # Panics
    /// When one was retired before.
    pub fn retire(&self, positions: &[Position]) {
        let mut state = self.0.state.borrow_mut();
        for position in positions.iter().filter(|position| position.live) {
            state.lost.retire(position);
            let live = &mut state.segments.get_mut(position.segment).live;
            *live = live.checked_sub(1).expect("a position is retired once");
        }
    }

    /// All members of the store.
    pub fn members(&self) -> Vec<MemberReport> {
        self.0.state.borrow().reports.clone()
    }

    /// How long the oldest request of each device has not been answered, in service or not; those that have answered all are left out.
    pub fn unanswered(&self) -> BTreeMap<u32, Nanos> {
        let (state, now) = (self.0.state.borrow(), self.0.seam.now());
        let waits = |device: &Device<S>| Some((device.member, now.since(device.disk.oldest_unanswered()?)));
        state.devices.iter().filter_map(waits).collect()
    }

    /// Copies that the log is kept in: members that serve and carry it.
    pub fn copies(&self) -> usize {
        self.0.log_devices().len()
    }

    /// Adds a device while the store serves, and returns its number when it is a member. Where the log has fewer than two copies it is
    /// filled and carries the log, else it holds pages alone. What it holds is destroyed; without `force` it has to be empty, or of
    /// this store.
    pub async fn add(&self, disk: S::Disk, force: bool) -> Result<u32, StoreError> {
        crate::members::add(&self.0, disk, force).await
    }

    /// Puts a device into the place of member `old`, which may be out of service, and returns its number when it is a member and `old`
    /// is none.
    pub async fn replace(&self, old: u32, disk: S::Disk, force: bool) -> Result<u32, StoreError> {
        crate::members::replace(&self.0, old, disk, force).await
    }

    /// Takes a member out for good. A member that holds pages alone takes its place in the log first; where there is none, the log is
    /// left with one copy, which has to be allowed.
    pub async fn remove(&self, member: u32, allow_single_copy: bool) -> Result<(), StoreError> {
        crate::members::remove(&self.0, member, allow_single_copy).await
    }

    /// Reads at most so many bytes a second of the log in the background, from every copy, and replaces bad ones by good ones; `None`
    /// stops that, and is how a store begins.
    pub fn set_scrub(&self, bytes_per_second: Option<u64>) {
        crate::scrub::set(&self.0, bytes_per_second);
    }

    /// Blocks that were read and of which no copy is good, until their records are retired; a thousand at most.
    pub fn lost(&self) -> Vec<Owner> {
        self.0.state.borrow().lost.list()
    }

    /// What the scrub has found.
    pub fn scrub_stats(&self) -> ScrubStats {
        self.0.state.borrow().scrub.stats
    }

    /// How far the change of the members has come that is under way.
    pub fn job(&self) -> Option<JobReport> {
        self.0.state.borrow().jobs.report(self.0.seam.now())
    }

    /// Holds that change, or lets it go on; false when there is none.
    pub fn pause_job(&self, paused: bool) -> bool {
        self.0.state.borrow_mut().jobs.pause(paused)
    }

    /// Calls that change off: it ends in [`StoreError::Cancelled`], unless it has been made; false when there is none.
    pub fn cancel_job(&self) -> bool {
        self.0.state.borrow_mut().jobs.cancel()
    }

    /// The store's identity, drawn when it was made.
    pub fn uuid(&self) -> Uuid {
        self.0.state.borrow().superblock.store
    }

    /// The sequence of the log's next batch: only greater in every later opening.
    pub fn sequence(&self) -> u64 {
        self.0.state.borrow().next
    }

    /// The membership's generation: +1 with every change.
    pub fn generation(&self) -> u64 {
        self.0.state.borrow().superblock.generation
    }

    /// From now on `note` is called with each new generation of the members, when all of them durably know it, and nothing that relies
    /// on it is acknowledged before it has succeeded (R10). It is called again where it fails or does not end in time; appends fail meanwhile.
    pub fn note_generations(&self, note: impl Fn(u64) -> Boxed<'static, Result<(), String>> + 'static) {
        self.0.state.borrow_mut().note = Some(Rc::new(note));
    }

    /// Why the newest generation of the members is not noted, while flushes fail for that.
    pub fn unnoted(&self) -> Option<String> {
        self.0.state.borrow().unnoted.clone()
    }

    /// The oldest segments of the log, an eighth of it and two at least: what holds them holds everything behind them, too.
    pub fn oldest_segments(&self) -> BTreeSet<u32> {
        let state = self.0.state.borrow();
        let sealed = state.segments.chain().filter(|(_, _, open)| open.is_none()).map(|(number, _, _)| number);
        let count = (state.segments.chain().count() / OLDEST_PART).max(OLDEST_MIN);
        sealed.take(count).collect()
    }

    /// Segments that are free, or will be as soon as a tail is durable or the pages in them are gone; of how many.
    pub fn room(&self) -> (usize, usize) {
        let mut state = self.0.state.borrow_mut();
        let next = state.next;
        state.segments.tail(next);
        let usable = state.superblock.segments - state.superblock.journal_segments();
        (state.segments.free() + state.segments.lent_usable_count(), usable as usize)
    }

    /// Waits for what is being written and moves the durable tail as far as it goes, to the end if nothing is live, so that the next
    /// opening finds nothing. Appends that come after it fail. Returns the sequence that the log has reached.
    pub async fn close(self) -> Result<u64, StoreError> {
        crate::members::end_jobs(&self.0).await;
        crate::pages::close(&self.0).await;
        loop {
            let answer = {
                let mut state = self.0.state.borrow_mut();
                if !state.committing {
                    break;
                }
                let answer = Answer::default();
                state.idle.push(answer.clone());
                answer
            };
            answer.wait().await;
        }
        {
            let mut state = self.0.state.borrow_mut();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state.failed = Some(StoreError::Failed("the store was closed".to_owned()));
            state.segments.close_open();
        }
        crate::membership::save_tail(&self.0).await?;
        Ok(self.sequence())
    }
}

pub(crate) fn report<S: Seam>(
    member: u32,
    role: Role,
    device: Option<&Device<S>>,
    status: MemberStatus,
) -> MemberReport {
    MemberReport {
        member,
        role,
        device: device.map(Device::name),
        size_bytes: device.map(|device| device.disk.geometry().size_bytes),
        status,
    }
}
