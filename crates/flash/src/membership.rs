//! Durable changes of the members in service (R10, docs/rules.md), and writes of superblocks.
//!
//! A change of the members is written to both superblocks of every survivor, so that no single damaged block can
//! restore the old membership.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use seam::{DiskError, DiskResult, Nanos, Seam};

use crate::device::{Device, Durability, block_of};
use crate::error::StoreError;
use crate::format::superblock::{MemberState, SUPERBLOCK_OFFSETS};
use crate::number::MemberNo;
use crate::state::Inner;
use crate::state::members::MemberStatus;
use task_sync::{BoxFuture, join};

/// A member that failed a request, and the error of the request.
pub type MemberFailure = (MemberNo, DiskError);

/// Pause between two attempts to have a generation recorded.
const RECORD_RETRY_PAUSE: Nanos = Nanos::from_secs(1);
/// Time limit of the owner's recording of a generation.
const RECORD_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Removes failed members from service. Returns when all survivors hold the new membership durably and the owner has
/// recorded its generation. Fails when no member that carries the log is left.
pub async fn remove_members<S: Seam>(inner: &Inner<S>, failures: Vec<MemberFailure>) -> Result<(), StoreError> {
    remove_members_unrecorded(inner, failures).await?;
    wait_until_recorded(inner).await;
    Ok(())
}

/// Like [`remove_members`], but does not wait until the owner has recorded the generation.
pub async fn remove_members_unrecorded<S: Seam>(
    inner: &Inner<S>,
    failures: Vec<MemberFailure>,
) -> Result<(), StoreError> {
    mark_lost(inner, failures)?;
    write_membership(inner, None).await
}

/// Marks members as lost, in memory. No append that relies on fewer copies may be acknowledged before all survivors
/// hold the new membership durably and the owner has recorded its generation.
fn mark_lost<S: Seam>(inner: &Inner<S>, failures: Vec<MemberFailure>) -> Result<(), StoreError> {
    let mut state = inner.state.borrow_mut();
    let (mut changed, mut log_changed) = (false, false);
    for (member, error) in &failures {
        // Two tasks may report the same failure.
        if !state.superblock.serves(*member) {
            continue;
        }
        changed = true;
        log_changed |= state.superblock.carries_log(*member);
        let since = state.superblock.generation.next().low_bits();
        let entry = &mut state.superblock.members[member.index()];
        (entry.state, entry.since_generation) = (MemberState::Lost, since);
        inner.pages.borrow_mut().drop_member_pages(*member);
        state.devices.iter().filter(|device| device.member == *member).for_each(|device| device.abort.abort());
        let report = state.member_reports.iter_mut().find(|report| report.member == *member);
        report.expect("every member has a report").status = MemberStatus::Lost(failure_text(error));
    }
    if changed {
        state.superblock.generation = state.superblock.generation.next();
    }
    let log_left = state.superblock.numbered_members().any(|(member, _)| state.superblock.carries_log(member));
    if !log_left && !matches!(state.failure, Some(StoreError::Failed(_))) {
        let reasons: Vec<_> =
            failures.iter().map(|(member, error)| format!("number {member}: {}", failure_text(error))).collect();
        state.failure = Some(StoreError::Failed(reasons.join(", ")));
    }
    drop(state);
    if log_changed {
        (inner.tasks.take_over)(inner);
    }
    match log_left {
        true => Ok(()),
        false => Err(inner.state.borrow().failure.clone().expect("the error was just set")),
    }
}

/// The reason of a failure, for the administrator.
fn failure_text(error: &DiskError) -> String {
    match error {
        DiskError::NoSpace => "the file system under the flash file is full: free space there, \
             then replace the device by itself"
            .to_owned(),
        error => error.to_string(),
    }
}

/// Returns when every member in service holds the current membership durably and the owner has recorded its generation.
/// The `joining` member is written after all others.
pub async fn persist_membership<S: Seam>(inner: &Inner<S>, joining: Option<MemberNo>) -> Result<(), StoreError> {
    write_membership(inner, joining).await?;
    wait_until_recorded(inner).await;
    Ok(())
}

/// Writes the current membership to both superblocks of every member in service. Members that fail are marked as lost,
/// and the remaining ones are written again.
async fn write_membership<S: Seam>(inner: &Inner<S>, joining: Option<MemberNo>) -> Result<(), StoreError> {
    loop {
        let durability = |inner: &Inner<S>| {
            let state = inner.state.borrow();
            (state.durable_generation >= state.superblock.generation, state.superblock.generation)
        };
        if durability(inner).0 {
            return Ok(());
        }
        let guard = inner.superblock_lock.lock().await;
        let (is_durable, generation) = durability(inner);
        if is_durable {
            return Ok(());
        }
        let mut failures = Vec::new();
        // The joining member comes last: it must never hold a generation that the others lack.
        let passes = if joining.is_none() { 1 } else { 2 };
        for pass in 0..passes {
            let selects = |member: MemberNo| joining.is_none() || (pass == 1) == (joining == Some(member));
            // Write both superblocks.
            for _ in 0..2 {
                if failures.is_empty() {
                    failures = write_superblocks(inner, selects).await;
                }
            }
        }
        drop(guard);
        if !failures.is_empty() {
            mark_lost(inner, failures)?;
            continue;
        }
        let mut state = inner.state.borrow_mut();
        state.durable_generation = state.durable_generation.max(generation);
    }
}

