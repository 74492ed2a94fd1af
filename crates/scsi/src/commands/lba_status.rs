//! GET LBA STATUS: reports mapped and unmapped blocks.

use std::rc::Rc;

use seam::Seam;

use super::{BLOCK, Task};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::unit::Unit;

/// Maximum number of ranges in an answer.
const RANGES_MAX: usize = 2_048;
/// Maximum bytes examined for an answer: many backings report allocation slowly.
const EXAMINED_BYTES_MAX: u64 = 1 << 30;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn lba_status(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (start, allocated) = (cdb.u64(2), cdb.u32(10));
        if start >= unit.blocks() {
            return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).into());
        }
        if allocated < 24 {
            return Err(invalid_field(10, None));
        }
        let ranges_max = ((allocated as usize - 8) / 16).min(RANGES_MAX);
        let ranges = self.mapping(unit, start, ranges_max).await?;
        let mut bytes = (4 + ranges.len() as u32 * 16).to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        for range in &ranges {
            bytes.extend(range.first.to_be_bytes());
            bytes.extend(range.count.to_be_bytes());
            bytes.extend([u8::from(range.hole), 0, 0, 0]);
        }
        self.send_response(&bytes, allocated).await
    }

    /// Runs of blocks with equal status from `start` on. Runs consist of whole physical blocks: an `start` inside a
    /// physical block starts at the next one.
    async fn mapping(&mut self, unit: &Rc<Unit<S>>, start: u64, ranges_max: usize) -> Result<Vec<Mapping>, Failure> {
        let physical = if unit.physical_4k { 8 } else { 1 };
        let whole = start.next_multiple_of(physical);
        let first = if whole < unit.blocks() { whole } else { start };
        let (mut at, end) = (first * BLOCK, unit.blocks() * BLOCK);
        let examined_end = end.min(at + EXAMINED_BYTES_MAX);
        let mut ranges: Vec<Mapping> = Vec::new();
        while at < examined_end {
            self.check_cancelled()?;
            let runs = unit
                .volume()
                .allocation(at, examined_end - at)
                .await
                .map_err(|error| failure_of(&error, EngineOperation::Other))?;
            for run in runs {
                let (count, full) = ((run.len_bytes / BLOCK) as u32, ranges.len() == ranges_max);
                match ranges.last_mut() {
                    Some(last) if last.hole == run.hole => last.count += count,
                    _ if full => return Ok(ranges),
                    _ => ranges.push(Mapping { first: at / BLOCK, count, hole: run.hole }),
                }
                at += run.len_bytes;
            }
        }
        Ok(ranges)
    }
}

struct Mapping {
    first: u64,
    count: u32,
    hole: bool,
}
