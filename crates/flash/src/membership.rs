//! Who is in service, durably (R10), and superblocks.
//!
//! A change of the members is written to both places of every survivor, so that no single damaged block can bring the old members back.

use seam::{DiskError, DiskResult, Seam};

use crate::device::{Device, block_of, buffer};
use crate::error::StoreError;
use crate::format::superblock::{MemberState, PLACES};
use crate::store::{Inner, MemberStatus};
use crate::wait::{Boxed, join};

/// A member that did not take what it had to, and what it said.
pub type Failure = (u32, DiskError);

/// Takes members out and returns when all survivors durably know. Fails when none is left that carries the log.
pub async fn take_out<S: Seam>(inner: &Inner<S>, mut failures: Vec<Failure>) -> Result<(), StoreError> {
    while !failures.is_empty() {
        {
            let mut state = inner.state.borrow_mut();
            for (member, error) in &failures {
                state.superblock.members[*member as usize].state = MemberState::Lost;
                let report = state.reports.iter_mut().find(|report| report.member == *member);
                report.expect("every member has a report").status = MemberStatus::Lost(error.to_string());
            }
            let left = (0..).zip(&state.superblock.members).any(|(member, _)| state.superblock.carries_log(member));
            if !left {
                let why: Vec<_> = failures.iter().map(|(member, error)| format!("number {member}: {error}")).collect();
                let error = StoreError::Failed(why.join(", "));
                state.failed = Some(error.clone());
                return Err(error);
            }
            state.superblock.generation += 1;
        }
        failures = write_superblocks(inner).await;
        if failures.is_empty() {
            failures = write_superblocks(inner).await;
        }
    }
    Ok(())
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
    let failures = write_superblocks(inner).await;
    take_out(inner, failures).await?;
    inner.state.borrow_mut().segments.durable_tail = tail;
    Ok(())
}

/// Writes the next revision of the superblock to every member in service; returns who failed.
pub async fn write_superblocks<S: Seam>(inner: &Inner<S>) -> Vec<Failure> {
    let superblock = {
        let mut state = inner.state.borrow_mut();
        state.superblock.revision += 1;
        state.superblock.clone()
    };
    let mut failures = Vec::new();
    let mut writes: Vec<Boxed<'_, (u32, DiskResult<()>)>> = Vec::new();
    for device in inner.in_service() {
        let mut own = superblock.clone();
        own.member = device.member;
        let (spare, at) = {
            let mut state = inner.state.borrow_mut();
            (state.spare.pop(), PLACES[state.next_places[device.member as usize]])
        };
        let buffer = match spare {
            Some(buffer) => buffer,
            None => buffer(&inner.seam).await,
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
