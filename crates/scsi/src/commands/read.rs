//! READ of all CDB lengths.

use std::rc::Rc;

use engine::telemetry::OpKind;
use seam::{Piece, Seam};

use super::{Extent, Task, read_failed};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut, SENT_AT_ONCE_BYTES_MAX};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::status::Status;
use crate::unit::Unit;

/// Maximum blocks that one command reads or writes: 64 MiB.
pub const TRANSFER_BLOCKS_MAX: u32 = 131_072;

/// Reads if all of the range is in memory; otherwise reads nothing and returns false.
pub fn try_read<S: Seam>(unit: &Unit<S>, cdb: &Cdb<'_>, expected: u64, pieces: &mut Vec<Piece<S::Block>>) -> bool {
    let extent = Extent::of(cdb);
    let len = extent.len_bytes();
    let is_single_transfer =
        len == expected && len > 0 && len <= SENT_AT_ONCE_BYTES_MAX as u64 && extent.check(unit).is_ok();
    let has_no_flags = cdb.0.len() == 6 || cdb.u8(1) == 0;
    let is_read = is_single_transfer && has_no_flags && unit.volume().try_read(extent.offset(), len as usize, pieces);
    if is_read {
        unit.volume().record_request(OpKind::Read, extent.offset(), len);
    }
    is_read
}

/// True if DPO is set: the initiator does not access the blocks again soon.
pub fn has_dpo(cdb: &Cdb<'_>) -> bool {
    cdb.0.len() > 6 && cdb.bit(1, 4)
}

/// True if FUA or FUA_NV is set; both mean the medium, because the cache has no non-volatile part here.
pub fn has_fua(cdb: &Cdb<'_>) -> bool {
    cdb.0.len() > 6 && (cdb.bit(1, 3) || cdb.bit(1, 1))
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn read(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let extent = Extent::of(&cdb);
        extent.check(unit)?;
        extent.check_length()?;
        self.transfer_bytes = extent.len_bytes();
        // Blocks beyond the initiator's expected length are not read.
        let requested = extent.truncated_to(self.expected.in_bytes);
        if requested.count > 0 {
            unit.volume().record_request(OpKind::Read, requested.offset(), requested.len_bytes());
        }
        let (once, fua) = (has_dpo(&cdb), has_fua(&cdb));
        if fua {
            // Blocks read with FUA must be on the medium when they are sent.
            unit.volume().flush().await.map_err(|error| failure_of(&error, EngineOperation::Other))?;
        }
        let (volume, mut pieces) = (unit.volume(), Vec::new());
        for (at, len) in requested.parts(SENT_AT_ONCE_BYTES_MAX) {
            self.check_cancelled()?;
            self.data_in.reserve_buffers(len).await?;
            let read = match once {
                false => volume.read(at, len, &mut pieces).await,
                true => volume.read_once(at, len, &mut pieces).await,
            };
            read.map_err(|error| read_failed(&error, at))?;
            self.send(&mut pieces).await?;
        }
        Ok(Status::Good)
    }
}
