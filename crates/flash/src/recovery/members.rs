//! The members of a store, and which of them hold all acknowledged data (R10, docs/rules.md).

use seam::Seam;

use crate::create::{SEGMENTS_MIN, segment_count_of};
use crate::device::Device;
use crate::error::StoreError;
use crate::format::superblock::{MemberState, Superblock};
use crate::member_disk::MemberDisk;
use crate::number::MemberNo;
use crate::recovery::OpenOptions;
use crate::superblocks::{has_diverged, identity, own_entry, read_superblock};

/// The members of a store according to its newest superblock.
pub struct Members<S: Seam> {
    /// Present devices that are in service.
    pub devices: Vec<Device<S>>,
    /// Present devices that were removed from service earlier.
    pub stale_devices: Vec<Device<S>>,
    /// The newest superblock. It marks missing members as lost, in a new generation.
    pub superblock: Superblock,
    /// Index of the superblock copy to overwrite next on each member: the one that does not hold the device's newest
    /// superblock. After a crash one device may be a revision ahead of the other, and its only intact superblock must
    /// not be overwritten first.
    pub next_copies: Vec<usize>,
}

/// A present device with its newest superblock.
struct Candidate<S: Seam> {
    device: Device<S>,
    superblock: Superblock,
    /// Index of the superblock copy to overwrite next.
    next_copy: usize,
}

/// Reads the superblocks of `disks` and classifies the devices.
pub async fn find_members<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    options: OpenOptions,
) -> Result<Members<S>, StoreError> {
    let candidates = read_candidates(seam, disks, options.accept_missing).await?;
    let newest = find_newest_superblock(&candidates, options)?;
    refuse_inconsistent(&candidates, &newest)?;
    let mut members = classify_devices(candidates, newest);
    mark_missing_as_lost(&mut members, options.accept_missing)?;
    refuse_small_devices(&members)?;
    set_log_end(&mut members)?;
    Ok(members)
}

/// Reads the superblocks of `disks`.
async fn read_candidates<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    accept_missing: bool,
) -> Result<Vec<Candidate<S>>, StoreError> {
    let mut candidates: Vec<Candidate<S>> = Vec::new();
    let mut last_error = None;
    for disk in disks {
        let mut device = Device::new(MemberNo(0), disk.clone());
        match read_superblock(seam, &device).await {
            Ok((superblock, copy_index)) => {
                device.member = superblock.member;
                candidates.push(Candidate { device, superblock, next_copy: 1 - copy_index });
            }
            // The other devices may be older than this one, so the store does not open without it.
            Err(error @ StoreError::Newer { .. }) => return Err(error),
            Err(error) => last_error = Some(error),
        }
    }
    // A device without a valid superblock counts as missing.
    match last_error {
        Some(error) if !accept_missing || candidates.is_empty() => Err(error),
        None if candidates.is_empty() => Err(StoreError::DeviceCount(disks.len())),
        _ => Ok(candidates),
    }
}

/// The newest superblock of any member. Fails if the owner has recorded a newer generation.
fn find_newest_superblock<S: Seam>(
    candidates: &[Candidate<S>],
    options: OpenOptions,
) -> Result<Superblock, StoreError> {
    let superblocks = || candidates.iter().map(|candidate| &candidate.superblock);
    // Each superblock records the last durable journal commit when it was written; the highest applies.
    let journal_commit = superblocks().map(|superblock| superblock.journal_commit).max().unwrap_or_default();
    // The superblock of a device that was being resynced when the store was last used is not reliable.
    let of_members = superblocks().filter(|superblock| own_entry(superblock).state != MemberState::Resyncing);
    let Some(newest) = of_members.max_by_key(|superblock| (superblock.generation, superblock.revision)) else {
        let reason = "the device was still being resynced when the store was last used".to_owned();
        return Err(StoreError::NoStore { device: candidates[0].device.name(), reason });
    };
    let newest = Superblock { journal_commit, ..newest.clone() };
    if let Some((store, recorded)) = options.known_generation
        && newest.store == store
        && newest.generation < recorded
    {
        return Err(StoreError::Outdated { generation: newest.generation, recorded });
    }
    Ok(newest)
}

