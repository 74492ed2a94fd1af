//! SYNCHRONIZE CACHE: what was acknowledged is durable.

use std::rc::Rc;

use engine::pages::slow::Asked;
use seam::Seam;

use super::{Extent, Task};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::{Doing, Failure, told};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Flushes the whole volume, whatever range was named. IMMED would acknowledge what is not done: it is done all the same, and then
    /// acknowledged.
    pub(super) async fn synchronize_cache(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        Extent::of(&cdb).check(unit)?;
        unit.volume().asked(Asked::Flush, 0, 0);
        unit.volume().flush().await.map_err(|error| told(&error, Doing::Other))?;
        Ok(Status::Good)
    }
}
