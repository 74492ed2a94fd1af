//! The members of a store, and which of them hold all acknowledged data (R10, docs/rules.md).

use seam::Seam;

use crate::create::{SEGMENTS_MIN, segments_of};
use crate::device::Device;
use crate::error::StoreError;
use crate::format::superblock::{MemberState, Superblock};
use crate::member_disk::MemberDisk;
use crate::number::MemberNo;
use crate::recovery::OpenOptions;
use crate::superblocks::{identity, own_entry, read_superblock, was_used_apart};

/// The members of a store according to its newest superblock.
pub struct Members<S: Seam> {
    /// Present devices that are in service.
    pub devices: Vec<Device<S>>,
    /// Present devices that were removed from service earlier.
    pub stale: Vec<Device<S>>,
    /// The newest superblock. It marks missing members as lost, in a new generation.
    pub superblock: Superblock,
    /// Index of the superblock copy to overwrite next on each member: the one that does not hold the device's newest
    /// superblock. After a crash one device may be a revision ahead of the other, and its only intact superblock must
    /// not be overwritten first.
    pub next_copies: Vec<usize>,
}

/// Reads the superblocks of `disks` and classifies the devices.
pub async fn find_members<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    options: OpenOptions,
) -> Result<Members<S>, StoreError> {
    let mut candidates: Vec<(Device<S>, Superblock)> = Vec::new();
    let mut next_indexes: Vec<usize> = Vec::new();
    let mut refused = None;
    for disk in disks {
        let mut device = Device::new(MemberNo(0), disk.clone());
        match read_superblock(seam, &device).await {
            Ok((superblock, copy_index)) => {
                next_indexes.push(1 - copy_index);
                device.member = superblock.member;
                candidates.push((device, superblock));
            }
            // The other devices may be older than this one, so the store does not open without it.
            Err(error @ StoreError::Newer { .. }) => return Err(error),
            Err(error) => refused = Some(error),
        }
    }
    // A device without a valid superblock counts as missing.
    match refused {
        Some(error) if !options.accept_missing || candidates.is_empty() => return Err(error),
        None if candidates.is_empty() => return Err(StoreError::DeviceCount(disks.len())),
        _ => {}
    }
    // Each superblock records the last durable journal commit when it was written; the highest applies.
    let journal_commit = candidates.iter().map(|(_, superblock)| superblock.journal_commit).max().unwrap_or_default();
    // The superblock of a device that was being resynced when the store was last used is not reliable.
    let members = candidates
        .iter()
        .map(|(_, superblock)| superblock)
        .filter(|superblock| own_entry(superblock).state != MemberState::Resyncing);
    let Some(newest) = members.max_by_key(|superblock| (superblock.generation, superblock.revision)) else {
        let reason = "it was still being resynced when the store was last used".to_owned();
        return Err(StoreError::NoStore { device: candidates[0].0.name(), reason });
    };
    let mut newest = newest.clone();
    newest.journal_commit = journal_commit;
    if let Some((store, recorded)) = options.known_generation
        && newest.store == store
        && newest.generation < recorded
    {
        return Err(StoreError::Outdated { generation: newest.generation, recorded });
    }
    for (index, (device, superblock)) in candidates.iter().enumerate() {
        if superblock.store != newest.store {
            return Err(StoreError::OtherStore { device: device.name() });
        }
        // These values are fixed when the store is created.
        let fixed_geometry = |superblock: &Superblock| (superblock.segment_bytes, superblock.journal_bytes);
        if fixed_geometry(superblock) != fixed_geometry(&newest) {
            return Err(StoreError::Diverged);
        }
        let uuid = identity(superblock);
        if candidates[..index].iter().any(|(_, other)| identity(other) == uuid) {
            return Err(StoreError::DuplicateMember { device: device.name() });
        }
        if own_entry(superblock).state == MemberState::Resyncing {
            continue;
        }
        let same_generation = superblock.generation == newest.generation;
        if was_used_apart(superblock, &newest) || (same_generation && superblock.members != newest.members) {
            return Err(StoreError::Diverged);
        }
    }
    let (mut devices, mut stale, mut next_copies) = (Vec::new(), Vec::new(), vec![0; newest.members.len()]);
    for ((device, superblock), next_index) in candidates.into_iter().zip(next_indexes) {
        let entry = newest.members.get(device.member.index());
        match entry.filter(|entry| entry.uuid == identity(&superblock)).map(|entry| entry.state) {
            Some(MemberState::InService) => {
                next_copies[device.member.index()] = next_index;
                devices.push(device);
            }
            Some(MemberState::Lost) => stale.push(device),
            // It was removed, or its number was reused.
            Some(MemberState::Vacant | MemberState::Resyncing) | None => {}
        }
    }
    devices.sort_by_key(|device| device.member);
    let mut changed = false;
    for member in (0..newest.members.len() as u32).map(MemberNo) {
        let is_present = devices.iter().any(|device| device.member == member);
        if newest.serves(member) && !is_present {
            // A member with only clean pages may be missing: no dirty data is lost.
            if newest.carries_log(member) && !options.accept_missing {
                return Err(StoreError::MemberMissing { member });
            }
            let since = newest.generation.next().low_bits();
            let entry = &mut newest.members[member.index()];
            (entry.state, entry.since) = (MemberState::Lost, since);
            changed = true;
        }
    }
    if changed {
        newest.generation = newest.generation.next();
    }
    let capacities = devices.iter().chain(&stale).map(|device| segments_of(device, newest.segment_bytes));
    let largest_capacity = capacities.max().unwrap_or(0);
    for device in &devices {
        let claimed = newest.members[device.member.index()].segments;
        let capacity = segments_of(device, newest.segment_bytes);
        if claimed > capacity {
            let reason =
                format!("the store's newest superblock gives it {claimed} segments, and it has room for {capacity}");
            return Err(StoreError::NoStore { device: device.name(), reason });
        }
    }
    // The smallest log member limits the log: segments past its end hold no batches.
    let log = newest.numbered_members().filter(|(member, _)| newest.carries_log(*member));
    if let Some(capacity) = log.map(|(_, entry)| entry.segments).min() {
        newest.segments = capacity;
    }
    // Without a log member in service the superblock's own number remains: the missing devices may have been larger.
    newest.segments = newest.segments.min(largest_capacity);
    let segments_min = u64::from(newest.journal_segments()) + SEGMENTS_MIN;
    if u64::from(newest.segments) < segments_min
        && let Some(device) = devices.first().or(stale.first())
    {
        let reason = format!(
            "its {} segments do not hold the map journal and a log, which take {segments_min}",
            newest.segments
        );
        return Err(StoreError::NoStore { device: device.name(), reason });
    }
    Ok(Members { devices, stale, superblock: newest, next_copies })
}
