//! The superblocks of a device, and how they relate to the newest one of the store.

use seam::Seam;

use crate::create::segment_count_of;
use crate::device::{BufferSource, Device};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::superblock::{MemberEntry, MemberState, Role, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};

/// The identity of the device that holds this superblock.
pub fn identity(superblock: &Superblock) -> Uuid {
    own_entry(superblock).uuid
}

/// The entry of the device that holds this superblock.
pub fn own_entry(superblock: &Superblock) -> &MemberEntry {
    &superblock.members[superblock.member.index()]
}

/// Describes a superblock that claims more segments than fit on its device; `None` for any other.
fn excessive_claim<S: Seam>(device: &Device<S>, superblock: &Superblock) -> Option<String> {
    let (capacity, entry) = (segment_count_of(device, superblock.segment_bytes), own_entry(superblock));
    let log_segments =
        if entry.role == Role::Log && entry.state == MemberState::InService { superblock.log_segment_count } else { 0 };
    let claimed = entry.segment_count.max(log_segments);
    let kib = superblock.segment_bytes >> 10;
    (claimed > capacity).then(|| {
        format!(
            "its superblock claims {claimed} segments of {kib} KiB, and it has room for {capacity}: it shrank, or was \
             copied from a larger device"
        )
    })
}

/// The newer of a device's two superblocks, and the index of its copy. A superblock of a later format is an error in
/// either copy.
pub async fn read_superblock<S: Seam>(
    source: &impl BufferSource<S>,
    device: &Device<S>,
) -> Result<(Superblock, usize), StoreError> {
    let mut newest: Option<(Superblock, usize)> = None;
    let mut reason = "no superblock".to_owned();
    for (copy_index, at) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        match device.read_raw(source, at).await {
            Ok(raw) => match Superblock::decode(&raw) {
                Ok(superblock) => match excessive_claim(device, &superblock) {
                    Some(claim) => reason = claim,
                    None if newest.as_ref().is_none_or(|(newest, _)| superblock.revision > newest.revision) => {
                        newest = Some((superblock, copy_index));
                    }
                    None => {}
                },
                Err(SuperblockError::NotASuperblock) => {}
                Err(SuperblockError::Invalid(text)) => reason = text,
                Err(SuperblockError::Newer(newer)) => return Err(StoreError::Newer { device: device.name(), newer }),
            },
            Err(error) => reason = error.to_string(),
        }
    }
    newest.ok_or_else(|| StoreError::NoStore { device: device.name(), reason })
}

/// True if the device of `superblock` was written without the members that `newest` lists (split brain): it may have
/// data that they lack.
pub fn has_diverged(superblock: &Superblock, newest: &Superblock) -> bool {
    let is_removed = |state| matches!(state, MemberState::Lost | MemberState::Vacant);
    let pairs = superblock.members.iter().zip(&newest.members);
    let records_serving_member_as_removed = pairs
        .filter(|(recorded, current)| recorded.uuid == current.uuid)
        .any(|(recorded, current)| is_removed(recorded.state) && current.state == MemberState::InService);
    // The device's own superblock has reached the generation in which the store removed it.
    let uuid = identity(superblock);
    let was_used_after_removal = newest
        .members
        .iter()
        .filter(|current| current.uuid == uuid && is_removed(current.state))
        .any(|current| superblock.generation.low_bits() >= current.since_generation);
    records_serving_member_as_removed || was_used_after_removal || superblock.generation > newest.generation
}
