//! Who is in service, durably (R10), and superblocks.
//!
//! A change of the members is written to both places of every survivor, so that no single damaged block can bring the old members back.

use seam::{DiskError, DiskResult, Seam};

use crate::device::{Device, block_of};
use crate::error::StoreError;
use crate::format::superblock::{MemberState, PLACES};
use crate::store::{Inner, MemberStatus};
use crate::wait::{Boxed, join};

/// A member that did not take what it had to, and what it said.
pub type Failure = (u32, DiskError);

/// Takes members out and returns when all survivors durably know, of these and of whatever else has changed. Fails when none is left
/// that carries the log.
pub async fn take_out<S: Seam>(inner: &Inner<S>, failures: Vec<Failure>) -> Result<(), StoreError> {
    mark_lost(inner, failures)?;
    settle(inner, None).await
}

/// Takes members out in memory: nothing that relies on that may be acknowledged before [`settle`] has returned.
fn mark_lost<S: Seam>(inner: &Inner<S>, failures: Vec<Failure>) -> Result<(), StoreError> {
    let mut state = inner.state.borrow_mut();
    let (mut changed, mut log_changed) = (false, false);
    for (member, error) in &failures {
        // Two tasks may have met the same failure.
        if !state.superblock.serves(*member) {
            continue;
        }
        changed = true;
        log_changed |= state.superblock.carries_log(*member);
        let since = state.superblock.generation as u32 + 1;
        let entry = &mut state.superblock.members[*member as usize];
        (entry.state, entry.since) = (MemberState::Lost, since);
        inner.pages.borrow_mut().lose_member(*member);
        let report = state.reports.iter_mut().find(|report| report.member == *member);
        report.expect("every member has a report").status = MemberStatus::Lost(error.to_string());
    }
    state.superblock.generation += u64::from(changed);
    let left = (0..).zip(&state.superblock.members).any(|(member, _)| state.superblock.carries_log(member));
    if !left && state.failed.is_none() {
        let why: Vec<_> = failures.iter().map(|(member, error)| format!("number {member}: {error}")).collect();
        state.failed = Some(StoreError::Failed(why.join(", ")));
    }
    drop(state);
    if log_changed {
        crate::members::take_over_soon(inner);
    }
    match left {
        true => Ok(()),
        false => Err(inner.state.borrow().failed.clone().expect("it was set just now")),
    }
}

/// Returns when every member in service durably knows the membership of this moment. `newcomer` is told after all others.
pub async fn settle<S: Seam>(inner: &Inner<S>, newcomer: Option<u32>) -> Result<(), StoreError> {
    loop {
        let is_durable = |inner: &Inner<S>| {
            let state = inner.state.borrow();
            (state.durable_generation >= state.superblock.generation, state.superblock.generation)
        };
        if is_durable(inner).0 {
            return Ok(());
        }
        let inside = inner.change.enter().await;
        let (durable, generation) = is_durable(inner);
        if durable {
            return Ok(());
        }
        let mut failures = Vec::new();
        for of in [Some(false), Some(true)].into_iter().skip(usize::from(newcomer.is_none())) {
            let told = |member: u32| newcomer.is_none() || of == Some(newcomer == Some(member));
            // To both places.
            for _ in 0..2 {
                if failures.is_empty() {
                    failures = write_superblocks(inner, told).await;
                }
            }
        }
        drop(inside);
        if !failures.is_empty() {
            mark_lost(inner, failures)?;
            continue;
        }
        let note = inner.state.borrow().note.clone();
        if let Some(note) = note {
            note(generation).await;
        }
        let mut state = inner.state.borrow_mut();
        state.durable_generation = state.durable_generation.max(generation);
    }
}

/// Makes the tail of this moment durable on every member in service.
pub async fn save_tail<S: Seam>(inner: &Inner<S>) -> Result<(), StoreError> {
    let tail = {
        let mut state = inner.state.borrow_mut();
        let next = state.next;
        let tail = state.segments.tail(next);
        state.superblock.tail = tail;
        tail
    };
    let failures = {
        let _inside = inner.change.enter().await;
        write_superblocks(inner, |_| true).await
    };
    take_out(inner, failures).await?;
    inner.state.borrow_mut().segments.durable_tail = tail;
    Ok(())
}

/// Writes the next revision of the superblock to every member in service that is to be `told`; returns who failed. One at a time: see
/// [`Inner::change`].
pub async fn write_superblocks<S: Seam>(inner: &Inner<S>, told: impl Fn(u32) -> bool) -> Vec<Failure> {
    let superblock = {
        let mut state = inner.state.borrow_mut();
        state.superblock.revision += 1;
        state.superblock.clone()
    };
    let mut failures = Vec::new();
    let mut writes: Vec<Boxed<'_, (u32, DiskResult<()>)>> = Vec::new();
    for device in inner.in_service().into_iter().filter(|device| told(device.member)) {
        let mut own = superblock.clone();
        own.member = device.member;
        let (spare, at) = {
            let mut state = inner.state.borrow_mut();
            (state.spare.pop(), PLACES[state.next_places[device.member as usize]])
        };
        let buffer = match spare {
            Some(buffer) => buffer,
            None => inner.buffer().await,
        };
        let block = block_of::<S>(buffer, &own.encode());
        writes.push(Box::pin(async move {
            let result = device.write_durably(at, vec![block.clone()], true).await;
            give_back(inner, block);
            (device.member, result)
        }));
    }
    for (member, result) in join(writes).await {
        match result {
            Ok(()) => inner.state.borrow_mut().next_places[member as usize] ^= 1,
            Err(error) => failures.push((member, error)),
        }
    }
    failures
}

/// Keeps a buffer for the next header or superblock.
pub fn give_back<S: Seam>(inner: &Inner<S>, block: S::Block) {
    let mut state = inner.state.borrow_mut();
    if state.spare.len() < SPARE_BLOCKS
        && let Ok(buffer) = seam::Block::thaw(block)
    {
        state.spare.push(buffer);
    }
}

/// Buffers that the store keeps for itself: superblocks for two members, or a header.
pub const SPARE_BLOCKS: usize = 2;

/// Those of `devices` that a write or flush failed on.
pub fn failures_of<S: Seam>(devices: &[Device<S>], results: Vec<DiskResult<()>>) -> Vec<Failure> {
    devices.iter().zip(results).filter_map(|(device, result)| Some((device.member, result.err()?))).collect()
}
