//! Creates a pool on empty disks.

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Piece, Seam};

use crate::buffers::Buffers;
use crate::device::{read_one, write_durably};
use crate::error::PoolError;
use crate::format::Uuid;
use crate::format::block::{BlockKind, CheckpointFacts, MetadataBlock};
use crate::format::layout::{
    AREAS_MAX, COPIES, GROWTH, JOURNAL_BLOCKS_MIN, METADATA_AT, area_blocks_for, data_at, journal_blocks_for,
};
use crate::format::superblock::{
    FEATURE_LISTS, MEMBERS_MAX, MemberEntry, MemberState, SLICE_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
    TIER_NAME_BYTES, TIERS_MAX,
};
use crate::number::{CheckpointNo, GroupNo, PoolGeneration, Sequence, TierNo, VolumeId};
use crate::signatures::find_signature;

/// A tier of a new pool.
#[derive(Clone, Debug)]
pub struct TierSpec<D> {
    /// Its name, at most 32 bytes.
    pub name: String,
    /// Its disks, each a group.
    pub disks: Vec<D>,
}

/// Options of the creation.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Bytes of a slice: a power of two from 256 KiB to 256 MiB.
    pub slice_bytes: u64,
    /// Destroy the content of the disks.
    pub force: bool,
    /// Blocks of the journal. The default follows from the number of slots.
    pub journal_blocks: Option<u32>,
    /// Slots for which the metadata has room. The default is three times the slots of the new pool.
    pub slots_max: Option<u32>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { slice_bytes: 4 << 20, force: false, journal_blocks: None, slots_max: None }
    }
}

/// Creates a pool; the tiers are given with the fastest first. The pool is not opened.
pub(crate) async fn create<S: Seam, D: Disk<S>>(
    seam: &S,
    tiers: &[TierSpec<D>],
    options: CreateOptions,
) -> Result<Uuid, PoolError> {
    let buffers = Buffers::new(seam);
    check_request(tiers, &options)?;
    let disks: Vec<(TierNo, &D)> =
        (0..).map(TierNo).zip(tiers).flat_map(|(tier, spec)| spec.disks.iter().map(move |disk| (tier, disk))).collect();
    for (_, disk) in &disks {
        if !options.force {
            require_empty(&buffers, *disk).await?;
        }
    }
    // The metadata's size follows from the slots, and the slots from its size: count them without it.
    let upper: u64 = disks.iter().map(|(_, disk)| disk.geometry().size_bytes / options.slice_bytes).sum();
    let upper = u32::try_from(upper).map_err(|_| PoolError::Refused("more than 2^32 slices".to_owned()))?;
    let slots_max = options.slots_max.unwrap_or(upper.saturating_mul(GROWTH)).max(upper);
    let journal_blocks = options.journal_blocks.unwrap_or_else(|| journal_blocks_for(upper)).max(JOURNAL_BLOCKS_MIN);
    let area_blocks = area_blocks_for(slots_max);
    let mut members = Vec::new();
    for (index, (tier, disk)) in disks.iter().enumerate() {
        let has_area = index < AREAS_MAX;
        let data_at = data_at(journal_blocks, area_blocks, has_area);
        members.push(MemberEntry {
            uuid: new_uuid(seam),
            slots: slots_of(*disk, data_at, options.slice_bytes)?,
            tier: *tier,
            state: MemberState::InService,
            carries_metadata: index < COPIES,
            has_area,
            data_at,
            name: disk.identity(),
            missed_timeline: false,
            may_hold: 0,
        });
    }
    let logical_block = disks.iter().map(|(_, disk)| disk.geometry().logical_block).max().expect("a pool has a group");
    let mut superblock = Superblock {
        features: FEATURE_LISTS,
        pool: new_uuid(seam),
        revision: 0,
        generation: PoolGeneration(1),
        group: GroupNo(0),
        slice_bytes: options.slice_bytes,
        journal_blocks,
        area_blocks,
        slots_max,
        logical_block,
        tiers: tiers.iter().map(|tier| tier.name.clone()).collect(),
        import: None,
        timeline: 0,
        former: Vec::new(),
        members,
    };
    let disks: Vec<&D> = disks.into_iter().map(|(_, disk)| disk).collect();
    write_first_checkpoint(&buffers, &superblock, &disks, seam.random()).await?;
    // Both superblocks: one of an older pool must not become valid again when the newer one is damaged.
    for _ in 0..SUPERBLOCK_OFFSETS.len() {
        superblock.revision += 1;
        for (index, disk) in disks.iter().enumerate() {
            superblock.group = GroupNo(index as u16);
            let at = SUPERBLOCK_OFFSETS[(superblock.revision % 2) as usize];
            let runs = [(at, vec![buffers.metadata(&superblock.encode()).await])];
            write_durably::<S, D>(disk, &runs).await.map_err(|error| failed(*disk, error))?;
        }
    }
    Ok(superblock.pool)
}

