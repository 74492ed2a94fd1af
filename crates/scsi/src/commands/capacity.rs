//! READ CAPACITY(10) and (16).

use std::rc::Rc;

use seam::Seam;

use super::{LOGICAL_BLOCK_BYTES, Task};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn read_capacity_10(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if !cdb.bit(8, 0) && cdb.u32(2) != 0 {
            return Err(invalid_field(2, None));
        }
        // A size beyond 32 bits is reported as 0xffffffff, which makes the initiator send READ CAPACITY(16).
        let last = u32::try_from(unit.blocks() - 1).unwrap_or(u32::MAX);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&last.to_be_bytes());
        bytes[4..].copy_from_slice(&(LOGICAL_BLOCK_BYTES as u32).to_be_bytes());
        self.send_response(&bytes, 8_u64).await
    }

    pub(super) async fn read_capacity_16(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if !cdb.bit(14, 0) && cdb.u64(2) != 0 {
            return Err(invalid_field(2, None));
        }
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(unit.blocks() - 1).to_be_bytes());
        bytes[8..12].copy_from_slice(&(LOGICAL_BLOCK_BYTES as u32).to_be_bytes());
        bytes[13] = if unit.physical_4k { 3 } else { 0 };
        // LBPME and LBPRZ: thin, and unmapped blocks read as zeroes.
        bytes[14] = 0xc0;
        self.send_response(&bytes, cdb.u32(10)).await
    }
}
