//! Commands that do little: a unit that never stops and has no medium to take out answers them as such.

use std::rc::Rc;

use seam::Seam;

use super::Task;
use crate::absent::not_ready;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::{Doing, Failure, told};
use crate::sense::{Asc, Format, Key, Sense};
use crate::status::Status;
use crate::target::no_unit;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// What there is to be told is taken and sent as data.
    pub(super) async fn request_sense(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let format = if cdb.bit(1, 0) { Format::Descriptor } else { Format::Fixed };
        let sense = match &self.unit {
            None if self.absent.is_some() => not_ready(),
            None => no_unit(),
            Some(unit) => match unit.take_attention(self.nexus) {
                Some(attention) => attention.sense(),
                None => Sense::new(Key::NO_SENSE, Asc::NONE),
            },
        };
        self.answer(&sense.bytes(format), cdb.u8(4)).await
    }

    /// Other initiators use the unit: it does not stop. Who stops it or lets it rest is done with it, so what it wrote is made durable, unless
    /// NO_FLUSH.
    pub(super) async fn start_stop(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (power, no_flush, eject, start) = (cdb.u8(4) >> 4, cdb.bit(4, 2), cdb.bit(4, 1), cdb.bit(4, 0));
        if power != 0 || cdb.u8(3) != 0 {
            return Err(invalid_field(4, Some(7)));
        }
        if eject {
            return Err(invalid_field(4, Some(1)));
        }
        if !start && !no_flush {
            unit.volume().flush().await.map_err(|error| told(&error, Doing::Other))?;
        }
        Ok(Status::Good)
    }

    /// Nobody takes its medium out.
    pub(super) async fn prevent_allow(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if cdb.u8(4) > 1 { Err(invalid_field(4, Some(1))) } else { Ok(Status::Good) }
    }
}
