//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS: copies blocks within the target, without moving them to the
//! initiator.

mod list;
mod source;

pub use list::{
    BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, DESCRIPTORS_BYTES_MAX, IDENTIFICATION_DESCRIPTOR, SEGMENT_BYTES_MAX,
    SEGMENT_DESCRIPTORS_MAX, TARGET_DESCRIPTORS_MAX,
};

use std::rc::Rc;

use engine::telemetry::OpKind;
use engine::{ByteOffset, WriteFlags, ZeroFlags};
use seam::{Block, Seam};

use self::list::{LIST_BYTES_MAX, ParameterList, Segment};
use self::source::PieceSource;
use super::{Extent, LOGICAL_BLOCK_BYTES, Task, blocks_at, offset_of, read_failed, write_failed};
use crate::cdb::{Cdb, invalid_field};
use crate::copy_results::CopyStatus;
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::opcodes::Conflict;
use crate::sense::{Asc, Sense, SenseKey};
use crate::status::Status;
use crate::unit::Unit;

/// Maximum bytes that are read before they are written.
const PART_BYTES_MAX: usize = 1 << 20;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn extended_copy(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let len = cdb.u32(10) as usize;
        if len > LIST_BYTES_MAX {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let bytes = self.parameters(len).await?;
        if bytes.is_empty() {
            return Ok(Status::Good);
        }
        let list = ParameterList::decode(&bytes)?;
        let mut devices = Vec::new();
        for naa in &list.target_descriptors {
            let device = self.target.units().into_iter().find(|unit| unit.identity.naa[..] == naa[..]);
            devices.push(device.filter(|unit| unit.admits(self.nexus)));
        }
        let results = &unit.copy_results;
        if let Some(id) = list.id {
            results.begin(self.nexus, id)?;
        }
        let mut status = CopyStatus::default();
        let result = self.copy_all(unit, &list, &devices, &mut status).await;
        let failed = result.is_err();
        if let Some(id) = list.id {
            results.finish(self.nexus, id, list.holds_results.then_some(CopyStatus { failed, ..status }));
        }
        result.map(|()| Status::Good)
    }

    async fn copy_all(
        &mut self,
        unit: &Rc<Unit<S>>,
        list: &ParameterList,
        devices: &[Option<Rc<Unit<S>>>],
        status: &mut CopyStatus,
    ) -> Result<(), Failure> {
        for segment in &list.segments {
            let device = |index: u16| devices.get(usize::from(index)).cloned().flatten().ok_or_else(unreachable_device);
            let (source, destination) = (device(segment.source_descriptor)?, device(segment.destination_descriptor)?);
            source.check_present()?;
            destination.check_present()?;
            destination.check_writable()?;
            source.reservations.check(self.nexus, Conflict::Read)?;
            destination.reservations.check(self.nexus, Conflict::Write)?;
            for (unit, first) in [(&source, segment.source_lba), (&destination, segment.destination_lba)] {
                let extent = Extent { first, count: segment.blocks };
                extent.check(unit).map_err(|_| range_beyond_device())?;
            }
            // A reset or a preemption at the destination ends the copy as well, and waits for it.
            let is_other_unit = !Rc::ptr_eq(&destination, unit);
            let _running = is_other_unit.then(|| destination.tasks.begin(self.nexus.0.number, self.cancel, true));
            self.copy_segment(&source, &destination, segment, status).await?;
            status.segments += 1;
            if let Some(id) = list.id {
                unit.copy_results.record_progress(self.nexus, id, *status);
            }
        }
        Ok(())
    }

    async fn copy_segment(
        &mut self,
        source: &Rc<Unit<S>>,
        destination: &Rc<Unit<S>>,
        segment: &Segment,
        status: &mut CopyStatus,
    ) -> Result<(), Failure> {
        if segment.blocks == 0 {
            return Ok(());
        }
        let len = segment.blocks * LOGICAL_BLOCK_BYTES;
        let (source_start, destination_start) = (offset_of(segment.source_lba), offset_of(segment.destination_lba));
        source.volume().record_request(OpKind::Read, source_start, len);
        destination.volume().record_request(OpKind::Write, destination_start, len);
        // An overlapping destination above its source is copied from the end, so that no block is overwritten before it
        // is read.
        let backwards = Rc::ptr_eq(source, destination)
            && (segment.source_lba + 1..segment.source_lba + segment.blocks).contains(&segment.destination_lba);
        let mut parts: Vec<(ByteOffset, usize)> =
            Extent { first: segment.destination_lba, count: segment.blocks }.parts(PART_BYTES_MAX).collect();
        if backwards {
            parts.reverse();
        }
        let mut pieces = Vec::new();
        for (at, len) in parts {
            self.check_cancelled()?;
            let source_offset = source_start.plus(at.distance_from(destination_start));
            let _guard = destination.locks.lock_shared(blocks_at(at, len)).await;
            self.check_cancelled()?;
            destination.reservations.check(self.nexus, Conflict::Write)?;
            pieces.clear();
            source
                .volume()
                .read_once(source_offset, len, &mut pieces)
                .await
                .map_err(|error| read_failed(&error, source_offset))?;
            self.check_cancelled()?;
            let failed = |error| write_failed(&error, at);
            if pieces.iter().all(|piece| piece.block.is_zero(piece.start(), piece.len())) {
                // Zeroes are written as unmapped blocks: a hole stays a hole.
                let flags = ZeroFlags { fua: destination.writes_through(), may_unmap: true, fast_only: false };
                destination.volume().zero(at, len as u64, flags).await.map_err(failed)?;
            } else {
                let flags = WriteFlags { fua: destination.writes_through(), is_used_once: true };
                destination.volume().write(at, len, flags, &mut PieceSource::new(&pieces)).await.map_err(failed)?;
            }
            status.bytes += len as u64;
        }
        Ok(())
    }

    pub(super) async fn copy_status(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let status = unit.copy_results.status(self.nexus, cdb.u8(2)).ok_or_else(|| invalid_field(2, None))?;
        self.send_response(&status.bytes(), cdb.u32(10)).await
    }

    pub(super) async fn copy_parameters(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        self.send_response(&list::operating_parameters(), cdb.u32(10)).await
    }
}

/// Sense data for a segment whose device does not exist or is not visible to the initiator.
fn unreachable_device() -> Failure {
    Sense::new(SenseKey::COPY_ABORTED, Asc::UNREACHABLE_COPY_TARGET).into()
}

/// Sense data for a segment whose range exceeds its device.
fn range_beyond_device() -> Failure {
    Sense::new(SenseKey::COPY_ABORTED, Asc::NONE).into()
}