fn check_request<S: Seam, D: Disk<S>>(tiers: &[TierSpec<D>], options: &CreateOptions) -> Result<(), PoolError> {
    let refused = |reason: String| Err(PoolError::Refused(reason));
    if !(1..=TIERS_MAX).contains(&tiers.len()) {
        return refused(format!("{} tiers were given: a pool has one to {TIERS_MAX}", tiers.len()));
    }
    let disks: usize = tiers.iter().map(|tier| tier.disks.len()).sum();
    if !(1..=MEMBERS_MAX).contains(&disks) {
        return refused(format!("{disks} disks were given: a pool has one to {MEMBERS_MAX}"));
    }
    if !options.slice_bytes.is_power_of_two() || !SLICE_BYTES.contains(&options.slice_bytes) {
        return refused(format!(
            "a slice of {} bytes: it has to be a power of two from 256 KiB to 256 MiB",
            options.slice_bytes
        ));
    }
    let bad_name = tiers.iter().find(|tier| tier.name.is_empty() || tier.name.len() > TIER_NAME_BYTES);
    if let Some(tier) = bad_name {
        return refused(format!("the tier name \"{}\" has to have 1 to {TIER_NAME_BYTES} bytes", tier.name));
    }
    Ok(())
}

/// Number of slots of a disk.
pub(crate) fn slots_of<S: Seam, D: Disk<S>>(disk: &D, data_at: u64, slice_bytes: u64) -> Result<u32, PoolError> {
    let size_bytes = disk.geometry().size_bytes;
    let slots = size_bytes.saturating_sub(data_at) / slice_bytes;
    if slots == 0 {
        let min_bytes = data_at + slice_bytes;
        return Err(PoolError::TooSmall { device: disk.identity(), size_bytes, min_bytes });
    }
    Ok(u32::try_from(slots).unwrap_or(u32::MAX))
}

/// Writes an empty checkpoint to the groups that carry the metadata.
async fn write_first_checkpoint<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    superblock: &Superblock,
    disks: &[&D],
    boot: u64,
) -> Result<(), PoolError> {
    let number = CheckpointNo(1);
    let facts = CheckpointFacts {
        replay_from: Sequence(0),
        replay_after: 0,
        journal_end: Sequence(0),
        blocks: 0,
        checksum: 0,
        next_volume: VolumeId(1),
    };
    let header = MetadataBlock {
        kind: BlockKind::CheckpointHeader,
        pool: superblock.pool,
        sequence: Sequence(0),
        checkpoint: number,
        boot,
        previous: 0,
        is_last: true,
        payload: facts.encode().into(),
    };
    let (raw, _) = header.encode();
    for group in superblock.metadata_groups() {
        let disk = disks[group.index()];
        let runs = [(superblock.checkpoint_offset(number), vec![buffers.metadata(&raw).await])];
        write_durably::<S, D>(disk, &runs).await.map_err(|error| failed(disk, error))?;
    }
    Ok(())
}

/// A random identity, unique for practical purposes.
pub(crate) fn new_uuid<S: Seam>(seam: &S) -> Uuid {
    let mut uuid: Uuid = [0; 16];
    uuid[..8].copy_from_slice(&seam.random().to_le_bytes());
    uuid[8..].copy_from_slice(&seam.random().to_le_bytes());
    uuid
}

/// Wraps an error of a disk.
pub(crate) fn failed<S: Seam, D: Disk<S>>(disk: &D, error: seam::DiskError) -> PoolError {
    PoolError::Disk { device: disk.identity(), error }
}

/// Refuses a disk that has data at its start, or a signature anywhere.
pub(crate) async fn require_empty<S: Seam, D: Disk<S>>(buffers: &Buffers<S>, disk: &D) -> Result<(), PoolError> {
    for at in SUPERBLOCK_OFFSETS {
        let raw = read_one(buffers, disk, at).await.map_err(|error| failed(disk, error))?;
        let content = match Superblock::decode(&raw) {
            Ok(_) | Err(SuperblockError::Invalid(_)) => "a group of a pool already".to_owned(),
            Err(SuperblockError::Newer(newer)) => format!("a group of a pool that was {newer}"),
            Err(SuperblockError::NotASuperblock) => continue,
        };
        return Err(PoolError::NotEmpty { device: disk.identity(), content });
    }
    let mut at = 0;
    while at < METADATA_AT {
        let pieces = buffers.get_up_to(((METADATA_AT - at) / BLOCK_BYTES as u64) as usize).await;
        let (result, pieces) = disk.read(at, pieces.into_iter().map(Piece::whole).collect()).await;
        result.map_err(|error| failed(disk, error))?;
        for piece in pieces {
            let block = piece.block.freeze();
            if !block.is_zero(0, BLOCK_BYTES) {
                return Err(PoolError::NotEmpty { device: disk.identity(), content: format!("data at byte {at}") });
            }
            buffers.put_frozen(block);
            at += BLOCK_BYTES as u64;
        }
    }
    match find_signature(buffers, disk).await.map_err(|error| failed(disk, error))? {
        Some(name) => Err(PoolError::NotEmpty { device: disk.identity(), content: format!("the signature of {name}") }),
        None => Ok(()),
    }
}
