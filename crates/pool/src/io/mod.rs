//! Requests of volumes, which are split at slices.

pub(crate) mod allocate;
mod demand;
pub(crate) mod parts;
pub(crate) mod read;
pub(crate) mod write;
pub(crate) mod zero;

use seam::{Disk, Seam};

use crate::number::SliceNo;
use crate::state::State;

/// The first slice of a volume's range and the slice after its last one.
pub(crate) fn slice_range<S: Seam, D: Disk<S>>(state: &State<S, D>, at: u64, len: u64) -> (SliceNo, SliceNo) {
    let (first, _) = state.slice_at(at);
    let end = (at + len).div_ceil(state.slice_bytes()) as u32;
    (first, SliceNo(end))
}