/// Has the owner record the generation that the members hold durably. After an earlier failure this fails at once, and
/// a task repeats the attempt.
pub async fn record_generation<S: Seam>(inner: &Inner<S>) -> Result<(), String> {
    let earlier = inner.state.borrow().unrecorded_reason.clone();
    match earlier {
        Some(reason) => Err(reason),
        None => try_record(inner).await,
    }
}

/// Waits until the owner has recorded the durable generation; retries without a limit.
async fn wait_until_recorded<S: Seam>(inner: &Inner<S>) {
    while record_generation(inner).await.is_err() {
        inner.seam.sleep(RECORD_RETRY_PAUSE).await;
    }
}

/// Calls the owner's recorder once, if the durable generation is not recorded yet. The first failure starts a task that
/// repeats the call until it succeeds.
async fn try_record<S: Seam>(inner: &Inner<S>) -> Result<(), String> {
    let (recorder, generation) = {
        let mut state = inner.state.borrow_mut();
        let generation = state.durable_generation;
        if state.recorded_generation >= generation {
            state.unrecorded_reason = None;
            return Ok(());
        }
        (state.generation_recorder.clone(), generation)
    };
    let outcome = match recorder {
        Some(record) => with_timeout(inner, record(generation)).await,
        None => Ok(()),
    };
    let mut state = inner.state.borrow_mut();
    match &outcome {
        Ok(()) => {
            state.recorded_generation = state.recorded_generation.max(generation);
            state.unrecorded_reason = None;
        }
        Err(reason) if state.unrecorded_reason.is_none() => {
            state.unrecorded_reason = Some(reason.clone());
            let weak = inner.self_ref.clone();
            let seam = inner.seam.clone();
            inner.seam.spawn(async move {
                loop {
                    seam.sleep(RECORD_RETRY_PAUSE).await;
                    let Some(inner) = weak.upgrade() else { return };
                    if try_record(&inner).await.is_ok() {
                        return;
                    }
                }
            });
        }
        Err(reason) => state.unrecorded_reason = Some(reason.clone()),
    }
    outcome
}

/// The result of the owner's recording, or an error after [`RECORD_TIMEOUT`].
async fn with_timeout<S: Seam>(inner: &Inner<S>, record: BoxFuture<'static, Result<(), String>>) -> Result<(), String> {
    let (mut record, mut timeout) = (record, pin!(inner.seam.sleep(RECORD_TIMEOUT)));
    poll_fn(|context| match record.as_mut().poll(context) {
        Poll::Ready(recorded) => Poll::Ready(recorded),
        Poll::Pending => {
            timeout.as_mut().poll(context).map(|()| Err(format!("it was not recorded within {RECORD_TIMEOUT}")))
        }
    })
    .await
}

/// Makes the current tail durable on every member in service.
pub async fn persist_tail<S: Seam>(inner: &Inner<S>) -> Result<(), StoreError> {
    let tail = {
        let mut state = inner.state.borrow_mut();
        let next = state.next_sequence;
        let tail = state.segments.advance_tail(next);
        state.superblock.tail = tail;
        tail
    };
    let failures = {
        let _guard = inner.superblock_lock.lock().await;
        write_superblocks(inner, |_| true).await
    };
    remove_members_unrecorded(inner, failures).await?;
    inner.state.borrow_mut().segments.durable_tail = tail;
    Ok(())
}

/// Writes the next revision of the superblock to the members in service for which `selects` is true. Returns the
/// members that failed. Callers hold [`Inner::superblock_lock`].
pub async fn write_superblocks<S: Seam>(inner: &Inner<S>, selects: impl Fn(MemberNo) -> bool) -> Vec<MemberFailure> {
    let superblock = {
        let mut state = inner.state.borrow_mut();
        state.superblock.revision += 1;
        state.superblock.clone()
    };
    let mut failures = Vec::new();
    let mut writes: Vec<BoxFuture<'_, (MemberNo, DiskResult<()>)>> = Vec::new();
    for device in inner.in_service().into_iter().filter(|device| selects(device.member)) {
        let mut own_superblock = superblock.clone();
        own_superblock.member = device.member;
        let (spare, at) = {
            let mut state = inner.state.borrow_mut();
            (state.spare_buffers.pop(), SUPERBLOCK_OFFSETS[state.next_copies[device.member.index()]])
        };
        let buffer = match spare {
            Some(buffer) => buffer,
            None => inner.alloc_buffer().await,
        };
        let block = block_of::<S>(buffer, &own_superblock.encode());
        writes.push(Box::pin(async move {
            let result = inner.write_with_retry_to(&device, at, vec![block.clone()], Durability::Flushed).await;
            return_buffer(inner, block);
            (device.member, result)
        }));
    }
    for (member, result) in join(writes).await {
        match result {
            Ok(()) => inner.state.borrow_mut().next_copies[member.index()] ^= 1,
            Err(error) => failures.push((member, error)),
        }
    }
    failures
}

/// Returns a buffer to the spare buffers for headers and superblocks.
pub fn return_buffer<S: Seam>(inner: &Inner<S>, block: S::Block) {
    let mut state = inner.state.borrow_mut();
    if state.spare_buffers.len() < SPARE_BUFFERS
        && let Ok(buffer) = seam::Block::thaw(block)
    {
        state.spare_buffers.push(buffer);
    }
}

/// Spare buffers of the store: superblocks for two members, or a header.
pub const SPARE_BUFFERS: usize = 2;

/// The devices whose write or flush failed.
pub fn failures_of<S: Seam>(devices: &[Device<S>], results: Vec<DiskResult<()>>) -> Vec<MemberFailure> {
    devices.iter().zip(results).filter_map(|(device, result)| Some((device.member, result.err()?))).collect()
}
