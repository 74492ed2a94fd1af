//! Durable changes of the members in service (R10), and writes of superblocks.
//!
//! A change of the members is written to both places of every survivor, so that no single damaged block can restore the
//! old members.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use seam::{DiskError, DiskResult, Nanos, Seam};

use crate::device::{Device, block_of};
use crate::error::StoreError;
use crate::format::superblock::{MemberState, PLACES};
use crate::store::{Inner, MemberStatus};
use crate::wait::{Boxed, join};

/// A member that failed a request, and the error.
pub type Failure = (u32, DiskError);

/// Pause between two attempts to have a generation noted.
const NOTE_PAUSE: Nanos = Nanos::from_secs(1);
/// The time that the owner has to note a generation.
const NOTE_PATIENCE: Nanos = Nanos::from_secs(5);

/// Takes members out. Returns when all survivors durably know of it and of any other change, and the owner has noted
/// it. Fails when no member is left that carries the log.
pub async fn take_out<S: Seam>(inner: &Inner<S>, failures: Vec<Failure>) -> Result<(), StoreError> {
    take_out_unnoted(inner, failures).await?;
    wait_until_noted(inner).await;
    Ok(())
}

/// Like [`take_out`], for callers that do not depend on the owner's note, or wait for it themselves.
pub async fn take_out_unnoted<S: Seam>(inner: &Inner<S>, failures: Vec<Failure>) -> Result<(), StoreError> {
    mark_lost(inner, failures)?;
    tell_members(inner, None).await
}

/// Takes members out in memory. Nothing that relies on it may be acknowledged before all survivors durably know of it
/// and the owner has noted it.
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
        let since = state.superblock.generation.next().since();
        let entry = &mut state.superblock.members[*member as usize];
        (entry.state, entry.since) = (MemberState::Lost, since);
        inner.pages.borrow_mut().drop_member_pages(*member);
        state.devices.iter().filter(|device| device.member == *member).for_each(|device| device.abort.abort());
        let report = state.reports.iter_mut().find(|report| report.member == *member);
        report.expect("every member has a report").status = MemberStatus::Lost(reason(error));
    }
    if changed {
        state.superblock.generation = state.superblock.generation.next();
    }
    let left = (0..).zip(&state.superblock.members).any(|(member, _)| state.superblock.carries_log(member));
    if !left && state.failed.is_none() {
        let why: Vec<_> =
            failures.iter().map(|(member, error)| format!("number {member}: {}", reason(error))).collect();
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

/// The reason of a failure, for people.
fn reason(error: &DiskError) -> String {
    match error {
        DiskError::NoSpace => "no space is left on the file system under the flash file: free some there, \
             then replace the device by itself"
            .to_owned(),
        error => error.to_string(),
    }
}

/// Returns when every member in service durably knows the current membership, and the owner has noted it. `newcomer` is
/// told after all others.
pub async fn settle<S: Seam>(inner: &Inner<S>, newcomer: Option<u32>) -> Result<(), StoreError> {
    tell_members(inner, newcomer).await?;
    wait_until_noted(inner).await;
    Ok(())
}

async fn tell_members<S: Seam>(inner: &Inner<S>, newcomer: Option<u32>) -> Result<(), StoreError> {
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
            // Write both places.
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
        let mut state = inner.state.borrow_mut();
        state.durable_generation = state.durable_generation.max(generation);
    }
}

/// Has the owner note the generation that the members durably know. After an earlier failure this fails at once, and a
/// task repeats the attempt.
pub async fn have_noted<S: Seam>(inner: &Inner<S>) -> Result<(), String> {
    let known = inner.state.borrow().unnoted.clone();
    match known {
        Some(why) => Err(why),
        None => try_note(inner).await,
    }
}

async fn wait_until_noted<S: Seam>(inner: &Inner<S>) {
    while have_noted(inner).await.is_err() {
        inner.seam.sleep(NOTE_PAUSE).await;
    }
}

async fn try_note<S: Seam>(inner: &Inner<S>) -> Result<(), String> {
    let (note, generation) = {
        let mut state = inner.state.borrow_mut();
        let generation = state.durable_generation;
        if state.noted_generation >= generation {
            state.unnoted = None;
            return Ok(());
        }
        (state.note.clone(), generation)
    };
    let noted = match note {
        Some(note) => within(inner, note(generation)).await,
        None => Ok(()),
    };
    let mut state = inner.state.borrow_mut();
    match &noted {
        Ok(()) => {
            state.noted_generation = state.noted_generation.max(generation);
            state.unnoted = None;
        }
        Err(why) if state.unnoted.is_none() => {
            state.unnoted = Some(why.clone());
            let me = inner.me.clone();
            let seam = inner.seam.clone();
            inner.seam.spawn(async move {
                loop {
                    seam.sleep(NOTE_PAUSE).await;
                    let Some(inner) = me.upgrade() else { return };
                    if try_note(&inner).await.is_ok() {
                        return;
                    }
                }
            });
        }
        Err(why) => state.unnoted = Some(why.clone()),
    }
    noted
}

/// The owner's answer, or an error if it takes too long.
async fn within<S: Seam>(inner: &Inner<S>, note: Boxed<'static, Result<(), String>>) -> Result<(), String> {
    let (mut note, mut limit) = (note, pin!(inner.seam.sleep(NOTE_PATIENCE)));
    poll_fn(|context| match note.as_mut().poll(context) {
        Poll::Ready(noted) => Poll::Ready(noted),
        Poll::Pending => limit.as_mut().poll(context).map(|()| Err(format!("it was not noted within {NOTE_PATIENCE}"))),
    })
    .await
}

/// Makes the current tail durable on every member in service.
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
    take_out_unnoted(inner, failures).await?;
    inner.state.borrow_mut().segments.durable_tail = tail;
    Ok(())
}

/// Writes the next revision of the superblock to every member in service that `told` selects. Returns the members that
/// failed. Callers hold [`Inner::change`].
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
            let result = inner.write_durably_to(&device, at, vec![block.clone()], true).await;
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

/// Spare buffers of the store: superblocks for two members, or a header.
pub const SPARE_BLOCKS: usize = 2;

/// The devices whose write or flush failed.
pub fn failures_of<S: Seam>(devices: &[Device<S>], results: Vec<DiskResult<()>>) -> Vec<Failure> {
    devices.iter().zip(results).filter_map(|(device, result)| Some((device.member, result.err()?))).collect()
}
