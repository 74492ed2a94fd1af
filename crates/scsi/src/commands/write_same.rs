//! WRITE SAME: writes one block's content to a range. Zeroes become metadata and write no block.

use std::rc::Rc;

use engine::ZeroFlags;
use engine::telemetry::OpKind;
use seam::Seam;

use super::vpd::WRITE_SAME_BLOCKS_MAX;
use super::write::TAKEN_AT_ONCE_BYTES_MAX;
use super::{Extent, LOGICAL_BLOCK_BYTES, Task, blocks_at, write_failed};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

/// Bytes zeroed between two checks for cancellation.
const ZEROED_AT_ONCE_BYTES_MAX: usize = 256 << 20;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn write_same(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let mut extent = Extent::of(&cdb);
        let (may_unmap, no_data) = (cdb.bit(1, 3), cdb.0.len() == 16 && cdb.bit(1, 0));
        unit.check_writable()?;
        extent.check(unit)?;
        let to_the_end = extent.count == 0;
        if to_the_end {
            extent.count = unit.blocks() - extent.first;
        }
        if extent.count > WRITE_SAME_BLOCKS_MAX {
            return Err(invalid_field(if cdb.0.len() == 16 { 10 } else { 7 }, None));
        }
        let mut data = Vec::new();
        // UNMAP without data means zeroes, even without NDOB.
        if !(no_data || may_unmap && self.expected.out_bytes == 0) {
            self.require_exact_data(LOGICAL_BLOCK_BYTES)?;
            self.take(LOGICAL_BLOCK_BYTES as usize, &mut data).await?;
        }
        if extent.count == 0 {
            return Ok(Status::Good);
        }
        let fua = unit.writes_through();
        // Content other than zeroes is written, not unmapped. An exception is UNMAP to the end of the unit, which
        // unmaps whatever the block (libiscsi's test suite sends any content).
        if data.iter().all(|byte| *byte == 0) || may_unmap && to_the_end {
            let flags = ZeroFlags { fua, may_unmap, fast_only: false };
            return self.zero(unit, &extent, flags).await;
        }
        let pattern =
            data.repeat(TAKEN_AT_ONCE_BYTES_MAX.min(extent.len_bytes() as usize) / LOGICAL_BLOCK_BYTES as usize);
        unit.volume().record_request(OpKind::Write, extent.offset(), extent.len_bytes());
        let flags = engine::WriteFlags { fua, ..Default::default() };
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            self.check_cancelled()?;
            self.write_part(unit, at, &pattern[..len], flags).await?;
        }
        Ok(Status::Good)
    }

    async fn zero(&mut self, unit: &Rc<Unit<S>>, extent: &Extent, flags: ZeroFlags) -> Result<Status, Failure> {
        unit.volume().record_request(OpKind::Zero, extent.offset(), extent.len_bytes());
        for (at, len) in extent.parts(ZEROED_AT_ONCE_BYTES_MAX) {
            self.check_cancelled()?;
            let _guard = unit.locks.lock_shared(blocks_at(at, len)).await;
            unit.volume().zero(at, len as u64, flags).await.map_err(|error| write_failed(&error, at))?;
        }
        Ok(Status::Good)
    }
}
