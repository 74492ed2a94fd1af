//! PRE-FETCH: loads blocks into the cache.

use std::rc::Rc;

use seam::Seam;

use super::{Extent, Task};
use crate::cdb::Cdb;
use crate::exchange::{DataIn, DataOut};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    /// Status is GOOD instead of CONDITION MET: the cache does not guarantee that all blocks stay in memory.
    pub(super) async fn prefetch(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let mut extent = Extent::of(&cdb);
        extent.check(unit)?;
        if extent.count == 0 {
            extent.count = unit.blocks() - extent.first;
        }
        if extent.count == 0 {
            return Ok(Status::Good);
        }
        let (at, len, volume) = (extent.offset(), extent.len_bytes(), unit.volume().clone());
        if cdb.bit(1, 1) {
            // IMMED: the load runs in the background without error report; beyond the limit nothing is loaded.
            let Some(prefetching) = unit.begin_prefetch() else { return Ok(Status::Good) };
            self.target.0.seam.spawn(async move {
                let _prefetching = prefetching;
                drop(volume.prefetch(at, len).await);
            });
        } else {
            volume.prefetch(at, len).await.map_err(|error| failure_of(&error, EngineOperation::Other))?;
        }
        Ok(Status::Good)
    }
}
