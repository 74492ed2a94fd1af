//! What can go wrong with a store, said so that a person can act on it.

use format_version::NewerFormat;
use seam::DiskError;

use crate::record::Position;

/// Why the store refuses or fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No segment is free; nothing of the request was written.
    #[error("the flash log is full: destage what is oldest in it, then try again")]
    Full,
    /// No member is left that could take writes; what was being written may or may not be found by the next opening.
    #[error(
        "no flash device is left in service ({0}): nothing more is acknowledged; replace the devices and open the store again"
    )]
    Failed(String),
    /// The batch lies on every device in service, and the owner has not noted that others are out of service: nothing that relies on fewer
    /// copies is acknowledged before it has.
    #[error(
        "a flash device was taken out of service, and that could not be noted ({why}): flushes are answered again when it is; look after \
         the state directory"
    )]
    Unnoted {
        /// Why not.
        why: String,
        /// Where the records lie.
        positions: Vec<Position>,
    },
    /// No copy of a block is good.
    #[error("block {block} of volume {incarnation:016x} has no good copy on flash: its newest content is lost")]
    Lost {
        /// The volume.
        incarnation: u64,
        /// The block.
        block: u64,
    },
    /// A device that is to be formatted holds something.
    #[error("{device} holds {what}: give another device, or --force to destroy that")]
    NotEmpty {
        /// The device.
        device: String,
        /// What was found.
        what: String,
    },
    /// A device is too small.
    #[error("{device} is too small: {size_bytes} bytes, at least {least_bytes} are needed")]
    TooSmall {
        /// The device.
        device: String,
        /// Its size.
        size_bytes: u64,
        /// What is needed.
        least_bytes: u64,
    },
    /// The number of devices is not one that a store can have.
    #[error("{0} flash devices were given: a store has one to eight")]
    DeviceCount(usize),
    /// A device is no member of any store.
    #[error("{device} holds no flash store ({why}): format it, or name the right device")]
    NoStore {
        /// The device.
        device: String,
        /// What is wrong with it.
        why: String,
    },
    /// A device holds a store of a later format; it is left as it is.
    #[error("{device} holds a flash store that was {newer}; start that version: this one changes nothing on it")]
    Newer {
        /// The device.
        device: String,
        /// Its format.
        newer: NewerFormat,
    },
    /// The devices do not belong together.
    #[error("{device} belongs to another flash store: name the devices of one store")]
    OtherStore {
        /// The device that differs from the first.
        device: String,
    },
    /// Two members were each written without the other.
    #[error(
        "the flash devices were used apart from each other and hold different data: open the store with the one whose data is to be \
         kept, format the other, then add it"
    )]
    Diverged,
    /// A member in service was not given.
    #[error(
        "flash device number {member} of the store is missing and was in service when the store was last used: attach it, or accept \
         that it is missing (accept_missing), which takes it out for good: what it holds counts as old from then on"
    )]
    MemberMissing {
        /// Its number in the store, counted from 0.
        member: u32,
    },
    /// Who was last in service is missing, and what is here was taken out before.
    #[error(
        "the flash devices that are here were taken out of service earlier (they know generation {generation} of the store, which has \
         come to {seen}): what they hold is old, and newer data is on the one that is missing; attach that one"
    )]
    Outdated {
        /// What they know.
        generation: u64,
        /// What the owner has seen.
        seen: u64,
    },
    /// The log ends before the place that its owner had seen.
    #[error(
        "the flash devices hold an older copy of their log (it ends at batch {sequence}, and batch {seen} was there when the store was closed): \
         attach the devices that were in use, and not a copy that was taken before"
    )]
    Behind {
        /// The sequence of the batch that would come next.
        sequence: u64,
        /// The one that the owner has seen come next.
        seen: u64,
    },
    /// A change of the members that cannot be made; says why.
    #[error("{0}")]
    Refused(String),
    /// A change of the members was called off.
    #[error("it was called off: the members of the flash store are the same as before")]
    Cancelled,
    /// None of the devices carries the log.
    #[error("none of the flash devices that are here carries the log: attach those that do, what is dirty is there")]
    NoLog,
    /// The log is broken where it cannot be.
    #[error(
        "the flash log is damaged: batch {sequence} cannot be read from any device, and later ones exist; opening would lose what was \
         acknowledged. Attach a missing mirror, or rescue what is left"
    )]
    Damaged {
        /// The first batch that is missing.
        sequence: u64,
    },
    /// A device cannot be read where it must be.
    #[error("{device}: {error}")]
    Disk {
        /// The device.
        device: String,
        /// What it said.
        error: DiskError,
    },
}
