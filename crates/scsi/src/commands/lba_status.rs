//! GET LBA STATUS: reports mapped and unmapped blocks.

use std::rc::Rc;

use seam::Seam;

use super::{LOGICAL_BLOCK_BYTES, Task, block_at, offset_of};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::unit::Unit;

/// Maximum number of LBA status descriptors in an answer.
const DESCRIPTORS_MAX: usize = 2_048;
/// Maximum bytes examined for an answer: many backings report allocation slowly.
const EXAMINED_BYTES_MAX: u64 = 1 << 30;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn lba_status(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (start, allocation_len) = (cdb.u64(2), cdb.u32(10));
        if start >= unit.blocks() {
            return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).into());
        }
        if allocation_len < 24 {
            return Err(invalid_field(10, None));
        }
        let descriptors_max = ((allocation_len as usize - 8) / 16).min(DESCRIPTORS_MAX);
        let descriptors = self.status_descriptors(unit, start, descriptors_max).await?;
        let mut bytes = (4 + descriptors.len() as u32 * 16).to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        for descriptor in &descriptors {
            bytes.extend(descriptor.first.to_be_bytes());
            bytes.extend(descriptor.count.to_be_bytes());
            bytes.extend([u8::from(descriptor.hole), 0, 0, 0]);
        }
        self.send_response(&bytes, allocation_len).await
    }

    /// Runs of blocks with equal status from `start` on. Runs consist of whole physical blocks: for a `start` inside a
    /// physical block, the first run begins at the next one.
    async fn status_descriptors(
        &mut self,
        unit: &Rc<Unit<S>>,
        start: u64,
        descriptors_max: usize,
    ) -> Result<Vec<StatusDescriptor>, Failure> {
        let physical_blocks = if unit.physical_4k { 8 } else { 1 };
        let aligned = start.next_multiple_of(physical_blocks);
        let first = if aligned < unit.blocks() { aligned } else { start };
        let (mut at, end) = (offset_of(first), offset_of(unit.blocks()));
        let examined_end = end.min(at.plus(EXAMINED_BYTES_MAX));
        let mut descriptors: Vec<StatusDescriptor> = Vec::new();
        while at < examined_end {
            self.check_cancelled()?;
            let runs = unit
                .volume()
                .allocation(at, examined_end.distance_from(at))
                .await
                .map_err(|error| failure_of(&error, EngineOperation::Other))?;
            for run in runs {
                let (count, is_full) =
                    ((run.len_bytes / LOGICAL_BLOCK_BYTES) as u32, descriptors.len() == descriptors_max);
                match descriptors.last_mut() {
                    Some(last) if last.hole == run.hole => last.count += count,
                    _ if is_full => return Ok(descriptors),
                    _ => descriptors.push(StatusDescriptor { first: block_at(at), count, hole: run.hole }),
                }
                at = at.plus(run.len_bytes);
            }
        }
        Ok(descriptors)
    }
}

/// An LBA status descriptor: `count` blocks from `first` on, all of them mapped or all of them holes.
struct StatusDescriptor {
    first: u64,
    count: u32,
    hole: bool,
}
