//! PRE-FETCH: a hint to the cache.

use std::rc::Rc;

use seam::Seam;

use super::{Extent, Task};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::{Doing, Failure, told};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Good rather than "condition met": that all of it is in memory nobody can promise for the next moment.
    pub(super) async fn prefetch(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let mut extent = Extent::of(&cdb);
        extent.check(unit)?;
        if extent.count == 0 {
            extent.count = unit.blocks() - extent.first;
        }
        if extent.count == 0 {
            return Ok(Status::Good);
        }
        let (at, len, volume) = (extent.offset_bytes(), extent.len_bytes(), unit.volume().clone());
        if cdb.bit(1, 1) {
            // Its end concerns nobody: a hint has no error, and one too many is not taken.
            let Some(prefetching) = unit.prefetch() else { return Ok(Status::Good) };
            self.target.0.seam.spawn(async move {
                let _prefetching = prefetching;
                drop(volume.prefetch(at, len).await);
            });
        } else {
            volume.prefetch(at, len).await.map_err(|error| told(&error, Doing::Other))?;
        }
        Ok(Status::Good)
    }
}
