//! Read-only inspection of a store's devices, and rescue of dirty blocks from a store that cannot be opened.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Seam;

use crate::device::{Device, block_offset};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::batch::data_seed;
use crate::format::superblock::{
    MemberEntry, MemberState, Ownership, Role, SUPERBLOCK_OFFSETS, Superblock, SuperblockError, has_magic,
};
use crate::member_disk::MemberDisk;
use crate::number::{BootEpoch, MemberNo, MembershipGeneration, SegmentNo, Sequence};
use crate::record::RecoveredRecord;
use crate::recovery::members::{Members, find_members};
use crate::recovery::{OpenOptions, chain, salvage};
use crate::sabotage::Sabotage;
use crate::superblocks::read_superblock;

/// The findings on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFindings {
    /// The device.
    pub device: String,
    /// The content of its newest superblock, or the reason why there is none.
    pub superblock: Result<SuperblockSummary, String>,
}

/// The fields of a superblock that describe its device and the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockSummary {
    /// Identity of the store.
    pub store: Uuid,
    /// The device's number in the store.
    pub member: MemberNo,
    /// The device's state by its own superblock.
    pub state: MemberState,
    /// Content: the log and pages, or only pages.
    pub role: Role,
    /// The membership generation when it was written.
    pub generation: MembershipGeneration,
    /// The owner that opened the store last.
    pub ownership: Ownership,
}

/// The findings on a store.
pub struct Inspection<S: Seam> {
    /// The devices, in the order in which they were given.
    pub devices: Vec<DeviceFindings>,
    /// Identity of the store.
    pub store: Uuid,
    /// Log members that were in service and are absent.
    pub missing_members: Vec<MemberNo>,
    /// The reason why the store would not open in its present state, if there is one.
    pub problem: Option<StoreError>,
    /// Ranges of sequence numbers of batches that may have been valid but are on no device: their content is unknown.
    pub lost_batches: Vec<Range<Sequence>>,
    /// The dirty blocks, in the order of their addresses.
    pub dirty_blocks: Vec<RecoveredRecord>,
    pub(crate) seam: S,
    /// Devices that carry the log.
    log_devices: Vec<Device<S>>,
    segment_bytes: u64,
    /// Boot epoch and segment generation of each data block, by segment and block: they seed its checksum.
    batch_of_block: BTreeMap<(SegmentNo, u32), (BootEpoch, Sequence)>,
}

/// The identity of a store on devices, and its last owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Identity of the store.
    pub store: Uuid,
    /// The membership generation.
    pub generation: MembershipGeneration,
    /// The owner that opened it last.
    pub ownership: Ownership,
    /// The owner that each device in service names. It is an older one after a device was restored from a copy, or
    /// after an opening was interrupted.
    pub devices: Vec<(String, Ownership)>,
}

/// The superblocks of one device, whatever the other devices of its store hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// It carries no superblock.
    NoStore,
    /// It carries a superblock of this store, which this owner opened last.
    Store(Uuid, Ownership),
    /// A superblock is damaged, of a later format or unreadable; the text gives the reason.
    Unknown(String),
}

/// Reads the superblocks of one device. Writes nothing.
pub async fn read_device_content<S: Seam>(seam: &S, disk: &MemberDisk<S>) -> DeviceContent {
    let device = Device::new(MemberNo(0), disk.clone());
    let mut content = DeviceContent::NoStore;
    for at in SUPERBLOCK_OFFSETS {
        let raw = match device.read_raw(seam, at).await {
            Ok(raw) => raw,
            Err(error) => {
                content = DeviceContent::Unknown(error.to_string());
                continue;
            }
        };
        match Superblock::decode(&raw) {
            Ok(superblock) => return DeviceContent::Store(superblock.store, superblock.ownership),
            Err(SuperblockError::NotASuperblock) if !has_magic(&raw) => {}
            Err(SuperblockError::NotASuperblock) => {
                content = DeviceContent::Unknown("its superblock is damaged".to_owned());
            }
            Err(SuperblockError::Invalid(text)) => content = DeviceContent::Unknown(text),
            Err(SuperblockError::Newer(newer)) => {
                content = DeviceContent::Unknown(format!("its flash store was {newer}"));
            }
        }
    }
    content
}

/// Identifies the store that [`Store::open`](crate::Store::open) would open with these options. Fails as the opening
/// would for its members. Writes nothing.
pub async fn identify<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    options: OpenOptions,
) -> Result<StoreIdentity, StoreError> {
    let members = find_members(seam, disks, options).await?;
    let mut devices = Vec::new();
    for device in &members.devices {
        devices.push((device.name(), read_superblock(seam, device).await?.0.ownership));
    }
    let Superblock { store, generation, ownership, .. } = members.superblock;
    Ok(StoreIdentity { store, generation, ownership, devices })
}

