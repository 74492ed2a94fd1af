//! REQUEST SENSE: returns a pending unit attention as data.

use seam::Seam;

use super::Task;
use crate::absent::{no_unit, not_ready};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::sense::{Asc, Sense, SenseFormat, SenseKey};
use crate::status::Status;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Consumes the attention that it returns.
    pub(super) async fn request_sense(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let format = if cdb.bit(1, 0) { SenseFormat::Descriptor } else { SenseFormat::Fixed };
        let sense = match &self.unit {
            None if self.absent_unit.is_some() => not_ready(),
            None => no_unit(),
            Some(unit) => match unit.take_attention(self.nexus) {
                Some(attention) => attention.sense(),
                None => Sense::new(SenseKey::NO_SENSE, Asc::NONE),
            },
        };
        self.send_response(&sense.bytes(format), cdb.u8(4)).await
    }
}
