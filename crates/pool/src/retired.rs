//! Former maps whose slots are not released yet.

use crate::map::VolumeMap;
use crate::number::{SliceNo, VolumeId};

/// A former map, to which no durable entry refers. Its slots stay until they are released from it.
pub(crate) struct Retired {
    pub family: VolumeId,
    pub map: VolumeMap,
    /// The first slice that was not released.
    pub next: SliceNo,
}
