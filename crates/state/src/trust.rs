//! Why something is not served: every refusal by which the state directory, the flash log and the backing are kept in agreement.
//!
//! The rule behind all of them: what is served or written to a backing is proven to belong to this volume, this backing and this moment by
//! records on both sides. Where the proof is missing the volume is refused, nothing is written to its backing, and the choices are named.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rule that is broken on purpose, so that a test can show that torture notices.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// Any store is believed to be the one that was used last, and any record in it.
    AnyStore,
    /// A missing or older state directory is believed.
    AnyState,
    /// A backing is believed to be the volume's by its place.
    AnyContent,
    /// Clean pages are believed although the volume was written without their store.
    StalePages,
    /// Dirty data past the end of a backing that shrank is dropped.
    PastEnd,
    /// Two volumes may lie on one disk.
    SharedDisk,
    /// Adopting a backing gives up dirty data that was not named.
    AdoptUnnamed,
    /// Clients are not told that writes which they had not flushed may be lost.
    UntoldLoss,
}

/// Code of [`Refusal::BackingShrank`], to which a resize is the answer.
pub const BACKING_SHRANK: &str = "backing-shrank";

/// Why a store or a volume is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The store is an older copy of what was used last.
    StoreOlder {
        /// The store.
        store: String,
        /// The epoch that it names.
        epoch: u64,
        /// The epoch in which it was opened last.
        known: u64,
    },
    /// One device of the store is an older copy.
    DeviceOlder {
        /// The device.
        device: String,
        /// The store.
        store: String,
        /// The epoch that it names.
        epoch: u64,
        /// The epoch in which the store was opened last.
        known: u64,
    },
    /// The state directory is an older copy.
    StateOlder {
        /// The store that tells.
        store: String,
        /// The epoch that the store names.
        epoch: u64,
        /// The epoch that the state directory knows.
        known: u64,
    },
    /// The store belongs to another state directory, or to one that was lost, and holds data.
    StoreForeign {
        /// The store.
        store: String,
        /// The directory that it names.
        owner: String,
    },
    /// A flash store in sight holds data of volumes that the state directory does not know, and this volume is new to it.
    Unclaimed {
        /// The volume.
        name: String,
        /// The store.
        store: String,
    },
    /// The name had another backing before: a clone, an older snapshot, an exchanged disk.
    BackingChanged {
        /// The volume.
        name: String,
        /// What was served by that name.
        known: String,
        /// What is there now.
        found: String,
        /// The old one was cleanly stopped.
        clean: bool,
        /// What is given up by taking the new one.
        loss: Option<Box<Loss>>,
    },
    /// The backing belongs to a volume that is served under another name right now.
    BackingTaken {
        /// The volume that has it.
        other: String,
    },
    /// Data of the volume lies in a flash log that is not there.
    DirtyElsewhere {
        /// The volume.
        name: String,
        /// Why that log is not in use.
        why: String,
        /// What is given up by going on without.
        loss: Box<Loss>,
    },
    /// The flash log holds data of the volume, and by the state directory there can be none.
    LogUnexpected {
        /// The volume.
        name: String,
        /// What that log holds.
        loss: Box<Loss>,
    },
    /// The backing is not as the dirty data that waits for it left it.
    ContentDiffers {
        /// The volume.
        name: String,
        /// Blocks that were destaged last and are not there.
        missing: u64,
        /// What waits.
        loss: Box<Loss>,
    },
    /// Dirty data waits for a backing that cannot prove that it is the same disk.
    ContentUnproven {
        /// The volume.
        name: String,
        /// How the backing is known.
        identity: String,
        /// What waits.
        loss: Box<Loss>,
    },
    /// The backing is smaller than it was, and dirty data lies past its end.
    BackingShrank {
        /// The volume.
        name: String,
        /// Its size when it was served last.
        known_bytes: u64,
        /// Its size now.
        found_bytes: u64,
        /// Dirty bytes past the end.
        past_end_bytes: u64,
    },
}

/// Dirty data that a choice would give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The name of that data: the volume's incarnation, 16 hexadecimal digits.
    pub incarnation: String,
    /// The volume's name when it was served last.
    pub volume: String,
    /// The flash store that may hold it.
    pub store: Option<String>,
    /// Bytes of it, where they can be counted.
    pub bytes: Option<u64>,
}

/// How a state directory was found to be an older copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderThan {
    /// The store that told.
    pub store: String,
    /// The start that the store names.
    pub epoch: u64,
    /// The last start that the directory knew of it.
    pub known: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{} KiB of dirty data", bytes.div_ceil(1024))?,
            None => write!(f, "dirty data that its clients had flushed")?,
        }
        write!(f, " of volume {} (data {}", self.volume, self.incarnation)?;
        match &self.store {
            Some(store) => write!(f, ", flash store {store})"),
            None => write!(f, ")"),
        }
    }
}

