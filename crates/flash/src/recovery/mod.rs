//! Opening of a store after any crash. Every step can be interrupted and repeated: it changes only bad copies of
//! committed data. The superblocks are written last.
//!
//! 1. `members.rs`: the superblocks determine the members in service. Missing, stale and foreign devices are found
//!    before the log is read.
//! 2. All devices are flushed: after a killed process, data that recovery reads might otherwise be lost in a later
//!    power failure.
//! 3. `chain.rs`: the log is read from the tail on, from one mirror where that copy is intact, and at its end from all
//!    mirrors.
//! 4. `newest_records.rs`: the newest record of each block is found.
//! 5. Blocks of the log that one mirror lacks are copied to it. Then all members get a superblock with the next boot
//!    epoch and the tail.

pub mod chain;
pub mod members;
pub mod newest_records;
pub mod salvage;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskResult, Nanos, Seam};

use crate::device::{Device, alloc_buffer};
use crate::error::StoreError;
use crate::format::journal::JOURNAL_AT;
use crate::format::superblock::{MemberState, Ownership, Superblock};
use crate::format::{Uuid, newer_metadata};
use crate::hang_detection::start_watch;
use crate::journal;
use crate::log_members::members_without_pages;
use crate::member_disk::MemberDisk;
use crate::members::{copy_buffer_count, start_take_over};
use crate::membership::{MemberFailure, SPARE_BUFFERS, failures_of, remove_members, write_superblocks};
use crate::number::{MembershipGeneration, SegmentNo, Sequence};
use crate::page_map::PageState;
use crate::record::{LostBlocks, RecoveredRecord};
use crate::sabotage::Sabotage;
use crate::segments::{Segment, Segments};
use crate::state::jobs::Jobs;
use crate::state::members::{MemberReport, MemberStatus, report};
use crate::state::retirements::Retirements;
use crate::state::scrub::Scrub;
use crate::state::{BackgroundTasks, Inner, State};
use chain::LogChain;
use members::Members;
use task_sync::{BoxFuture, TaskMutex, join};

/// Options of opening a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Remove missing members from service instead of refusing the store.
    pub accept_missing: bool,
    /// A store, and its last membership generation that the owner has recorded. Devices of that store with an older
    /// generation hold outdated data and are refused. Without this option, a removed device that is opened alone looks
    /// like the last member in service.
    pub known_generation: Option<(Uuid, MembershipGeneration)>,
    /// The owner that opens the store, written to every superblock. Without it the last owner is kept.
    pub ownership: Option<Ownership>,
    /// The sequence number that the log had reached when its owner closed it. Devices whose log ends before it are an
    /// older copy, and are refused.
    pub sequence_min: Sequence,
    /// A rule to violate, for tests of the checker.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

/// Opens a store. Returns its state and the live records of its log.
pub async fn open<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    options: OpenOptions,
) -> Result<(Rc<Inner<S>>, Vec<RecoveredRecord>), StoreError> {
    let members = members::find_members::<S>(seam, disks, options).await?;
    if !members.devices.iter().any(|device| members.superblock.carries_log(device.member)) {
        return Err(StoreError::NoLog);
    }
    let mut failures = flush_devices(&members.devices).await;
    let devices: Vec<_> = devices_without(&members.devices, &failures);
    let devices: Vec<_> = devices.into_iter().filter(|device| members.superblock.carries_log(device.member)).collect();
    if devices.is_empty() {
        return Err(StoreError::Failed(failures_text(&failures)));
    }
    let mut chain = chain::read_log(seam, &devices, &members.superblock, options.sabotage).await?;
    if chain.next_sequence < options.sequence_min {
        return Err(StoreError::Behind { sequence: chain.next_sequence, recorded: options.sequence_min });
    }
    refuse_newer_map(seam, &devices, &members.superblock).await?;
    failures.extend(chain::repair(seam, &devices, &chain, members.superblock.segment_bytes).await?);
    let (recovered, live_per_segment) = std::mem::take(&mut chain.records).into_newest(chain.log_segment_count);
    let inner = build_inner(seam, members, &chain, &live_per_segment, options);
    reserve_buffers(&inner).await;
    remove_members(&inner, failures).await?;
    // Write both superblocks, so that no single damaged block restores an older boot epoch, tail or membership.
    for _ in 0..2 {
        let failures = write_superblocks(&inner, |_| true).await;
        remove_members(&inner, failures).await?;
    }
    start_take_over(&inner);
    Ok((inner, recovered))
}

/// Takes the store's own buffers from the pool, so that an exhausted pool blocks none of its commits and copies.
async fn reserve_buffers<S: Seam>(inner: &Inner<S>) {
    for _ in 0..SPARE_BUFFERS {
        let buffer = alloc_buffer(&inner.seam).await;
        inner.state.borrow_mut().spare_buffers.push(buffer);
    }
    for _ in 0..journal::SPARE_BUFFERS {
        let buffer = alloc_buffer(&inner.seam).await;
        inner.pages.borrow_mut().journal.spare_buffers.push(buffer);
    }
    for _ in 0..copy_buffer_count(&inner.seam) {
        let buffer = alloc_buffer(&inner.seam).await;
        inner.state.borrow_mut().copy_buffers.push(buffer);
    }
}

