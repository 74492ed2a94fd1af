//! Errors of the pool, with texts that tell an administrator what to do.

use format_version::NewerFormat;
use seam::DiskError;

use crate::number::{GroupNo, VolumeId};

/// Reasons for a refusal or a failure of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A device that is to become a group is not empty.
    #[error("{device} holds {content}: specify another device, or force to destroy that")]
    NotEmpty {
        /// The device.
        device: String,
        /// Its content.
        content: String,
    },
    /// A device is too small.
    #[error("{device} is too small: {size_bytes} bytes, at least {min_bytes} are needed")]
    TooSmall {
        /// The device.
        device: String,
        /// Its size.
        size_bytes: u64,
        /// The size that it needs.
        min_bytes: u64,
    },
    /// A device is no group of a pool.
    #[error("{device} holds no group of a pool ({reason})")]
    NoPool {
        /// The device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A device holds a pool of a later format. It is left unchanged.
    #[error("{device} holds a pool that was {newer}; start that version: this one changes nothing on it")]
    Newer {
        /// The device.
        device: String,
        /// Its format.
        newer: NewerFormat,
    },
    /// The devices belong to different pools.
    #[error("{device} belongs to another pool: specify the devices of one pool")]
    OtherPool {
        /// The device that differs from the first.
        device: String,
    },
    /// Two devices are the same group.
    #[error("{device} is a copy of group {group}, which another device is already: specify only one of them")]
    Duplicate {
        /// The second device.
        device: String,
        /// The group.
        group: GroupNo,
    },
    /// Groups were continued without each other. Their data must not be mixed.
    #[error(
        "split brain: the pool was opened on separate devices, each without the others: {}. Nothing was changed. \
         Detach the devices of every side but the one whose data you want to keep, then open the pool again",
        describe_sides(sides)
    )]
    Diverged {
        /// The devices that belong together.
        sides: Vec<Vec<String>>,
    },
    /// No present group carries the pool's metadata.
    #[error("no present device carries the pool's metadata: attach {missing}")]
    NoMetadata {
        /// Names of the groups that carry it.
        missing: String,
    },
    /// A group with a metadata copy is missing, and the present groups are no majority.
    #[error(
        "{missing} with a copy of the metadata is missing, and at most half of the groups are present: the missing \
         ones may hold a newer state; attach them, or accept their loss with `hotset pool accept-missing`"
    )]
    NoMajority {
        /// Names of the missing groups with a metadata copy.
        missing: String,
    },
    /// The metadata is damaged in all copies, or contradicts itself.
    #[error("the pool's metadata is damaged: {0}")]
    Damaged(String),
    /// The metadata cannot be written any more.
    #[error("the pool's metadata cannot be written ({0}): replace the device, then open the pool again")]
    Failed(String),
    /// The request contradicts the pool's configuration; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A device with data cannot become a volume.
    #[error("{device} cannot be imported: {reason}")]
    NotImportable {
        /// The device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// The volume of an import that has not ended: a write to it would belong to a disk that is not a group yet.
    #[error("the import of {device} to volume {volume} is not finished: attach the device and restart the daemon")]
    ImportPending {
        /// The device.
        device: String,
        /// Name or number of the volume.
        volume: String,
    },
    /// No volume has this number.
    #[error("the pool has no volume {0}")]
    NoVolume(VolumeId),
    /// No snapshot has this number.
    #[error("the pool has no snapshot {0}")]
    NoSnapshot(VolumeId),
    /// No group has this number, or it is not in service.
    #[error("group {0} is not in service")]
    NoGroup(GroupNo),
    /// No other group takes slices.
    #[error("group {0} is the last one that takes slices: add a group first")]
    LastGroup(GroupNo),
    /// The other groups have no room for the slices of a group.
    #[error(
        "group {group} holds {needed_bytes} bytes, and the other groups have {free_bytes} bytes free: add a group, or \
         free {} bytes", needed_bytes - free_bytes
    )]
    NoRoomToDrain {
        /// The group.
        group: GroupNo,
        /// Bytes of its slices.
        needed_bytes: u64,
        /// Free bytes of the other groups.
        free_bytes: u64,
    },
    /// No slot is free.
    #[error("the pool is full: add a group, or free slices")]
    Full,
    /// A device reports an error where its data is needed.
    #[error("{device}: {error}")]
    Disk {
        /// The device.
        device: String,
        /// The device's error.
        error: DiskError,
    },
}

fn describe_sides(sides: &[Vec<String>]) -> String {
    let describe = |devices: &Vec<String>| match &devices[..] {
        [device] => format!("{device} alone"),
        devices => format!("{} together", devices.join(", ")),
    };
    sides.iter().map(describe).collect::<Vec<_>>().join("; ")
}

impl PoolError {
    /// The error as a volume's client sees it.
    pub(crate) fn into_disk_error(self) -> DiskError {
        match self {
            PoolError::Full => DiskError::NoSpace,
            PoolError::NoVolume(_) => DiskError::Gone,
            PoolError::Disk { error: DiskError::NoSpace, device } => {
                DiskError::Io(format!("{device}: the storage below is full"))
            }
            other => DiskError::Io(other.to_string()),
        }
    }
}