impl Refusal {
    /// Names the refusal, for programs and for the table in `docs/refusals.md`.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::StoreOlder { .. } => "store-older",
            Refusal::DeviceOlder { .. } => "device-older",
            Refusal::StateOlder { .. } => "state-older",
            Refusal::StoreForeign { .. } => "store-foreign",
            Refusal::Unclaimed { .. } => "data-unclaimed",
            Refusal::BackingChanged { .. } => "backing-changed",
            Refusal::BackingTaken { .. } => "backing-taken",
            Refusal::DirtyElsewhere { .. } => "dirty-elsewhere",
            Refusal::LogUnexpected { .. } => "log-unexpected",
            Refusal::ContentDiffers { .. } => "content-differs",
            Refusal::ContentUnproven { .. } => "content-unproven",
            Refusal::BackingShrank { .. } => BACKING_SHRANK,
        }
    }
}

impl std::error::Error for Refusal {}

/// What was seen, why that is refused, and the choices.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::StoreOlder { store, epoch, known } => write!(
                f,
                "the devices hold an older copy of flash store {store} (of start {epoch} of this installation; it was used in start {known} since): \
                 attach the devices that were in use then; or, to use these anew without what they hold, make them empty \
                 (blkdiscard -z for a device, rm for a file)"
            ),
            Refusal::DeviceOlder { device, store, epoch, known } => write!(
                f,
                "flash device {device} holds an older copy of flash store {store} (of start {epoch} of this installation; the store was used in start \
                 {known}). Attach the device that was in use then; or, to go on without what it holds, make this one alone empty (blkdiscard -z for a \
                 device, rm for a file): the next start says how the store goes on without it, and `hotset flash add {device}` adds it anew"
            ),
            Refusal::StateOlder { store, epoch, known } => write!(
                f,
                "the state directory is an older copy: flash store {store} was used in start {epoch}, of which the directory knows nothing (it knows \
                 the store of start {known}). Put the newest state directory back; or make its records anew from the devices: \
                 hotset state rebuild"
            ),
            Refusal::StoreForeign { store, owner } => write!(
                f,
                "flash store {store} holds dirty data of another installation (state directory {owner}), or this one's state directory was lost. \
                 Put that state directory back; or make its records anew from the devices: hotset state rebuild; or, when nothing of that data is \
                 wanted, make the devices empty (blkdiscard -z for a device, rm for a file). `hotset flash check` shows what they hold"
            ),
            Refusal::Unclaimed { name, store } => write!(
                f,
                "it is new to the state directory, and flash store {store} holds data of volumes that the directory does not know: that may be data of \
                 this one. Make the records anew from the devices: hotset state rebuild; or, accepting that data in that store is none of this \
                 volume's, say so: hotset volume adopt {name} --give-up {store}"
            ),
            Refusal::BackingChanged { name, known, found, clean, loss } => {
                write!(f, "its backing is another one than before (was {known}, is {found})")?;
                if !clean {
                    write!(f, ", and the old one was not cleanly stopped")?;
                }
                write!(
                    f,
                    "; put the old one back, give this one another name, or, if this is really the volume's data now, say so: "
                )?;
                match loss {
                    None => write!(f, "hotset volume adopt {name}"),
                    Some(loss) => {
                        write!(f, "hotset volume adopt {name} --give-up {}, which gives up {loss}", loss.incarnation)
                    }
                }
            }
            Refusal::BackingTaken { other } => {
                write!(
                    f,
                    "its backing is that of volume {other}, which is served already; give it a backing of its own"
                )
            }
            Refusal::DirtyElsewhere { name, why, loss } => write!(
                f,
                "data that its clients had flushed may lie in the flash log alone, which is not in use: {why}. Bring its devices back and start again; or, \
                 accepting that this data is lost, say so: hotset volume adopt {name} --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::LogUnexpected { name, loss } => write!(
                f,
                "the flash log holds data of it, and by the state directory everything of it is on its backing: one of both is old. If devices or \
                 the state directory were restored from a copy, put the newest back and start again; or, keeping what the backing has, say so: \
                 hotset volume adopt {name} --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::ContentDiffers { name, missing, loss } => write!(
                f,
                "its backing is not as it was left: {missing} of the blocks that were written there last hold something else, and dirty data waits \
                 for it. If the disk was rolled back, restored or exchanged, put back what was there; or, keeping what the backing has now, say so: \
                 hotset volume adopt {name} --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::ContentUnproven { name, identity, loss } => write!(
                f,
                "dirty data waits for its backing ({identity}), and nothing shows that it is the same disk and as it was left: it is known by its \
                 place alone, or the flash store has lost what it knew of it. If it is, say so: hotset volume adopt {name}, which writes that data to it; if it is not, attach the right one; or, keeping \
                 what this disk has: hotset volume adopt {name} --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::BackingShrank { name, known_bytes, found_bytes, past_end_bytes } => write!(
                f,
                "its backing has {found_bytes} bytes and had {known_bytes}: {past_end_bytes} bytes of dirty data lie past its end. Give it its size \
                 back; or give that data up: hotset volume resize {name} --discard-dirty"
            ),
        }
    }
}