/// Refuses devices of other stores or with another fixed geometry, copies of a device, and devices that were written
/// without the others.
fn refuse_inconsistent<S: Seam>(candidates: &[Candidate<S>], newest: &Superblock) -> Result<(), StoreError> {
    for (index, Candidate { device, superblock, .. }) in candidates.iter().enumerate() {
        if superblock.store != newest.store {
            return Err(StoreError::OtherStore { device: device.name() });
        }
        // These values are fixed when the store is created.
        let fixed_geometry = |superblock: &Superblock| (superblock.segment_bytes, superblock.journal_bytes);
        if fixed_geometry(superblock) != fixed_geometry(newest) {
            return Err(StoreError::Diverged);
        }
        let uuid = identity(superblock);
        if candidates[..index].iter().any(|other| identity(&other.superblock) == uuid) {
            return Err(StoreError::DuplicateMember { device: device.name() });
        }
        if own_entry(superblock).state == MemberState::Resyncing {
            continue;
        }
        let is_same_generation = superblock.generation == newest.generation;
        if has_diverged(superblock, newest) || (is_same_generation && superblock.members != newest.members) {
            return Err(StoreError::Diverged);
        }
    }
    Ok(())
}

/// Divides the devices into those in service and those that were removed from service; others are left out.
fn classify_devices<S: Seam>(candidates: Vec<Candidate<S>>, newest: Superblock) -> Members<S> {
    let (mut devices, mut stale_devices, mut next_copies) = (Vec::new(), Vec::new(), vec![0; newest.members.len()]);
    for Candidate { device, superblock, next_copy } in candidates {
        let entry = newest.members.get(device.member.index());
        match entry.filter(|entry| entry.uuid == identity(&superblock)).map(|entry| entry.state) {
            Some(MemberState::InService) => {
                next_copies[device.member.index()] = next_copy;
                devices.push(device);
            }
            Some(MemberState::Lost) => stale_devices.push(device),
            // The device was removed from the store, or its number was reused.
            Some(MemberState::Vacant | MemberState::Resyncing) | None => {}
        }
    }
    devices.sort_by_key(|device| device.member);
    Members { devices, stale_devices, superblock: newest, next_copies }
}

/// Marks missing members as lost, in a new generation. Fails if one of them carries the log, unless `accept_missing`.
fn mark_missing_as_lost<S: Seam>(members: &mut Members<S>, accept_missing: bool) -> Result<(), StoreError> {
    let newest = &mut members.superblock;
    let mut is_changed = false;
    for member in (0..newest.members.len() as u32).map(MemberNo) {
        let is_present = members.devices.iter().any(|device| device.member == member);
        if newest.serves(member) && !is_present {
            // A member with only clean pages may be missing: no dirty data is lost.
            if newest.carries_log(member) && !accept_missing {
                return Err(StoreError::MemberMissing { member });
            }
            let since_generation = newest.generation.next().low_bits();
            let entry = &mut newest.members[member.index()];
            (entry.state, entry.since_generation) = (MemberState::Lost, since_generation);
            is_changed = true;
        }
    }
    if is_changed {
        newest.generation = newest.generation.next();
    }
    Ok(())
}

/// Refuses a device with room for fewer segments than the newest superblock gives it.
fn refuse_small_devices<S: Seam>(members: &Members<S>) -> Result<(), StoreError> {
    let newest = &members.superblock;
    for device in &members.devices {
        let claimed = newest.members[device.member.index()].segment_count;
        let capacity = segment_count_of(device, newest.segment_bytes);
        if claimed > capacity {
            let reason =
                format!("the newest superblock gives the device {claimed} segments, but it has room for {capacity}");
            return Err(StoreError::NoStore { device: device.name(), reason });
        }
    }
    Ok(())
}

/// Sets the end of the log to that of the smallest log member: segments past it hold no batches. The log may thereby
/// grow or shrink. Fails if no log fits.
fn set_log_end<S: Seam>(members: &mut Members<S>) -> Result<(), StoreError> {
    let newest = &mut members.superblock;
    let present = members.devices.iter().chain(&members.stale_devices);
    let capacities = present.map(|device| segment_count_of(device, newest.segment_bytes));
    let largest_capacity = capacities.max().unwrap_or(0);
    let log = newest.numbered_members().filter(|(member, _)| newest.carries_log(*member));
    if let Some(capacity) = log.map(|(_, entry)| entry.segment_count).min() {
        newest.log_segment_count = capacity;
    }
    // Without a log member in service the superblock's own number remains: the missing devices may have been larger.
    newest.log_segment_count = newest.log_segment_count.min(largest_capacity);
    let segments_min = u64::from(newest.journal_segments()) + SEGMENTS_MIN;
    if u64::from(newest.log_segment_count) < segments_min
        && let Some(device) = members.devices.first().or(members.stale_devices.first())
    {
        let reason = format!(
            "the log's {} segments do not hold the map journal and a log, which take {segments_min}",
            newest.log_segment_count
        );
        return Err(StoreError::NoStore { device: device.name(), reason });
    }
    Ok(())
}
