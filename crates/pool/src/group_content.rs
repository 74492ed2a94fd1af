//! Recognises a disk that is a group of a pool, before it is used for another purpose.

use seam::{BLOCK_BYTES, Disk, Seam};

use crate::buffers::Buffers;
use crate::device::read_one;
use crate::format::Uuid;
use crate::format::superblock::{DEVICE_NAME_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError, cut};

/// The superblocks of one disk, whatever the other disks of its pool hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupContent {
    /// It carries no readable superblock, or has left its pool.
    NoGroup,
    /// It is a group of a pool, and its superblock names this disk.
    Group,
    /// Its superblock names another disk, or is of a later format: the disk may be a group under a former identity, a
    /// copy of one, or the virtual disk of a machine that has a pool of its own on it.
    GroupElsewhere,
}

/// The pool of which a disk is a group, whatever its other disks hold; `None` also for one that has left its pool.
/// Writes nothing.
pub async fn read_pool_identity<S: Seam, D: Disk<S>>(seam: &S, disk: &D) -> Option<Uuid> {
    let (superblock, _) = newest_superblock(seam, disk).await;
    let superblock = superblock?;
    let entry = &superblock.members[superblock.group.index()];
    (!entry.state.has_left()).then_some(superblock.pool)
}

/// Reads the superblocks of one disk. Writes nothing.
pub async fn read_group_content<S: Seam, D: Disk<S>>(seam: &S, disk: &D) -> GroupContent {
    let (newest, has_other) = newest_superblock(seam, disk).await;
    let Some(superblock) = newest else {
        return if has_other { GroupContent::GroupElsewhere } else { GroupContent::NoGroup };
    };
    let entry = &superblock.members[superblock.group.index()];
    if entry.state.has_left() {
        return GroupContent::NoGroup;
    }
    let mut identities = disk.former_identities();
    identities.push(disk.identity());
    match identities.iter().any(|identity| cut(identity, DEVICE_NAME_BYTES) == entry.name) {
        true => GroupContent::Group,
        false => GroupContent::GroupElsewhere,
    }
}

/// The newer superblock of a disk, and whether it has one that this version cannot use.
async fn newest_superblock<S: Seam, D: Disk<S>>(seam: &S, disk: &D) -> (Option<Superblock>, bool) {
    let buffers = Buffers::without_reserve(seam);
    let (mut newest, mut has_other) = (None::<Superblock>, false);
    for at in SUPERBLOCK_OFFSETS {
        if at + BLOCK_BYTES as u64 > disk.geometry().size_bytes {
            continue;
        }
        let Ok(raw) = read_one(&buffers, disk, at).await else { continue };
        match Superblock::decode(&raw) {
            Ok(superblock) if newest.as_ref().is_none_or(|newest| newest.revision < superblock.revision) => {
                newest = Some(superblock);
            }
            Ok(_) | Err(SuperblockError::NotASuperblock) => {}
            Err(SuperblockError::Invalid(_) | SuperblockError::Newer(_)) => has_other = true,
        }
    }
    (newest, has_other)
}
