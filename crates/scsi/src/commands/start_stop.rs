//! START STOP UNIT: flushes the volume.

use std::rc::Rc;

use seam::Seam;

use super::Task;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Flushes at a stop or a power-down unless NO_FLUSH is set. The unit itself does not stop, because other
    /// initiators may use it.
    pub(super) async fn start_stop(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (power, no_flush, eject, start) = (cdb.u8(4) >> 4, cdb.bit(4, 2), cdb.bit(4, 1), cdb.bit(4, 0));
        if power != 0 || cdb.u8(3) != 0 {
            return Err(invalid_field(4, Some(7)));
        }
        if eject {
            return Err(invalid_field(4, Some(1)));
        }
        if !start && !no_flush {
            unit.volume().flush().await.map_err(|error| failure_of(&error, EngineOperation::Other))?;
        }
        Ok(Status::Good)
    }
}
