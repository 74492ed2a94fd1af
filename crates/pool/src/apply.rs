//! Consequences of durable records in memory: properties of volumes, copies of maps, removals. The slots of a former
//! map are released in steps, so that no record blocks the core for long.

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::format::record::Record;
use crate::map::VolumeMap;
use crate::number::{FamilySlice, SliceNo, VolumeId};
use crate::retired::Retired;
use crate::state::{Inner, State, Volume};

/// Slices that one step releases.
const STEP_SLICES: usize = 512;

impl<S: Seam, D: Disk<S>> State<S, D> {
    /// Applies a durable record of a volume's properties, map or removal.
    pub fn apply_volume_record(&mut self, record: &Record) {
        match record {
            Record::Volume { volume, spec, lineage, from } => {
                if !self.volumes.contains_key(volume) {
                    self.insert_volume(*volume, Volume::new(spec.clone(), *lineage));
                }
                let end = SliceNo(spec.size_bytes.div_ceil(self.slice_bytes()) as u32);
                let entry = self.volumes.get_mut(volume).expect("the volume was added");
                (entry.spec, entry.limit_bytes) = (spec.clone(), spec.size_bytes);
                if let Some(from) = from {
                    self.copy_map(*from, *volume);
                }
                let entry = self.volumes.get_mut(volume).expect("the volume was added");
                let past: Vec<_> = entry.map.allocated_from(end).collect();
                for (slice, slot) in past {
                    let entry = self.volumes.get_mut(volume).expect("the volume was added");
                    entry.map.set(slice, None);
                    entry.private.clear(slice);
                    entry.heat.clear(slice);
                    self.release_durably(FamilySlice { family: lineage.family, slice }, slot);
                }
                self.volumes.get_mut(volume).expect("the volume was added").heat.truncate(end);
                self.changes.discard(|address| address.volume == *volume && address.slice >= end);
                self.next_volume = self.next_volume.max(volume.next());
            }
            Record::VolumeRemoved { volume } => {
                if let Some(removed) = self.take_volume(*volume) {
                    self.retire(removed.lineage.family, removed.map);
                }
                self.changes.discard(|address| address.volume == *volume);
            }
            Record::Map { .. } | Record::MapList { .. } | Record::Unmap { .. } => {
                unreachable!("changes of maps are not requested as records")
            }
        }
    }

    /// Replaces the map of a volume by the one of another. Neither has a change that is not durable, because both are
    /// held.
    fn copy_map(&mut self, from: VolumeId, to: VolumeId) {
        assert!(!self.changes.has_changes_of(from) && !self.changes.has_changes_of(to), "both volumes are held");
        let source = self.volumes.get_mut(&from).expect("a volume is copied while it exists");
        source.private.clear_all();
        let map = source.map.clone();
        let target = self.volumes.get_mut(&to).expect("the volume was added");
        target.private.clear_all();
        let mut former = std::mem::replace(&mut target.map, map);
        let family = target.lineage.family;
        former.forget_shared_chunks(&target.map);
        self.retire(family, former);
    }

    fn retire(&mut self, family: VolumeId, map: VolumeMap) {
        if map.allocated() > 0 {
            self.retired.push(Retired { family, map, next: SliceNo(0) });
        }
    }

    /// Releases some slots of a former map. Returns false if none is left.
    pub fn release_retired(&mut self) -> bool {
        let Some(retired) = self.retired.last_mut() else { return false };
        let slices: Vec<_> = retired.map.allocated_from(retired.next).take(STEP_SLICES).collect();
        let family = retired.family;
        match slices.last() {
            Some((last, _)) => retired.next = last.next(),
            None => drop(self.retired.pop()),
        }
        for (slice, slot) in slices {
            let retired = self.retired.last_mut().expect("the map has slices");
            retired.map.set(slice, None);
            self.release_durably(FamilySlice { family, slice }, slot);
        }
        true
    }
}

/// Releases the slots of all former maps, in steps.
pub(crate) async fn release_retired<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    while inner.state.borrow_mut().release_retired() {
        inner.seam.yield_now().await;
    }
}
