//! VERIFY, and WRITE AND VERIFY: the medium gives what it should.

use std::rc::Rc;

use engine::WriteFlags;
use seam::Seam;

use super::compare::{first_difference, miscompare};
use super::read::is_once;
use super::write::TAKEN_AT_ONCE_BYTES_MAX;
use super::{BLOCK, Extent, Task, read_failed};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;
use crate::unit::Unit;

/// What is compared.
enum Check {
    /// Nothing: it has to be readable.
    Readable,
    /// Every block with one of its own.
    Each,
    /// Every block with the same one.
    Same,
}

impl Check {
    fn of(cdb: &Cdb<'_>) -> Result<Check, Failure> {
        match cdb.u8(1) >> 1 & 3 {
            0 => Ok(Check::Readable),
            1 => Ok(Check::Each),
            3 => Ok(Check::Same),
            _ => Err(invalid_field(1, Some(2))),
        }
    }
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn verify(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (extent, check) = (Extent::of(&cdb), Check::of(&cdb)?);
        extent.check(unit)?;
        match check {
            Check::Readable => {}
            Check::Each => {
                extent.check_length()?;
                self.wants_data(extent.len_bytes())?;
            }
            Check::Same => self.wants_data(if extent.count == 0 { 0 } else { BLOCK })?,
        }
        let mut data = Vec::new();
        let mut pieces = Vec::new();
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            match check {
                Check::Each => {
                    data.clear();
                    self.take(len, &mut data).await?;
                }
                Check::Same if data.is_empty() => self.take(BLOCK as usize, &mut data).await?,
                Check::Same | Check::Readable => self.check_wanted()?,
            }
            pieces.clear();
            // What is only looked at has no claim on the cache.
            unit.volume().read_once(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
            let difference = match check {
                Check::Readable => None,
                Check::Each => first_difference(&pieces, &data),
                Check::Same => first_difference(&pieces, &data.repeat(len / BLOCK as usize)),
            };
            if let Some(place) = difference {
                return Err(miscompare(at - extent.offset_bytes() + place as u64));
            }
        }
        Ok(Status::Good)
    }

    /// Writes each part through, and compares what is read back if that is wanted. (It is the cache that answers: what a medium did with
    /// durable data is for a scrub of its array to find.)
    pub(super) async fn write_and_verify(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (extent, check) = (Extent::of(&cdb), Check::of(&cdb)?);
        if matches!(check, Check::Same) {
            return Err(invalid_field(1, Some(2)));
        }
        unit.check_writable()?;
        extent.check(unit)?;
        extent.check_length()?;
        let extent = self.expected_blocks(&extent);
        // The bits that a write has for FUA say here how bytes are checked.
        let flags = WriteFlags { fua: true, once: is_once(&cdb) };
        let (mut data, mut pieces) = (Vec::new(), Vec::new());
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            self.take_and_write_part(unit, at, len, flags, &mut data).await?;
            if matches!(check, Check::Each) {
                pieces.clear();
                unit.volume().read(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
                if let Some(place) = first_difference(&pieces, &data) {
                    return Err(miscompare(at - extent.offset_bytes() + place as u64));
                }
            }
        }
        Ok(Status::Good)
    }
}
