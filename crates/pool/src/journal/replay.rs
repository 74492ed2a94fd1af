//! The metadata in memory while it is loaded: records of a checkpoint, then of the journal.

use std::collections::BTreeMap;

use crate::format::record::Record;
use crate::map::VolumeMap;
use crate::number::{SliceNo, SlotAddress, SlotNo, VolumeId};
use crate::policy::VolumeSpec;

/// Volumes with their maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedVolumes {
    pub volumes: BTreeMap<VolumeId, (VolumeSpec, VolumeMap)>,
    pub next_volume: VolumeId,
    pub slice_bytes: u64,
}

impl LoadedVolumes {
    /// Applies a record. The error says what is impossible about it.
    pub fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Map { volume, slice, slot, count } => {
                let Some((_, map)) = self.volumes.get_mut(&volume) else {
                    return Err(format!("a slice of volume {volume}, which does not exist"));
                };
                for index in 0..count {
                    let to = SlotAddress { slot: SlotNo(slot.slot.0 + index), ..slot };
                    map.set(SliceNo(slice.0 + index), Some(to));
                }
            }
            Record::Unmap { volume, slice, count } => {
                if let Some((_, map)) = self.volumes.get_mut(&volume) {
                    let end = SliceNo(slice.0 + count);
                    let mapped: Vec<_> = map.allocated_from(slice).take_while(|(slice, _)| *slice < end).collect();
                    mapped.into_iter().for_each(|(slice, _)| {
                        map.set(slice, None);
                    });
                }
            }
            Record::Volume { volume, spec } => {
                let end = SliceNo(spec.size_bytes.div_ceil(self.slice_bytes) as u32);
                let (entry, map) = self.volumes.entry(volume).or_insert_with(|| (spec.clone(), VolumeMap::default()));
                *entry = spec;
                let past: Vec<_> = map.allocated_from(end).collect();
                past.into_iter().for_each(|(slice, _)| {
                    map.set(slice, None);
                });
                self.next_volume = self.next_volume.max(volume.next());
            }
            Record::VolumeRemoved { volume } => {
                self.volumes.remove(&volume);
                self.next_volume = self.next_volume.max(volume.next());
            }
        }
        Ok(())
    }
}