/// Inspects the store on `disks`, without writing anything. Unreadable or inconsistent parts are skipped and listed.
/// The error is the reason why there is no store to inspect.
pub async fn inspect<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
) -> (Vec<DeviceFindings>, Result<Inspection<S>, StoreError>) {
    let mut devices = Vec::new();
    for disk in disks {
        let device = Device::new(MemberNo(0), disk.clone());
        let superblock = read_superblock(seam, &device).await.map(|(superblock, _)| summarize(&superblock));
        devices.push(DeviceFindings {
            device: device.name(),
            superblock: superblock.map_err(|error| match error {
                StoreError::NoStore { reason, .. } => reason,
                other => other.to_string(),
            }),
        });
    }
    let open_error = find_members(seam, disks, OpenOptions::default()).await.map(drop).err();
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let inspection = match find_members(seam, disks, options).await {
        Ok(members) => Ok(inspect_members(seam, members, devices.clone(), open_error).await),
        Err(error) => Err(error),
    };
    (devices, inspection)
}

/// The fields of a superblock that an inspection reports.
fn summarize(superblock: &Superblock) -> SuperblockSummary {
    let own_entry = &superblock.members[superblock.member.index()];
    SuperblockSummary {
        store: superblock.store,
        member: superblock.member,
        state: own_entry.state,
        role: own_entry.role,
        generation: superblock.generation,
        ownership: superblock.ownership,
    }
}

/// Reads the log of these members, or salvages what is readable of it. `open_error` is the reason why the store would
/// not open with these members.
async fn inspect_members<S: Seam>(
    seam: &S,
    members: Members<S>,
    devices: Vec<DeviceFindings>,
    open_error: Option<StoreError>,
) -> Inspection<S> {
    let superblock = members.superblock;
    let log: Vec<_> = members.devices.into_iter().filter(|device| superblock.carries_log(device.member)).collect();
    let is_newly_lost = |entry: &MemberEntry| {
        entry.state == MemberState::Lost
            && entry.role == Role::Log
            && entry.since_generation == superblock.generation.low_bits()
    };
    // A member that became lost in the generation of this inspection was in service before.
    let missing = match &open_error {
        Some(_) => {
            superblock.numbered_members().filter(|(_, entry)| is_newly_lost(entry)).map(|(member, _)| member).collect()
        }
        None => Vec::new(),
    };
    let (chain, lost_batches, problem) = match chain::read_log(seam, &log, &superblock, Sabotage::None).await {
        Ok(chain) => (chain, Vec::new(), open_error),
        Err(error) => {
            let (chain, lost) = salvage::salvage(seam, &log, &superblock).await;
            (chain, lost, Some(open_error.unwrap_or(error)))
        }
    };
    let mut batch_of_block = BTreeMap::new();
    for batch in &chain.batches {
        let blocks = batch.offset_blocks + 1..batch.offset_blocks + batch.block_count;
        batch_of_block.extend(blocks.map(|index| ((batch.segment, index), (batch.boot_epoch, batch.first_sequence))));
    }
    let (dirty, _) = chain.records.into_newest(chain.log_segment_count);
    let (store, segment_bytes) = (superblock.store, superblock.segment_bytes);
    Inspection {
        devices,
        store,
        missing_members: missing,
        problem,
        lost_batches,
        dirty_blocks: dirty,
        seam: seam.clone(),
        log_devices: log,
        segment_bytes,
        batch_of_block,
    }
}

impl<S: Seam> Inspection<S> {
    /// The content of a dirty block, from any device with a good copy; `None` without one.
    pub async fn read(&self, dirty: &RecoveredRecord) -> Option<S::Block> {
        let at = self.offset_of(dirty);
        for device in &self.log_devices {
            if let Ok(mut blocks) = device.read_blocks(&self.seam, at, 1).await
                && let Some(block) = blocks.pop()
                && self.is_intact(dirty, &block)
            {
                return Some(block);
            }
        }
        None
    }

    /// The blocks of records that follow each other in the log, from one device, unchecked; none if it fails.
    pub(crate) async fn read_adjacent(&self, run: &[&RecoveredRecord]) -> Vec<S::Block> {
        let (Some(first), Some(device)) = (run.first(), self.log_devices.first()) else { return Vec::new() };
        device.read_blocks(&self.seam, self.offset_of(first), run.len()).await.unwrap_or_default()
    }

    /// True if the checksum of `block` shows that it is the content of the dirty block.
    pub(crate) fn is_intact(&self, dirty: &RecoveredRecord, block: &S::Block) -> bool {
        let position = dirty.position;
        let Some((boot_epoch, first)) = self.batch_of_block.get(&(position.segment, position.block_index)) else {
            return false;
        };
        let seed = data_seed(dirty.address.volume_id, dirty.address.block, *boot_epoch, *first);
        seam::Block::checksum(block, seed) == position.checksum
    }

    /// The byte offset of a dirty block on its device.
    fn offset_of(&self, dirty: &RecoveredRecord) -> u64 {
        block_offset(self.segment_bytes, dirty.position.segment, dirty.position.block_index)
    }

    /// The number of copies of the log that are present.
    pub fn copies(&self) -> usize {
        self.log_devices.len()
    }
}
