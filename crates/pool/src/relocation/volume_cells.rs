//! The heat map of a volume: its slices in a bounded number of cells, with their tiers and their demand.

use std::rc::Rc;

use seam::{Disk, Nanos, Seam};

use super::plan::{SCAN_STEP, check_classes};
use crate::error::PoolError;
use crate::number::{SliceNo, VolumeId};
use crate::planner::ClassCost;
use crate::state::Inner;

/// Consecutive slices of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeCell {
    /// Allocated slices by tier.
    pub slices: Vec<u32>,
    /// Disk time per hour that the demand of these slices would cost on the slowest tier.
    pub disk_time: Nanos,
}

/// The cells of a volume, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeCells {
    /// Slices of a cell; the last one may have fewer.
    pub cell_slices: u32,
    /// The cells.
    pub cells: Vec<VolumeCell>,
}

/// The slices of a volume in at most `cells_max` cells. `classes` has the costs of each tier.
pub(crate) async fn volume_cells<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    classes: &[ClassCost],
    cells_max: u32,
) -> Result<VolumeCells, PoolError> {
    assert!(cells_max > 0, "a map has cells");
    let (slices, now) = {
        let state = inner.state.borrow();
        check_classes(&state, classes)?;
        let entry = state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?;
        (entry.spec.size_bytes.div_ceil(state.slice_bytes()) as u32, inner.seam.now())
    };
    let slowest = classes.last().expect("a pool has a tier");
    let cell_slices = slices.div_ceil(cells_max).max(1);
    let empty = VolumeCell { slices: vec![0; classes.len()], disk_time: Nanos::ZERO };
    let mut cells = vec![empty; slices.div_ceil(cell_slices) as usize];
    let mut next = SliceNo(0);
    loop {
        {
            let state = inner.state.borrow();
            // The volume may be removed or shrink meanwhile.
            let entry = state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?;
            let mut step = 0;
            for (slice, slot) in entry.map.allocated_from(next).take(SCAN_STEP as usize) {
                (step, next) = (step + 1, SliceNo(slice.0 + 1));
                let Some(cell) = cells.get_mut((slice.0 / cell_slices) as usize) else { continue };
                let tier = state.superblock.members[slot.group.index()].tier;
                cell.slices[usize::from(tier.0)] += 1;
                cell.disk_time += slowest.price(entry.heat.expected(slice, now));
            }
            if step < SCAN_STEP {
                break;
            }
        }
        inner.seam.yield_now().await;
    }
    Ok(VolumeCells { cell_slices, cells })
}
