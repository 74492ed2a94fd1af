//! Errors of the store, with texts that tell an administrator what to do.

use format_version::NewerFormat;
use seam::DiskError;

use crate::number::{BlockNo, MemberNo, MembershipGeneration, Sequence, VolumeId};
use crate::record::Position;

/// Reasons for a refusal or a failure of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No segment is free. No part of the request was written.
    #[error("the flash log is full: destage its oldest data, then try again")]
    Full,
    /// No log member is left in service. The next opening may or may not find the batch that was in flight.
    #[error(
        "no flash device with the log is left in service ({0}): flushes fail; replace the devices and open the store \
         again"
    )]
    Failed(String),
    /// The store was closed.
    #[error("the flash store is closed: start the daemon again to use it")]
    Closed,
    /// No log member that has the whole map of clean pages is left in service.
    #[error(
        "no flash device with the whole map of clean pages is left in service: the map starts empty, and flash caches \
         pages anew"
    )]
    JournalLost,
    /// A half of the map journal cannot hold a checkpoint of the map.
    #[error("the map of clean pages is too large for its journal: the map starts empty, and flash caches pages anew")]
    JournalTooSmall,
    /// The map of clean pages is unusable, for the reason given.
    #[error("the map of clean pages is unusable until the store is opened again ({0})")]
    MapUnusable(String),
    /// The batch is durable on every device in service, but the owner has not recorded that other devices are out of
    /// service. Until then the store acknowledges nothing that relies on fewer copies.
    #[error(
        "a flash device was taken out of service, and that could not be recorded ({reason}): flushes wait until it is \
         recorded; check the state directory"
    )]
    Unrecorded {
        /// The reason why it was not recorded.
        reason: String,
        /// The positions of the request's records.
        positions: Vec<Position>,
    },
    /// No copy of a block is intact.
    #[error("block {block} of volume {volume_id:016x} has no good copy on flash: its newest content is lost")]
    Lost {
        /// The volume.
        volume_id: VolumeId,
        /// The block.
        block: BlockNo,
    },
    /// A device that is to be formatted is not empty.
    #[error("{device} holds {content}: specify another device, or --force to destroy that")]
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
    /// The number of devices is outside the range that a store can have.
    #[error("{0} flash devices were given: a store has one to eight")]
    DeviceCount(usize),
    /// A device is not a member of any store.
    #[error("{device} holds no flash store ({reason}): format it, or specify the right device")]
    NoStore {
        /// The device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A device holds a store of a later format. It is left unchanged.
    #[error("{device} holds a flash store that was {newer}; start that version: this one changes nothing on it")]
    Newer {
        /// The device.
        device: String,
        /// Its format.
        newer: NewerFormat,
    },
    /// Two devices are the same member of a store: one is a copy of the other.
    #[error("{device} is a copy of another device of the flash store: name only the one that was in use last")]
    DuplicateMember {
        /// The second one of the two.
        device: String,
    },
    /// The devices belong to different stores.
    #[error("{device} belongs to another flash store: specify the devices of one store")]
    OtherStore {
        /// The device that differs from the first.
        device: String,
    },
    /// Two members were each written without the other: their logs have diverged.
    #[error(
        "the mirrors have diverged (each was written without the other): open the store with the one whose data is to \
         be kept, format the other, then add it"
    )]
    Diverged,
    /// A member in service is missing.
    #[error(
        "flash device number {member} of the store is missing and was in service when the store was last used: attach \
         it, or accept its loss (accept_missing), which removes it permanently: its data is outdated from then on"
    )]
    MemberMissing {
        /// Its number in the store, counted from 0.
        member: MemberNo,
    },
    /// The members that were in service last are missing, and the present ones were taken out of service earlier.
    #[error(
        "the present flash devices were taken out of service earlier (their generation is {generation}, the \
         store's is {recorded}): their data is outdated, and newer data is on the missing device; attach that device"
    )]
    Outdated {
        /// The membership generation on these devices.
        generation: MembershipGeneration,
        /// The generation that the owner has recorded.
        recorded: MembershipGeneration,
    },
    /// The log ends before the sequence number that its owner has recorded.
    #[error(
        "the flash devices hold an older copy of their log (its next batch would be {sequence}, and it was \
         {recorded} when the store was closed): attach the devices that were in use, and not a copy that was taken \
         before"
    )]
    Behind {
        /// The sequence number that the next batch would get.
        sequence: Sequence,
        /// The sequence number of the next batch that the owner has recorded.
        recorded: Sequence,
    },
    /// A change of the members is not possible; the text says why.
    #[error("{0}")]
    Refused(String),
    /// A change of the members was cancelled.
    #[error("cancelled: the members of the flash store are the same as before")]
    Cancelled,
    /// No present device carries the log.
    #[error(
        "none of the present flash devices carries the log: attach the devices with the log, which holds dirty \
         data"
    )]
    NoLog,
    /// The log is damaged before its end.
    #[error(
        "the flash log is damaged: batch {sequence} cannot be read from any device, and later batches exist; opening \
         would lose acknowledged data. Attach a missing mirror, or rescue the remaining data"
    )]
    Damaged {
        /// The first batch that is missing.
        sequence: Sequence,
    },
    /// A device reports an error where its data is needed.
    #[error("{device}: {error}")]
    Disk {
        /// The device.
        device: String,
        /// The device's error.
        error: DiskError,
    },
}
