//! UNMAP: releases ranges of blocks, which read as zeroes afterwards.

use std::rc::Rc;

use engine::WriteFlags;
use engine::telemetry::OpKind;
use seam::Seam;

use super::vpd::{UNMAP_BLOCKS_MAX, UNMAP_RANGES_MAX};
use super::{Extent, Task, write_failed};
use crate::cdb::{Cdb, invalid_parameter};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::unit::Unit;

const HEADER_BYTES: usize = 8;
const RANGE_BYTES: usize = 16;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn unmap(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        unit.check_writable()?;
        let bytes = self.parameters(cdb.u16(7).into()).await?;
        let extents = decode_ranges(&bytes)?;
        // Every range is checked before the first one is unmapped.
        for extent in &extents {
            extent.check(unit)?;
        }
        let flags = WriteFlags { fua: unit.writes_through(), ..WriteFlags::default() };
        for extent in extents.iter().filter(|extent| extent.count > 0) {
            self.check_cancelled()?;
            let (at, len) = (extent.offset(), extent.len_bytes());
            unit.volume().record_request(OpKind::Zero, at, len);
            let _guard = unit.locks.lock_shared(extent.blocks()).await;
            unit.volume().discard(at, len, flags).await.map_err(|error| write_failed(&error, at))?;
        }
        Ok(Status::Good)
    }
}

/// Decodes the ranges of a parameter list; an empty list has none.
fn decode_ranges(bytes: &[u8]) -> Result<Vec<Extent>, Failure> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let (header, descriptors) =
        bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))?;
    let stated_len = usize::from(u16::from_be_bytes([header[2], header[3]])).min(descriptors.len());
    let (ranges, _) = descriptors[..stated_len].as_chunks::<RANGE_BYTES>();
    if ranges.len() > UNMAP_RANGES_MAX as usize {
        return Err(invalid_parameter(2));
    }
    let (mut extents, mut blocks) = (Vec::with_capacity(ranges.len()), 0_u64);
    for (index, range) in ranges.iter().enumerate() {
        let first = u64::from_be_bytes(*range.first_chunk().expect("a range is longer than eight bytes"));
        let count = u32::from_be_bytes([range[8], range[9], range[10], range[11]]).into();
        blocks += count;
        if blocks > UNMAP_BLOCKS_MAX.into() {
            return Err(invalid_parameter(HEADER_BYTES + index * RANGE_BYTES + 8));
        }
        extents.push(Extent { first, count });
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(stated_len: u16, ranges: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        bytes.extend(stated_len.to_be_bytes());
        bytes.extend([0; 4]);
        for (first, count) in ranges {
            bytes.extend(first.to_be_bytes());
            bytes.extend(count.to_be_bytes());
            bytes.extend([0; 4]);
        }
        bytes
    }

    #[test]
    fn complete_ranges_are_decoded_and_short_lists_refused() {
        assert_eq!(decode_ranges(&[]), Ok(Vec::new()));
        let two = [(5, 7), (u64::MAX, 1)];
        let extents = [Extent { first: 5, count: 7 }, Extent { first: u64::MAX, count: 1 }];
        assert_eq!(decode_ranges(&list(32, &two)), Ok(extents.to_vec()));
        assert_eq!(decode_ranges(&list(500, &two)), Ok(extents.to_vec()));
        assert_eq!(decode_ranges(&list(17, &two)), Ok(extents[..1].to_vec()));
        assert_eq!(decode_ranges(&[0; 7]), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()));
    }

    #[test]
    fn too_many_ranges_and_too_many_blocks_are_refused() {
        let many = vec![(0, 1); UNMAP_RANGES_MAX as usize + 1];
        assert_eq!(decode_ranges(&list(16 * 257, &many)), Err(invalid_parameter(2)));
        assert_eq!(decode_ranges(&list(32, &[(0, UNMAP_BLOCKS_MAX), (0, 1)])), Err(invalid_parameter(8 + 16 + 8)));
    }
}
