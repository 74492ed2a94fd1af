//! READ in all lengths.

use std::rc::Rc;

use engine::pages::slow::Asked;
use seam::{Piece, Seam};

use super::{Extent, Task, read_failed};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut, SENT_AT_ONCE_BYTES_MAX};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

/// Most blocks that one command reads or writes: 16 MiB.
pub const TRANSFER_BLOCKS_MAX: u32 = 32_768;

/// Reads what is in memory, all of it or nothing.
pub fn read_now<S: Seam>(unit: &Unit<S>, cdb: &Cdb<'_>, expected: u64, pieces: &mut Vec<Piece<S::Block>>) -> bool {
    let extent = Extent::of(cdb);
    let len = extent.len_bytes();
    let ordinary = len == expected && len > 0 && len <= SENT_AT_ONCE_BYTES_MAX as u64 && extent.check(unit).is_ok();
    let done = ordinary && unit.volume().read_now(extent.offset_bytes(), len as usize, pieces);
    if done {
        unit.volume().asked(Asked::Read, extent.offset_bytes(), len);
    }
    done
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn read(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let extent = Extent::of(&cdb);
        extent.check(unit)?;
        extent.check_length()?;
        self.transfer_bytes = extent.len_bytes();
        // What the initiator has no room for need not be read.
        let wanted = extent.cut_to(self.expected.in_bytes);
        if wanted.count > 0 {
            unit.volume().asked(Asked::Read, wanted.offset_bytes(), wanted.len_bytes());
        }
        let mut pieces = Vec::new();
        for (at, len) in wanted.parts(SENT_AT_ONCE_BYTES_MAX) {
            self.check_wanted()?;
            self.input.room(len).await?;
            unit.volume().read(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
            self.send(&mut pieces).await?;
        }
        Ok(Status::Good)
    }
}