/// Refuses a map journal of a later format, which would otherwise be dropped and overwritten.
async fn refuse_newer_map<S: Seam>(seam: &S, devices: &[Device<S>], superblock: &Superblock) -> Result<(), StoreError> {
    for device in devices {
        for half in 0..2 {
            let at = JOURNAL_AT + half * (superblock.journal_bytes / 2 / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
            // Skip an unreadable half.
            let Ok(raw) = device.read_raw(seam, at).await else { continue };
            if let Some(newer) = newer_metadata(&raw, superblock.store) {
                return Err(StoreError::Newer { device: device.name(), newer });
            }
        }
    }
    Ok(())
}

/// Flushes these devices. Returns the failed ones.
async fn flush_devices<S: Seam>(devices: &[Device<S>]) -> Vec<MemberFailure> {
    let flushes = devices.iter().map(|device| {
        let flush: BoxFuture<'_, DiskResult<()>> = Box::pin(device.disk.flush());
        flush
    });
    failures_of(devices, join(flushes.collect()).await)
}

/// The devices without the failed ones.
fn devices_without<S: Seam>(devices: &[Device<S>], failures: &[MemberFailure]) -> Vec<Device<S>> {
    let serves = |device: &&Device<S>| !failures.iter().any(|(member, _)| *member == device.member);
    devices.iter().filter(serves).cloned().collect()
}

/// The failed members and their errors, for the administrator.
fn failures_text(failures: &[MemberFailure]) -> String {
    let each: Vec<_> = failures.iter().map(|(member, error)| format!("number {member}: {error}")).collect();
    each.join(", ")
}

/// The state of the opened store: as recovery found it, in the next boot epoch.
fn build_inner<S: Seam>(
    seam: &S,
    members: Members<S>,
    chain: &LogChain,
    live_per_segment: &[u32],
    options: OpenOptions,
) -> Rc<Inner<S>> {
    let sabotage = options.sabotage;
    let mut superblock = members.superblock;
    superblock.ownership = options.ownership.unwrap_or(superblock.ownership);
    // The current generation counts as durable, because both copies are written before the store is open.
    let generation = superblock.generation;
    superblock.boot_epoch = superblock.boot_epoch.next();
    superblock.tail = chain.tail;
    superblock.first_sequence = chain.next_sequence;
    let member_reports = report_members(&superblock, &members.devices, &members.stale_devices);
    let log_segments = segments_of_log(chain, live_per_segment, seam.now());
    superblock.journal_commit = chain.journal_commit;
    let numbers = superblock.log_segments();
    let in_log = |number: &SegmentNo| log_segments.iter().any(|(used, _)| used == number);
    let lent =
        chain.page_segment_generations.keys().map(|(_, number)| *number).filter(|number| !in_log(number)).collect();
    let mut segments = Segments::new(numbers, &log_segments, lent, chain.tail);
    segments.is_reuse_sabotaged = sabotage.is(Sabotage::ReuseBeforeTail);
    let state = State {
        devices: members.devices,
        superblock,
        segments,
        pending_requests: VecDeque::new(),
        is_committing: false,
        next_sequence: chain.next_sequence,
        last_header_checksum: chain.batches.last().map_or(0, |batch| batch.checksum),
        summary: None,
        member_reports,
        next_copies: members.next_copies,
        failure: None,
        spare_buffers: Vec::new(),
        idle_waiters: Vec::new(),
        durable_generation: generation,
        recorded_generation: generation,
        unrecorded_reason: None,
        joining_device: None,
        resyncing_device: None,
        latency_trackers: BTreeMap::new(),
        scrub: Scrub::default(),
        lost_blocks: LostBlocks::default(),
        retirements: Retirements::default(),
        generation_recorder: None,
        jobs: Jobs::default(),
        copy_buffers: Vec::new(),
    };
    let mut pages = PageState::new(&state.superblock, chain.page_segment_generations.clone());
    pages.closed_members = members_without_pages(&state);
    Rc::new_cyclic(|self_ref| Inner {
        seam: seam.clone(),
        state: RefCell::new(state),
        pages: RefCell::new(pages),
        batch_lock: TaskMutex::default(),
        superblock_lock: TaskMutex::default(),
        self_ref: self_ref.clone(),
        sabotage,
        in_flight_requests: Default::default(),
        tasks: BackgroundTasks { watch_members: start_watch, take_over: start_take_over },
        fallback_buffers: RefCell::default(),
    })
}

/// The reports on all members of a store that is being opened.
fn report_members<S: Seam>(superblock: &Superblock, devices: &[Device<S>], stale: &[Device<S>]) -> Vec<MemberReport> {
    let mut reports = Vec::new();
    for (member, entry) in superblock.numbered_members() {
        let device = devices.iter().find(|device| device.member == member);
        let stale_device = stale.iter().find(|device| device.member == member);
        let status = match (entry.state, stale_device) {
            (MemberState::InService, _) => MemberStatus::InService,
            (MemberState::Lost, Some(_)) => MemberStatus::Stale,
            (MemberState::Vacant | MemberState::Resyncing, _) => continue,
            (MemberState::Lost, None) => MemberStatus::Lost("missing when the store was opened".to_owned()),
        };
        reports.push(report(member, entry.role, device.or(stale_device), status));
    }
    reports
}

/// The segments that hold the batches of a log, oldest first, with their number of live records.
fn segments_of_log(chain: &LogChain, live_per_segment: &[u32], opened_at: Nanos) -> Vec<(SegmentNo, Segment)> {
    let mut log_segments: Vec<(SegmentNo, Segment)> = Vec::new();
    for batch in &chain.batches {
        match log_segments.last_mut() {
            Some((number, segment)) if *number == batch.segment => segment.last_sequence = batch.sequence,
            _ => {
                let segment = Segment {
                    boot_epoch: batch.boot_epoch,
                    first_sequence: batch.first_sequence,
                    last_sequence: batch.sequence,
                    live_records: live_per_segment[batch.segment.index()],
                    opened_at,
                    ..Segment::default()
                };
                log_segments.push((batch.segment, segment));
            }
        }
    }
    log_segments
}
