//! The state of an open store, with the requests to its devices. Mechanisms are functions over [`Inner`], in modules
//! above this one.
//!
//! A change of the state may have to start a task of such a mechanism. [`BackgroundTasks`] has the functions that start
//! them.

pub mod jobs;
pub mod latency;
pub mod members;
pub mod requests;
pub mod retirements;
pub mod scrub;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use seam::{Nanos, Seam};

use crate::device::{BufferSource, Device};
use crate::error::StoreError;
use crate::format::summary::SegmentSummary;
use crate::format::superblock::Superblock;
use crate::number::{MemberNo, MembershipGeneration, Sequence};
use crate::page_map::PageState;
use crate::record::{Content, LostBlocks, Position, Record};
use crate::sabotage::Sabotage;
use crate::segments::Segments;
use jobs::Jobs;
use latency::LatencyTracker;
use members::MemberReport;
use requests::InFlightRequests;
use retirements::Retirements;
use scrub::Scrub;
use task_sync::{BoxFuture, Reply, TaskMutex};

/// Pause before another attempt to allocate a buffer.
const BUFFER_PAUSE: Nanos = Nanos::from_millis(1);

/// Durably records a membership generation. The error is the reason why that failed.
pub(crate) type GenerationRecorder = dyn Fn(MembershipGeneration) -> BoxFuture<'static, Result<(), String>>;

/// An append that is not yet part of a batch.
pub(crate) struct AppendRequest<S: Seam> {
    /// The records to append, in order.
    pub(crate) records: Vec<Record<S>>,
    /// It has only tombstones, which may use the segments reserved for them.
    pub(crate) is_tombstone: bool,
    /// Gets the records' positions once they are durable.
    pub(crate) reply: Reply<Result<Vec<Position>, StoreError>>,
}

impl<S: Seam> AppendRequest<S> {
    /// The number of data blocks in it.
    pub(crate) fn data_blocks(&self) -> u32 {
        self.records.iter().filter(|record| matches!(record.content, Content::Data(_))).count() as u32
    }
}

/// The state of the log and of the members.
pub(crate) struct State<S: Seam> {
    /// All devices that have been in service since the opening, including removed ones.
    pub(crate) devices: Vec<Device<S>>,
    /// The superblock as the members in service hold it. The member number in it is set when a copy is written.
    pub(crate) superblock: Superblock,
    /// The segments of the log.
    pub(crate) segments: Segments,
    /// Appends that are not yet part of a batch, oldest first.
    pub(crate) pending_requests: VecDeque<AppendRequest<S>>,
    /// A task is writing batches.
    pub(crate) is_committing: bool,
    /// Sequence number of the next batch.
    pub(crate) next_sequence: Sequence,
    /// Checksum of the last batch's header, 0 before the first batch.
    pub(crate) last_header_checksum: u32,
    /// The summary of the segment that the log began last.
    pub(crate) summary: Option<SegmentSummary>,
    /// The report on each member, in the order of their numbers.
    pub(crate) member_reports: Vec<MemberReport>,
    /// Index of the superblock copy to overwrite next on each member: the one that is not its newest.
    pub(crate) next_copies: Vec<usize>,
    /// The reason why no more writes are possible.
    pub(crate) failure: Option<StoreError>,
    /// Spare buffers for headers and superblocks, so that an exhausted pool blocks no commit.
    pub(crate) spare_buffers: Vec<S::BlockMut>,
    /// Tasks that wait until no batch is being written.
    pub(crate) idle_waiters: Vec<Reply<()>>,
    /// The generation of the membership that every member in service holds durably.
    pub(crate) durable_generation: MembershipGeneration,
    /// The generation that the owner has recorded.
    pub(crate) recorded_generation: MembershipGeneration,
    /// The reason why the owner could not record the newest generation.
    pub(crate) unrecorded_reason: Option<String>,
    /// The device that is becoming a log member: it gets every batch, but no acknowledgement relies on it yet.
    pub(crate) joining_device: Option<Device<S>>,
    /// The device to which the running job copies the log. Unlike `joining_device`, it stays set after a failed
    /// batch, so that a hang of the device ends the job.
    pub(crate) resyncing_device: Option<Device<S>>,
    /// Buffers for resync and scrub, so that an exhausted pool blocks neither.
    pub(crate) copy_buffers: Vec<S::BlockMut>,
    /// The read and write latencies of each member.
    pub(crate) latency_trackers: BTreeMap<MemberNo, LatencyTracker>,
    /// State of the scrub.
    pub(crate) scrub: Scrub,
    /// Blocks without a good copy, detected by reads.
    pub(crate) lost_blocks: LostBlocks,
    /// The owner's function that records each new membership generation.
    pub(crate) generation_recorder: Option<Rc<GenerationRecorder>>,
    /// The job that changes the members, if one is in progress.
    pub(crate) jobs: Jobs,
    /// Retired records that still keep their segments in use.
    pub(crate) retirements: Retirements,
}

