//! VERIFY, and WRITE AND VERIFY.

use std::rc::Rc;

use engine::WriteFlags;
use seam::Seam;

use super::compare::{first_difference, miscompare};
use super::read::has_dpo;
use super::write::TAKEN_AT_ONCE_BYTES_MAX;
use super::{Extent, LOGICAL_BLOCK_BYTES, Task, read_failed};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

/// BYTCHK field: the comparison to perform.
enum ByteCheck {
    /// No comparison: the blocks must be readable.
    Readable,
    /// Each block with its own block of data.
    Each,
    /// Every block with the same block of data.
    Same,
}

impl ByteCheck {
    fn of(cdb: &Cdb<'_>) -> Result<ByteCheck, Failure> {
        match cdb.u8(1) >> 1 & 3 {
            0 => Ok(ByteCheck::Readable),
            1 => Ok(ByteCheck::Each),
            3 => Ok(ByteCheck::Same),
            _ => Err(invalid_field(1, Some(2))),
        }
    }
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn verify(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (extent, check) = (Extent::of(&cdb), ByteCheck::of(&cdb)?);
        extent.check(unit)?;
        match check {
            ByteCheck::Readable => {}
            ByteCheck::Each => {
                extent.check_length()?;
                self.require_data(extent.len_bytes())?;
            }
            ByteCheck::Same => self.require_data(if extent.count == 0 { 0 } else { LOGICAL_BLOCK_BYTES })?,
        }
        let mut data = Vec::new();
        let mut pieces = Vec::new();
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            match check {
                ByteCheck::Each => {
                    data.clear();
                    self.take(len, &mut data).await?;
                }
                ByteCheck::Same if data.is_empty() => self.take(LOGICAL_BLOCK_BYTES as usize, &mut data).await?,
                ByteCheck::Same | ByteCheck::Readable => self.check_cancelled()?,
            }
            pieces.clear();
            // A verified block is not kept in the cache.
            unit.volume().read_once(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
            let difference = match check {
                ByteCheck::Readable => None,
                ByteCheck::Each => first_difference(&pieces, &data),
                ByteCheck::Same => first_difference(&pieces, &data.repeat(len / LOGICAL_BLOCK_BYTES as usize)),
            };
            if let Some(difference) = difference {
                return Err(miscompare(at.distance_from(extent.offset()) + difference as u64));
            }
        }
        Ok(Status::Good)
    }

    /// Writes each part with FUA and, if requested, compares the data read back. The cache serves the read: finding
    /// medium errors under durable data is left to the array's scrub.
    pub(super) async fn write_and_verify(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (extent, check) = (Extent::of(&cdb), ByteCheck::of(&cdb)?);
        if matches!(check, ByteCheck::Same) {
            return Err(invalid_field(1, Some(2)));
        }
        unit.check_writable()?;
        extent.check(unit)?;
        extent.check_length()?;
        let extent = self.expected_blocks(&extent);
        // The bits of FUA in a WRITE hold BYTCHK in this command.
        let flags = WriteFlags { fua: true, is_used_once: has_dpo(&cdb) };
        let (mut data, mut pieces) = (Vec::new(), Vec::new());
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            self.take_and_write_part(unit, at, len, flags, &mut data).await?;
            if matches!(check, ByteCheck::Each) {
                pieces.clear();
                unit.volume().read(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
                if let Some(difference) = first_difference(&pieces, &data) {
                    return Err(miscompare(at.distance_from(extent.offset()) + difference as u64));
                }
            }
        }
        Ok(Status::Good)
    }
}
