//! PREVENT ALLOW MEDIUM REMOVAL: accepted without effect, because the medium is not removable.

use seam::Seam;

use super::Task;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn prevent_allow(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if cdb.u8(4) > 1 { Err(invalid_field(4, Some(1))) } else { Ok(Status::Good) }
    }
}
