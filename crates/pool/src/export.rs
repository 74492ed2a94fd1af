//! Places of slices in a pool that is not open: as text, and as the copies that rebuild a volume as a plain disk.

use std::collections::BTreeMap;
use std::fmt::Write;

use md5::{Digest, Md5};
use seam::{BLOCK_BYTES, Block, Disk, Seam};

use crate::buffers::Buffers;
use crate::create::failed;
use crate::device::read_each;
use crate::error::PoolError;
use crate::format::layout::METADATA_AT;
use crate::format::superblock::SUPERBLOCK_OFFSETS;
use crate::journal::load::load;
use crate::journal::replay::LoadedVolume;
use crate::number::{CheckpointNo, GroupNo, SliceNo, VolumeId};
use crate::open::{Present, find_groups, present_copies};

/// One copy of a range to the same place of the volume on a plain disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportStep {
    /// Name of the source device and byte offset on it; `None` for zeroes.
    pub source: Option<(String, u64)>,
    /// Byte offset in the volume.
    pub at: u64,
    /// Bytes.
    pub len_bytes: u64,
}

/// A part of the pool's metadata on a device, with its checksum when a plan was made. It changes with every change of
/// the places of slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataRange {
    /// Name of the device.
    pub device: String,
    /// Byte offset on it, a multiple of 4,096.
    pub at: u64,
    /// Bytes, a multiple of 4,096.
    pub len_bytes: u64,
    /// MD5 of the bytes as the tool `md5sum` prints it.
    pub md5: String,
}

/// The copies that rebuild a volume on a plain disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    /// Size of the volume.
    pub size_bytes: u64,
    /// The metadata on all devices but the target. The plan is void when it has changed.
    pub metadata: Vec<MetadataRange>,
    /// The copies. No copy reads a range that another copy writes. The one that replaces superblocks of the pool comes
    /// last.
    pub steps: Vec<ExportStep>,
    /// Set if an absent device may have a newer state of the pool.
    pub warning: Option<String>,
}

struct Loaded<S: Seam, D> {
    buffers: Buffers<S>,
    present: Present<D>,
    volumes: BTreeMap<VolumeId, LoadedVolume>,
    warning: Option<String>,
}

async fn load_pool<S: Seam, D: Disk<S>>(seam: &S, disks: &[D]) -> Result<Loaded<S, D>, PoolError> {
    let buffers = Buffers::new(seam);
    let present = find_groups(&buffers, disks).await?;
    let copies = present_copies(&present, true)?;
    let warning = present_copies(&present, false).err().map(|error| error.to_string());
    let volumes = load(seam, &buffers, &present.superblock, &copies).await?.volumes.volumes;
    Ok(Loaded { buffers, present, volumes, warning })
}

/// The place of every slice as text: one line each with volume, slice, the group's device, byte offset on it, length.
/// The last slice of a volume has the full length of a slice on its group. A comment warns if an absent device may have
/// a newer state of the pool.
pub(crate) async fn export_map<S: Seam, D: Disk<S>>(seam: &S, disks: &[D]) -> Result<String, PoolError> {
    let Loaded { present, volumes, warning, .. } = load_pool(seam, disks).await?;
    let superblock = &present.superblock;
    let mut text = warning.map_or(String::new(), |warning| format!("# WARNING: {warning}\n"));
    for (volume, LoadedVolume { spec, lineage, map }) in &volumes {
        let VolumeId(number) = volume;
        let kind = if lineage.snapshot.is_some() { "snapshot" } else { "volume" };
        let of = lineage.snapshot.map_or(String::new(), |of| format!(" of volume {}", of.volume));
        writeln!(text, "# {kind} {number} \"{}\"{of}, {} bytes", spec.name, spec.size_bytes)
            .expect("a string takes any text");
        for (slice, slot) in map.allocated_from(SliceNo(0)) {
            let member = superblock.members.get(slot.group.index());
            let member = member.ok_or_else(|| PoolError::Damaged(format!("{slot} does not exist")))?;
            let device = match &present.disks[slot.group.index()] {
                Some(disk) => disk.identity(),
                None => format!("missing:{}", member.name),
            };
            let at = member.data_at + u64::from(slot.slot.0) * superblock.slice_bytes;
            writeln!(text, "{number} {slice} {device} {at} {}", superblock.slice_bytes)
                .expect("a string takes any text");
        }
    }
    Ok(text)
}

