//! Formats devices as a store. A device must be empty unless the caller forces it.

use seam::{BLOCK_BYTES, Block, Disk, Seam};

use crate::device::{BufferSource, Device, Durability, alloc_buffer, block_of, raw};
use crate::error::StoreError;
use crate::format::journal::JOURNAL_AT;
use crate::format::superblock::{
    MEMBERS_MAX, MemberEntry, MemberState, Ownership, Role, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
};
use crate::format::{FIRST_SEGMENT_BYTES, Uuid};
use crate::member_disk::{LogPlacement, MemberDisk};
use crate::number::{BootEpoch, CommitNo, MemberNo, MembershipGeneration, Sequence};

/// Minimum number of segments of a store: one open, one live, one to open next, one that waits for the durable tail.
pub const SEGMENTS_MIN: u64 = 4;
/// Blocks per read while checking that a device is empty.
const READ_BLOCKS: usize = 32;

/// Options of formatting.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of a segment, a power of two. The default follows from the smallest device's size.
    pub segment_bytes: Option<u64>,
    /// Destroy the content of the devices.
    pub force: bool,
    /// Bytes of the map journal on each device that carries the log. The default follows from the devices' sizes.
    pub journal_bytes: Option<u64>,
}

/// Formats one to eight devices as a store. An image carries the log, otherwise the first two devices do. The store is
/// not opened.
pub async fn format<S: Seam>(seam: &S, disks: &[MemberDisk<S>], options: FormatOptions) -> Result<(), StoreError> {
    if !(1..=MEMBERS_MAX).contains(&disks.len()) {
        return Err(StoreError::DeviceCount(disks.len()));
    }
    let devices: Vec<Device<S>> =
        (0..).map(MemberNo).zip(disks).map(|(member, disk)| Device::new(member, disk.clone())).collect();
    let smallest = disks.iter().map(|disk| disk.geometry().size_bytes).min().expect("a store has a device");
    let segment_bytes = options.segment_bytes.unwrap_or_else(|| segment_bytes_for(smallest));
    assert!(
        segment_bytes.is_power_of_two() && segment_bytes >= 2 * BLOCK_BYTES as u64,
        "a segment of {segment_bytes} bytes"
    );
    let journal_bytes = options.journal_bytes.unwrap_or_else(|| journal_bytes_for::<S>(disks));
    let journal_segments = (JOURNAL_AT + journal_bytes).saturating_sub(FIRST_SEGMENT_BYTES).div_ceil(segment_bytes);
    for device in &devices {
        let size_bytes = device.disk.geometry().size_bytes;
        let min_bytes = FIRST_SEGMENT_BYTES + (journal_segments + SEGMENTS_MIN) * segment_bytes;
        if size_bytes < min_bytes {
            return Err(StoreError::TooSmall { device: device.name(), size_bytes, min_bytes });
        }
        if !options.force {
            require_empty(seam, device).await?;
        }
    }
    let placement = LogPlacement::of(disks);
    let may_carry_log = devices.iter().filter(|device| placement.admits(&device.disk));
    let log_members: Vec<MemberNo> = may_carry_log.map(|device| device.member).take(placement.copies()).collect();
    let uuid = || new_uuid(seam);
    let member = |device: &Device<S>| MemberEntry {
        uuid: uuid(),
        state: MemberState::InService,
        role: if log_members.contains(&device.member) { Role::Log } else { Role::Pages },
        segment_count: segment_count_of(device, segment_bytes),
        since_generation: 1,
    };
    let members: Vec<_> = devices.iter().map(member).collect();
    let log = members.iter().filter(|member| member.role == Role::Log);
    let mut superblock = Superblock {
        store: uuid(),
        revision: 0,
        generation: MembershipGeneration(1),
        member: MemberNo(0),
        log_segment_count: log.map(|member| member.segment_count).min().expect("a store has a device"),
        members,
        segment_bytes,
        boot_epoch: BootEpoch(0),
        tail: Sequence(1),
        ownership: Ownership::default(),
        first_sequence: Sequence(1),
        journal_bytes,
        journal_commit: CommitNo(0),
    };
    // Write both superblocks: one of an older store must not become valid again when the newer one is damaged.
    for copy_index in [1, 0] {
        superblock.revision += 1;
        for device in &devices {
            superblock.member = device.member;
            let block = block_of::<S>(alloc_buffer(seam).await, &superblock.encode());
            device
                .write_with_retry(SUPERBLOCK_OFFSETS[copy_index], vec![block], Durability::Flushed)
                .await
                .map_err(|error| device.wrap_error(error))?;
        }
    }
    Ok(())
}

/// Number of segments that fit on a device.
pub fn segment_count_of<S: Seam>(device: &Device<S>, segment_bytes: u64) -> u32 {
    segments_within(device.disk.geometry().size_bytes, segment_bytes)
}

/// Number of segments that fit on a device of this size.
pub fn segments_within(device_bytes: u64, segment_bytes: u64) -> u32 {
    let bytes = device_bytes.saturating_sub(FIRST_SEGMENT_BYTES);
    u32::try_from(bytes / segment_bytes).unwrap_or(u32::MAX)
}

/// The default size of the map journal. Each of its two halves has twice the space of one 24-byte record per page
/// slot (68 KiB) of all devices. On small devices the journal fits before the first segment.
fn journal_bytes_for<S: Seam>(disks: &[MemberDisk<S>]) -> u64 {
    let total: u64 = disks.iter().map(|disk| disk.geometry().size_bytes).sum();
    let blocks = total / 512 / BLOCK_BYTES as u64;
    (blocks * BLOCK_BYTES as u64).max(FIRST_SEGMENT_BYTES - JOURNAL_AT)
}

/// The default size of a segment: about 1/256 of the device, 1 to 64 MiB.
fn segment_bytes_for(device_bytes: u64) -> u64 {
    (device_bytes / 256).next_power_of_two().clamp(1 << 20, 64 << 20)
}

/// A random identity, unique for practical purposes.
pub fn new_uuid<S: Seam>(seam: &S) -> Uuid {
    let mut uuid: Uuid = [0; 16];
    uuid[..8].copy_from_slice(&seam.random().to_le_bytes());
    uuid[8..].copy_from_slice(&seam.random().to_le_bytes());
    uuid
}

/// Refuses a device that has data in its metadata area.
pub async fn require_empty<S: Seam>(source: &impl BufferSource<S>, device: &Device<S>) -> Result<(), StoreError> {
    for at in (0..FIRST_SEGMENT_BYTES).step_by(READ_BLOCKS * BLOCK_BYTES) {
        let blocks = device.read_blocks(source, at, READ_BLOCKS).await.map_err(|error| device.wrap_error(error))?;
        let mut blocks_at = blocks.iter().zip((at..).step_by(BLOCK_BYTES));
        if let Some((block, at)) = blocks_at.find(|(block, _)| !block.is_zero(0, BLOCK_BYTES)) {
            let content = match SUPERBLOCK_OFFSETS.contains(&at).then(|| Superblock::decode(&raw(block))) {
                Some(Ok(_) | Err(SuperblockError::Invalid(_))) => "a flash store already".to_owned(),
                Some(Err(SuperblockError::Newer(newer))) => format!("a flash store that was {newer}"),
                _ => format!("something at byte {at}"),
            };
            return Err(StoreError::NotEmpty { device: device.name(), content });
        }
    }
    Ok(())
}
