//! A checkpoint: the whole map as records, written piece by piece into the half that commits do not use. Records of
//! concurrent commits follow the pieces written so far. All records are absolute, so the last record of a slot is
//! valid.

use std::rc::Rc;

use seam::{DiskResult, Seam};

use super::commit::{build_free_record, build_slot_record, remove_failed_members, write};
use crate::device::Device;
use crate::error::StoreError;
use crate::format::journal::{JournalRecord, RECORDS_MAX};
use crate::membership::failures_of;
use crate::number::CommitNo;
use crate::page_map::PageState;
use crate::page_map::journal::Checkpoint;
use crate::page_map::table::SlotPhase;
use crate::state::Inner;
use task_sync::{BoxFuture, join};

/// Journal blocks of a piece.
const PIECE_BLOCKS: usize = 32;

/// The devices in service to which the checkpoint is written.
pub fn devices_of<S: Seam>(inner: &Inner<S>, checkpoint: &Checkpoint) -> Vec<Device<S>> {
    let mut devices = inner.log_devices();
    devices.retain(|device| checkpoint.includes(device.member));
    devices
}

/// Writes the next piece.
pub async fn write_piece<S: Seam>(inner: &Rc<Inner<S>>) -> Result<(), StoreError> {
    let Some((checkpoint, records)) = take_next_piece(inner) else { return Ok(()) };
    let commit_no = inner.pages.borrow().journal.last_durable_commit;
    let devices = devices_of(inner, &checkpoint);
    let head = write(inner, &devices, checkpoint.head, commit_no, &records, false).await?;
    if let Some(checkpoint) = &mut inner.pages.borrow_mut().journal.checkpoint {
        checkpoint.head = head;
    }
    Ok(())
}

/// Appends the records of a commit to the checkpoint in progress.
pub async fn append_commit<S: Seam>(
    inner: &Rc<Inner<S>>,
    commit_no: CommitNo,
    records: &[JournalRecord],
) -> Result<(), StoreError> {
    let Some(checkpoint) = inner.pages.borrow().journal.checkpoint.clone() else { return Ok(()) };
    let devices = devices_of(inner, &checkpoint);
    let head = write(inner, &devices, checkpoint.head, commit_no, records, false).await?;
    if let Some(checkpoint) = &mut inner.pages.borrow_mut().journal.checkpoint {
        checkpoint.head = head;
    }
    Ok(())
}

/// Flushes a checkpoint that is at its end. Returns false when the checkpoint has failed: a device may have lost a part
/// of it, or no device has all of it.
pub async fn flush<S: Seam>(inner: &Rc<Inner<S>>) -> Result<bool, StoreError> {
    let Some(checkpoint) = inner.pages.borrow().journal.checkpoint.clone() else { return Ok(false) };
    let devices = devices_of(inner, &checkpoint);
    let flushes = devices.iter().map(|device| {
        let flush: BoxFuture<'_, DiskResult<()>> = Box::pin(inner.flush_member(device));
        flush
    });
    let failures = failures_of(&devices, join(flushes.collect()).await);
    remove_failed_members(inner, failures).await?;
    let devices = devices_of(inner, &checkpoint);
    let is_intact = !devices.is_empty() && checkpoint.is_intact(&devices);
    if !is_intact {
        let journal = &mut inner.pages.borrow_mut().journal;
        (journal.checkpoint, journal.is_checkpoint_requested) = (None, true);
    }
    Ok(is_intact)
}

/// The records of the next piece, and the checkpoint advanced past them.
fn take_next_piece<S: Seam>(inner: &Inner<S>) -> Option<(Checkpoint, Vec<JournalRecord>)> {
    let members: Vec<_> = {
        let state = inner.state.borrow();
        let serving = state.superblock.numbered_members().filter(|(member, _)| state.superblock.serves(*member));
        serving.map(|(member, entry)| (member, entry.uuid)).collect()
    };
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    let mut checkpoint = state.journal.checkpoint.take()?;
    let mut records = Vec::new();
    let mut next_frame = match checkpoint.next_frame {
        Some(next_frame) => next_frame,
        None => {
            records.extend(members.iter().map(|(member, uuid)| JournalRecord::Member { member: *member, uuid: *uuid }));
            state.journal.recorded_members = members.iter().map(|(member, _)| *member).collect();
            let volumes = state.volumes.iter();
            records.extend(
                volumes.map(|(number, volume_id)| JournalRecord::Volume { number: *number, volume_id: *volume_id }),
            );
            records.extend(state.dirty_regions.regions().map(|region| region.record(true)));
            records.extend(state.recent_writes.records());
            0
        }
    };
    let records_max = PIECE_BLOCKS * RECORDS_MAX;
    while records.len() < records_max {
        let Some(number) = state.table.first_frame_from(next_frame) else {
            checkpoint.is_at_end = true;
            break;
        };
        let frame = state.table.frame(number);
        records.push(JournalRecord::Segment {
            member: frame.member,
            segment: frame.segment,
            segment_generation: frame.segment_generation,
        });
        let slots = state.table.slots_of(number);
        records.extend(slots.filter_map(|slot| slot_state_record(state, slot)));
        next_frame = number + 1;
    }
    checkpoint.next_frame = Some(next_frame);
    state.journal.checkpoint = Some(checkpoint.clone());
    Some((checkpoint, records))
}

/// The record of a slot; `None` for a slot in its initial state.
fn slot_state_record<S: Seam>(state: &PageState<S>, slot: u32) -> Option<JournalRecord> {
    match state.table.phase(slot) {
        SlotPhase::Live => Some(build_slot_record(state, slot)),
        _ if state.table.generation(slot) == 0 => None,
        _ => Some(build_free_record(state, slot)),
    }
}
