//! Records the demand of clients' requests: heat of the slices, load of the groups. Copies of a move are not recorded.

use seam::{BLOCK_BYTES, Disk, DiskResult, Nanos, Seam};

use crate::heat::RequestDemand;
use crate::number::{GroupNo, SliceAddress, VolumeId};
use crate::state::{Group, State};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub is_write: bool,
    /// It continues a stream of the volume.
    pub is_sequential: bool,
}

impl Access {
    /// An allocation without data.
    pub const RESERVATION: Access = Access { is_write: true, is_sequential: true };
}

/// Finds out whether a request continues a stream of its volume.
pub(super) fn detect<S: Seam, D: Disk<S>>(
    state: &mut State<S, D>,
    volume: VolumeId,
    is_write: bool,
    at: u64,
    len: u64,
) -> Access {
    let volume = state.volumes.get_mut(&volume);
    let is_sequential = volume.is_some_and(|volume| volume.streams.is_sequential(is_write, at, len));
    Access { is_write, is_sequential }
}

/// Records a request's part in one slice at the place `located` of its group. The part of a random request costs an
/// access in each slice, because slices lie apart.
pub(super) fn record<S: Seam, D: Disk<S>>(
    state: &mut State<S, D>,
    now: Nanos,
    slice: SliceAddress,
    located: &DiskResult<(D, u64)>,
    (group, access, len): (GroupNo, Access, u64),
) {
    let Ok((disk, at)) = located else { return };
    let Some(volume) = state.volumes.get_mut(&slice.volume) else { return };
    let request = match access {
        Access { is_write, is_sequential: true } => RequestDemand::sequential(is_write, len),
        Access { is_write, is_sequential: false } => match disk.accesses(is_write, *at, len) {
            Some(accesses) => {
                let block = BLOCK_BYTES as u64;
                let penalty = disk.accesses(true, at / block * block, block).unwrap_or(1);
                RequestDemand::random_with_accesses(is_write, len, accesses, penalty)
            }
            None => RequestDemand::random(is_write, len),
        },
    };
    volume.heat.record(slice.slice, now, &request);
    let Group { demand, served, .. } = &mut state.groups[group.index()];
    *(if access.is_write { &mut served.writes } else { &mut served.reads }) += 1;
    served.bytes += len;
    let accesses = if access.is_write { &mut demand.writes } else { &mut demand.reads };
    *accesses = accesses.saturating_add(request.accesses);
    demand.bytes = demand.bytes.saturating_add(request.bytes);
}
