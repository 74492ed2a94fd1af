//! SYNCHRONIZE CACHE: makes acknowledged writes durable.

use std::rc::Rc;

use engine::ByteOffset;
use engine::telemetry::OpKind;
use seam::Seam;

use super::{Extent, Task};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Flushes the whole volume, whatever the range. IMMED is ignored: the command is acknowledged only after the
    /// flush.
    pub(super) async fn synchronize_cache(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        Extent::of(&cdb).check(unit)?;
        unit.volume().record_request(OpKind::Flush, ByteOffset::ZERO, 0);
        unit.volume().flush().await.map_err(|error| failure_of(&error, EngineOperation::Other))?;
        Ok(Status::Good)
    }
}
