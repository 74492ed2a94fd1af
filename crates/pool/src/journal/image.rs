//! The durable state of all volumes at one place of the journal, for a checkpoint. It is taken at once: the maps share
//! their chunks with the present ones until those change.

use std::collections::BTreeMap;

use seam::{Disk, Seam};

use super::replay::LoadedVolume;
use crate::format::record::{Record, RunBuilder};
use crate::number::{SliceNo, VolumeId};
use crate::state::State;

/// A part of an image: a volume, and the one whose map its records change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub volume: VolumeId,
    pub base: Option<VolumeId>,
}

/// Volumes and snapshots with their durable maps.
pub(crate) struct Image(BTreeMap<VolumeId, LoadedVolume>);

impl Image {
    /// The durable state now: the one after the journal's settled blocks.
    pub fn new<S: Seam, D: Disk<S>>(state: &State<S, D>) -> Image {
        let volume = |volume: &crate::state::Volume| LoadedVolume {
            spec: volume.spec.clone(),
            lineage: volume.lineage,
            map: volume.map.clone(),
        };
        let mut volumes: BTreeMap<_, _> = state.volumes.iter().map(|(id, entry)| (*id, volume(entry))).collect();
        for (slice, slot) in state.changes.baselines() {
            if let Some(volume) = volumes.get_mut(&slice.volume) {
                volume.map.set(slice.slice, slot);
            }
        }
        Image(volumes)
    }

    /// Its volumes in the order of the checkpoint. A map whose differences from the preceding one of its family are
    /// fewer than its slices is recorded by them.
    pub fn parts(&self) -> Vec<Part> {
        let mut latest = BTreeMap::<VolumeId, VolumeId>::new();
        let mut parts = Vec::with_capacity(self.0.len());
        for (volume, entry) in &self.0 {
            let preceding = latest.insert(entry.lineage.family, *volume);
            let base = preceding.filter(|base| {
                let allocated = entry.map.allocated() as usize;
                let differences = entry.map.differences(&self.0[base].map, SliceNo(0));
                differences.take(allocated).count() < allocated
            });
            parts.push(Part { volume: *volume, base });
        }
        parts
    }

    /// The record that begins a part.
    pub fn record(&self, part: Part) -> Record {
        let entry = &self.0[&part.volume];
        Record::Volume { volume: part.volume, spec: entry.spec.clone(), lineage: entry.lineage, from: part.base }
    }

    /// Records of up to `max` slices of a part from `from` on, and the slice to continue with.
    pub fn records(&self, part: Part, from: SliceNo, max: usize) -> (Vec<Record>, Option<SliceNo>) {
        let map = &self.0[&part.volume].map;
        let slots: Vec<_> = match part.base {
            Some(base) => map.differences(&self.0[&base].map, from).take(max).collect(),
            None => map.allocated_from(from).take(max).map(|(slice, slot)| (slice, Some(slot))).collect(),
        };
        let next = (slots.len() == max).then(|| slots[max - 1].0.next());
        let mut runs = RunBuilder::default();
        slots.into_iter().for_each(|(slice, slot)| runs.add(part.volume, slice, slot));
        (runs.finish_with_lists(), next)
    }
}