impl<S: Seam> State<S> {
    /// The read and write latencies of a member.
    pub(crate) fn latency_tracker(&mut self, member: MemberNo) -> &mut LatencyTracker {
        self.latency_trackers.entry(member).or_default()
    }
}

/// An open store: its state, its locks and its requests in flight. Handles and tasks share it.
pub(crate) struct Inner<S: Seam> {
    /// The disks, time and tasks of this core.
    pub(crate) seam: S,
    /// The state of the log and of the members. It is never borrowed across an await.
    pub(crate) state: RefCell<State<S>>,
    /// Held while a batch is written, or while the members change between two batches.
    pub(crate) batch_lock: TaskMutex,
    /// Held while superblocks are written.
    pub(crate) superblock_lock: TaskMutex,
    /// A handle to itself, for the tasks that it spawns.
    pub(crate) self_ref: Weak<Inner<S>>,
    /// The state of the clean pages. It is never borrowed across an await.
    pub(crate) pages: RefCell<PageState<S>>,
    /// A rule to violate, for tests of the checkers.
    pub(crate) sabotage: Sabotage,
    /// Requests to members that are in flight.
    pub(crate) in_flight_requests: InFlightRequests,
    /// The tasks that changes of the state start.
    pub(crate) tasks: BackgroundTasks<S>,
    /// The source of buffers when the pool is exhausted.
    pub(crate) fallback_buffers: RefCell<Option<FallbackBuffers<S>>>,
}

/// Functions that start tasks of mechanisms above the state. The opening of a store sets them.
pub(crate) struct BackgroundTasks<S: Seam> {
    /// Starts to watch the members for hangs, while requests are in flight.
    pub(crate) watch_members: fn(&Inner<S>),
    /// Starts a take-over of the log, if one is needed and may begin.
    pub(crate) take_over: fn(&Inner<S>),
}

/// Gets a buffer from another cache, if possible.
pub(crate) type FallbackBuffers<S> = Box<dyn Fn() -> Option<<S as Seam>::BlockMut>>;

impl<S: Seam> Inner<S> {
    /// Allocates a buffer if one is available now.
    pub(crate) fn alloc(&self) -> Option<S::BlockMut> {
        self.seam.alloc().or_else(|| self.fallback_buffers.borrow().as_ref()?())
    }

    /// Waits for a free buffer.
    pub(crate) async fn alloc_buffer(&self) -> S::BlockMut {
        loop {
            match self.alloc() {
                Some(buffer) => return buffer,
                None => self.seam.sleep(BUFFER_PAUSE).await,
            }
        }
    }

    /// Members in service.
    pub(crate) fn in_service(&self) -> Vec<Device<S>> {
        let state = self.state.borrow();
        let devices = state.devices.iter().filter(|device| state.superblock.serves(device.member));
        devices.cloned().collect()
    }

    /// Members in service that carry the log: at most two.
    pub(crate) fn log_devices(&self) -> Vec<Device<S>> {
        let state = self.state.borrow();
        let devices = state.devices.iter().filter(|device| state.superblock.carries_log(device.member));
        devices.cloned().collect()
    }
}

impl<S: Seam> BufferSource<S> for Inner<S> {
    async fn wait_buffer(&self) -> S::BlockMut {
        self.alloc_buffer().await
    }
}
