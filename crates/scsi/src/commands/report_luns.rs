//! REPORT LUNS: the units that the initiator may see, and their number.

use seam::Seam;

use super::Task;
use crate::absent::no_unit;
use crate::attention::Attention;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::lun::Lun;
use crate::status::Status;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn report_luns(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if self.unit.is_none() && self.absent_unit.is_none() && !self.at_lun_zero {
            return Err(no_unit().into());
        }
        let (select, allocation_len) = (cdb.u8(2), cdb.u32(6));
        if allocation_len < 16 {
            return Err(invalid_field(6, None));
        }
        let luns: Vec<Lun> = match select {
            // All units use peripheral or flat addressing, so 0x00 and 0x02 are the same; well-known units do not
            // exist.
            0x00 | 0x02 => self.target.luns_of(self.nexus),
            0x01 => Vec::new(),
            _ => return Err(invalid_field(2, None)),
        };
        for unit in self.target.units().iter().filter(|unit| unit.admits(self.nexus)) {
            unit.remove_attention(self.nexus, Attention::LunsChanged);
        }
        let mut bytes = (luns.len() as u32 * 8).to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(luns.iter().flat_map(|lun| lun.encode()));
        self.send_response(&bytes, allocation_len).await
    }
}
