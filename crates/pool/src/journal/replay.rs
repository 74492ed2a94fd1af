//! The metadata in memory while it is loaded: records of a checkpoint, then of the journal.

use std::collections::BTreeMap;

use crate::format::record::{Decoded, Lineage, PackedSlot, Record};
use crate::map::VolumeMap;
use crate::number::{SliceNo, SlotAddress, SlotNo, VolumeId};
use crate::policy::VolumeSpec;

/// A volume or snapshot with its map.
#[derive(Clone, Debug)]
pub(crate) struct LoadedVolume {
    pub spec: VolumeSpec,
    pub lineage: Lineage,
    pub map: VolumeMap,
}

/// Volumes and snapshots with their maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedVolumes {
    pub volumes: BTreeMap<VolumeId, LoadedVolume>,
    pub next_volume: VolumeId,
    pub slice_bytes: u64,
    /// Records of maps that were applied. A copied map counts as a third of its slices.
    pub map_records: u64,
}

impl LoadedVolumes {
    /// Applies a record. The error says what is impossible about it.
    pub fn apply(&mut self, record: Decoded<'_>) -> Result<(), String> {
        match record {
            Decoded::MapList { volume, slice, slots } => {
                let slots = slots.iter();
                self.map_records += slots.len() as u64;
                self.map(volume, slice, slots)
            }
            Decoded::Other(record) => self.apply_other(record),
        }
    }

    fn apply_other(&mut self, record: Record) -> Result<(), String> {
        self.map_records += record.map_records();
        match record {
            Record::Map { volume, slice, slot, count } => {
                let slots = (0..count).map(|index| SlotAddress { slot: SlotNo(slot.slot.0 + index), ..slot });
                self.map(volume, slice, slots.map(PackedSlot::new))?;
            }
            Record::MapList { volume, slice, slots } => {
                self.map(volume, slice, slots.into_iter().map(PackedSlot::new))?;
            }
            Record::Unmap { volume, slice, count } => {
                if let Some(LoadedVolume { map, .. }) = self.volumes.get_mut(&volume) {
                    let end = SliceNo(slice.0 + count);
                    let mapped: Vec<_> = map.allocated_from(slice).take_while(|(slice, _)| *slice < end).collect();
                    mapped.into_iter().for_each(|(slice, _)| {
                        map.set(slice, None);
                    });
                }
            }
            Record::Volume { volume, spec, lineage, from } => self.apply_volume(volume, spec, lineage, from)?,
            Record::VolumeRemoved { volume } => {
                self.volumes.remove(&volume);
                self.next_volume = self.next_volume.max(volume.next());
            }
        }
        Ok(())
    }

    /// Maps consecutive slices of a volume to these slots.
    fn map(
        &mut self,
        volume: VolumeId,
        slice: SliceNo,
        slots: impl ExactSizeIterator<Item = PackedSlot>,
    ) -> Result<(), String> {
        let Some(LoadedVolume { map, .. }) = self.volumes.get_mut(&volume) else {
            return Err(format!("a slice of volume {volume}, which does not exist"));
        };
        map.set_run(slice, slots);
        Ok(())
    }

    fn apply_volume(
        &mut self,
        volume: VolumeId,
        spec: VolumeSpec,
        lineage: Lineage,
        from: Option<VolumeId>,
    ) -> Result<(), String> {
        let source = match from {
            Some(from) => {
                let source =
                    self.volumes.get(&from).ok_or_else(|| format!("the map of {from}, which does not exist"))?;
                if source.lineage.family != lineage.family {
                    return Err(format!("volume {volume} with the map of {from}, of another family"));
                }
                self.map_records += u64::from(source.map.allocated()).div_ceil(3);
                Some(source.map.clone())
            }
            None => None,
        };
        let end = SliceNo(spec.size_bytes.div_ceil(self.slice_bytes) as u32);
        let new = || LoadedVolume { spec: spec.clone(), lineage, map: VolumeMap::default() };
        let entry = self.volumes.entry(volume).or_insert_with(new);
        if entry.lineage != lineage {
            return Err(format!("volume {volume} with another family or another volume"));
        }
        entry.map = source.unwrap_or_else(|| std::mem::take(&mut entry.map));
        entry.spec = spec;
        let past: Vec<_> = entry.map.allocated_from(end).collect();
        past.into_iter().for_each(|(slice, _)| {
            entry.map.set(slice, None);
        });
        self.next_volume = self.next_volume.max(volume.next());
        Ok(())
    }
}
