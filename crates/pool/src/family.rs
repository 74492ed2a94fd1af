//! The volumes and snapshots that may share slots.

use crate::number::VolumeId;

/// A volume, its snapshots and its clones.
#[derive(Default)]
pub(crate) struct Family {
    members: Vec<VolumeId>,
    /// Members that are no snapshots.
    volumes: usize,
}

impl Family {
    /// Adds a member.
    pub fn add(&mut self, id: VolumeId, is_snapshot: bool) {
        self.members.push(id);
        self.volumes += usize::from(!is_snapshot);
    }

    /// Removes a member.
    pub fn remove(&mut self, id: VolumeId, is_snapshot: bool) {
        self.members.retain(|member| *member != id);
        self.volumes -= usize::from(!is_snapshot);
    }

    /// The volumes and snapshots.
    pub fn members(&self) -> &[VolumeId] {
        &self.members
    }

    /// True if it has several volumes, not only one with snapshots.
    pub fn has_clones(&self) -> bool {
        self.volumes > 1
    }
}