/// The copies that rebuild a volume on a plain disk. `target` names a device of the pool to write in place, such as an
/// imported one. It is refused unless everything on it belongs to the volume and lies where the plain disk has it, so
/// that no copy reads what another one has overwritten.
pub(crate) async fn export_plan<S: Seam, D: Disk<S>>(
    seam: &S,
    disks: &[D],
    name: &str,
    target: Option<&str>,
) -> Result<ExportPlan, PoolError> {
    let Loaded { buffers, present, volumes, warning } = load_pool(seam, disks).await?;
    let superblock = &present.superblock;
    let slice_bytes = superblock.slice_bytes;
    let refused = |text: String| Err(PoolError::Refused(text));
    let mut found = volumes.iter().filter(|(_, volume)| volume.lineage.snapshot.is_none() && volume.spec.name == name);
    let Some((id, volume)) = found.next() else { return refused(format!("the pool has no volume \"{name}\"")) };
    if superblock.import == Some(*id) {
        return refused(format!("the import of volume \"{name}\" has not ended: open the pool with its device first"));
    }
    let is_target = |group: GroupNo| {
        let disk = present.disks[group.index()].as_ref();
        target.is_some() && disk.map(|disk| disk.identity()).as_deref() == target
    };
    let target_group = (0..superblock.members.len() as u16).map(GroupNo).find(|group| is_target(*group));
    if let Some(group) = target_group {
        if superblock.members[group.index()].has_area {
            return refused("the target has the pool's metadata: choose another target".to_owned());
        }
        let others = volumes.iter().filter(|(other, _)| *other != id);
        let foreign: usize = others
            .map(|(_, other)| other.map.allocated_from(SliceNo(0)).filter(|(_, slot)| slot.group == group).count())
            .sum();
        if foreign > 0 {
            return refused(format!(
                "the target holds {foreign} slices of other volumes and snapshots, which would be overwritten: choose \
                 another target, or move them away with a drain"
            ));
        }
    }
    let slices = u32::try_from(volume.spec.size_bytes.div_ceil(slice_bytes)).expect("checked when the size was set");
    let metadata = metadata_ranges(&buffers, &present, target_group).await?;
    let mut plan = ExportPlan { size_bytes: volume.spec.size_bytes, metadata, steps: Vec::new(), warning };
    for slice in (0..slices).map(SliceNo) {
        let at = u64::from(slice.0) * slice_bytes;
        let len_bytes = slice_bytes.min(volume.spec.size_bytes - at);
        let source = match volume.map.get(slice) {
            None => None,
            Some(slot) => {
                let member = superblock.members.get(slot.group.index());
                let member = member.ok_or_else(|| PoolError::Damaged(format!("{slot} does not exist")))?;
                let Some(disk) = &present.disks[slot.group.index()] else {
                    return refused(format!("slice {slice} lies on {}, which is missing", member.name));
                };
                let source_at = member.data_at + u64::from(slot.slot.0) * slice_bytes;
                if Some(slot.group) == target_group {
                    if source_at == at {
                        continue;
                    }
                    return refused(format!(
                        "slice {slice} lies at another place of the target, which a copy would overwrite: choose \
                         another target"
                    ));
                }
                Some((disk.identity(), source_at))
            }
        };
        plan.add(ExportStep { source, at, len_bytes });
    }
    // The superblocks stay valid until all other copies have ended.
    let (start, mut steps): (Vec<_>, Vec<_>) =
        plan.steps.into_iter().partition(|step| step.at <= SUPERBLOCK_OFFSETS[1]);
    steps.extend(start);
    Ok(ExportPlan { steps, ..plan })
}

/// The superblocks of all present groups but the target, and the journal and the headers of the checkpoints on the
/// copies of the metadata. A change of a map is in the journal, and one of the groups in the superblocks.
async fn metadata_ranges<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    present: &Present<D>,
    target: Option<GroupNo>,
) -> Result<Vec<MetadataRange>, PoolError> {
    let (superblock, block) = (&present.superblock, BLOCK_BYTES as u64);
    let mut ranges = Vec::new();
    for ((group, member), disk) in superblock.numbered_members().zip(&present.disks) {
        let Some(disk) = disk.as_ref().filter(|_| Some(group) != target) else { continue };
        let mut places: Vec<_> = SUPERBLOCK_OFFSETS.iter().map(|at| (*at, block)).collect();
        if member.carries_metadata {
            places.push((METADATA_AT, u64::from(superblock.journal_blocks) * block));
            places.extend([0, 1].map(|area| (superblock.checkpoint_offset(CheckpointNo(area)), block)));
        }
        for (at, len_bytes) in places {
            let (mut digest, mut raw) = (Md5::new(), [0; BLOCK_BYTES]);
            let add = |_, block: &S::Block| {
                block.read_bytes(0, &mut raw);
                digest.update(raw);
            };
            let read = read_each(buffers, disk, at, len_bytes as usize / BLOCK_BYTES, add).await;
            read.map_err(|error| failed(disk, error))?;
            let md5 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            ranges.push(MetadataRange { device: disk.identity(), at, len_bytes, md5 });
        }
    }
    Ok(ranges)
}

impl ExportPlan {
    /// Adds a copy, to the last one if it continues that.
    fn add(&mut self, step: ExportStep) {
        if let Some(last) = self.steps.last_mut() {
            let follows = match (&last.source, &step.source) {
                (None, None) => true,
                (Some((last_device, last_at)), Some((device, at))) => {
                    last_device == device && last_at + last.len_bytes == *at
                }
                _ => false,
            };
            if follows && last.at + last.len_bytes == step.at {
                last.len_bytes += step.len_bytes;
                return;
            }
        }
        self.steps.push(step);
    }
}
