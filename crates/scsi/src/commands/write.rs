//! WRITE of all CDB lengths.

use std::rc::Rc;

use engine::telemetry::OpKind;
use engine::{ByteOffset, WriteFlags};
use seam::{BLOCK_BYTES, Seam};

use super::read::{has_dpo, has_fua};
use super::{Extent, Task, blocks_at, write_failed};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

/// Maximum bytes taken from the initiator at once.
pub const TAKEN_AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// Writes a range within one block of the engine if that needs no waiting.
pub fn try_write<S: Seam>(unit: &Unit<S>, cdb: &Cdb<'_>, expected: u64, mut data: &[u8]) -> bool {
    let extent = Extent::of(cdb);
    let len = extent.len_bytes();
    if len != expected || len != data.len() as u64 || extent.check(unit).is_err() {
        return false;
    }
    let (at, engine_block) = (extent.offset(), BLOCK_BYTES as u64);
    // A write within one block is atomic: COMPARE AND WRITE sees all of it or nothing.
    let is_within_block = len > 0 && at.offset_in_block() as u64 + len <= engine_block;
    let is_write_back = !unit.writes_through() && (cdb.0.len() == 6 || cdb.u8(1) == 0);
    let is_immediate = is_within_block && is_write_back && !unit.is_read_only() && unit.locks.is_free(&extent.blocks());
    let is_written = is_immediate && unit.volume().try_write(at, len as usize, &mut data);
    if is_written {
        unit.volume().record_request(OpKind::Write, at, len);
    }
    is_written
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn write(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let extent = Extent::of(&cdb);
        unit.check_writable()?;
        extent.check(unit)?;
        extent.check_length()?;
        let expected = self.expected_blocks(&extent);
        let flags = write_flags(unit, &cdb);
        self.take_and_write(unit, &expected, flags).await?;
        Ok(Status::Good)
    }

    /// Writes the command's data in parts as they arrive.
    pub(super) async fn take_and_write(
        &mut self,
        unit: &Rc<Unit<S>>,
        extent: &Extent,
        flags: WriteFlags,
    ) -> Result<(), Failure> {
        if extent.count == 0 {
            return Ok(());
        }
        unit.volume().record_request(OpKind::Write, extent.offset(), extent.len_bytes());
        let mut data = Vec::new();
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            self.take_and_write_part(unit, at, len, flags, &mut data).await?;
        }
        Ok(())
    }

    /// Takes the next part of the data and writes it.
    pub(super) async fn take_and_write_part(
        &mut self,
        unit: &Rc<Unit<S>>,
        at: ByteOffset,
        len: usize,
        flags: WriteFlags,
        data: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        // The data is complete before the range is locked: a slow initiator does not block other writes.
        data.clear();
        self.take(len, data).await?;
        self.write_part(unit, at, data, flags).await
    }

    /// Writes one part of the command's range, excluded from the ranges that other commands lock exclusively.
    pub(super) async fn write_part(
        &mut self,
        unit: &Rc<Unit<S>>,
        at: ByteOffset,
        mut data: &[u8],
        flags: WriteFlags,
    ) -> Result<(), Failure> {
        let len = data.len();
        let _guard = unit.locks.lock_shared(blocks_at(at, len)).await;
        self.check_cancelled()?;
        if flags == WriteFlags::default() && unit.volume().try_write(at, len, &mut data) {
            return Ok(());
        }
        unit.volume().write(at, len, flags, &mut data).await.map_err(|error| write_failed(&error, at))
    }
}

/// Write flags of a command.
pub fn write_flags<S: Seam>(unit: &Unit<S>, cdb: &Cdb<'_>) -> WriteFlags {
    WriteFlags { fua: has_fua(cdb) || unit.writes_through(), is_used_once: has_dpo(cdb) }
}
