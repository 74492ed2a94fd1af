//! Why something is not served: every refusal by which the state directory, the flash log and the backing are kept in agreement.
//!
//! The rule behind all of them: what is served or written to a backing is proven to belong to this volume, this backing and this moment by
//! records on both sides. Where the proof is missing the volume is refused, nothing is written to its backing, and the choices are named.

use std::fmt;
use std::path::PathBuf;

use format_version::NewerFormat;
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

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
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
    /// A device holds a store of a later format.
    StoreNewer {
        /// The device.
        device: String,
        /// Its format.
        newer: NewerFormat,
    },
    /// A killed daemon of a newer version has left a file in memory, which may hold content of the volume.
    MemoryNewer {
        /// The volume.
        name: String,
        /// The file.
        file: PathBuf,
        /// Its format.
        newer: NewerFormat,
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
        /// The start of that directory which used it last.
        epoch: u64,
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

/// A flash store of another state directory, as its superblocks named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenStore {
    /// The directory that owns it, as 32 hexadecimal digits.
    pub owner: String,
    /// The start of that directory which used it last.
    pub epoch: u64,
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
            Some(bytes) => write!(f, "{} KiB of dirty data of volume {}", bytes.div_ceil(1024), self.volume)?,
            None => write!(f, "an unknown amount of dirty data of volume {}", self.volume)?,
        }
        write!(f, " (data {}", self.incarnation)?;
        match &self.store {
            Some(store) => write!(f, ", flash store {store})"),
            None => write!(f, ")"),
        }
    }
}

/// Gives each variant its code, and lists the codes: a variant without one does not compile.
macro_rules! codes {
    ($($variant:ident => $code:expr,)+) => {
        impl Refusal {
            /// The codes of all refusals, in the order of the table in `docs/admin/refusals.md`.
            pub const CODES: &[&str] = &[$($code),+];

            /// Names the refusal, for programs and for the table in `docs/admin/refusals.md`.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Refusal::$variant { .. } => $code,)+
                }
            }
        }
    };
}

codes! {
    StoreOlder => "store-older",
    DeviceOlder => "device-older",
    StoreNewer => "store-newer",
    MemoryNewer => "memory-newer",
    StateOlder => "state-older",
    StoreForeign => "store-foreign",
    Unclaimed => "data-unclaimed",
    BackingChanged => "backing-changed",
    BackingTaken => "backing-taken",
    DirtyElsewhere => "dirty-elsewhere",
    LogUnexpected => "log-unexpected",
    ContentDiffers => "content-differs",
    ContentUnproven => "content-unproven",
    BackingShrank => BACKING_SHRANK,
}

impl std::error::Error for Refusal {}

/// What was found and where, then the choices. A command is complete as it stands, and a punctuation mark or the end of
/// the text ends it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::StoreOlder { store, epoch, known } => write!(
                f,
                "the devices hold an older copy of flash store {store}: they were last used at start {epoch} of this \
                 installation, the store at start {known}. Attach the devices that were in use then; or, to give \
                 up what these hold, make them empty (blkdiscard -z for a device, rm for a file)"
            ),
            Refusal::DeviceOlder { device, store, epoch, known } => write!(
                f,
                "flash device {device} holds an older copy of flash store {store}: it was last used at start {epoch} of \
                 this installation, the store at start {known}. Attach the device that was in use then; or, to go on \
                 without it, make it empty (blkdiscard -z for a device, rm for a file) and name the others alone in \
                 [flash], with allow_single_copy = true where that is one; then: hotset flash add {device}"
            ),
            Refusal::StoreNewer { device, newer } => write!(
                f,
                "flash device {device} holds a flash store that was {newer}. Start that version; or, to give up what the \
                 store holds, make its devices empty (blkdiscard -z for a device, rm for a file)"
            ),
            Refusal::MemoryNewer { name, file, newer } => write!(
                f,
                "it was not cleanly stopped, and {}, which may hold what its clients were told is written, was {newer}. \
                 Start that version and stop it, then this one; or, accepting that this data is lost: hotset volume \
                 adopt {name}",
                file.display()
            ),
            Refusal::StateOlder { store, epoch, known } if epoch == known => write!(
                f,
                "the state directory is a copy of another one: flash store {store} was used at start {epoch} of this \
                 installation with the other one. Put the state directory back that was used last; or rebuild its \
                 records from the flash devices: hotset state rebuild"
            ),
            Refusal::StateOlder { store, epoch, known } => write!(
                f,
                "the state directory is an older copy: flash store {store} was last used at start {epoch} of this \
                 installation, and the directory knows only of start {known}. Put the newest state directory back; or \
                 rebuild its records from the flash devices: hotset state rebuild"
            ),
            Refusal::StoreForeign { store, owner, .. } => write!(
                f,
                "flash store {store} holds dirty data and belongs to state directory {owner}, not to the one in use: \
                 either that directory was lost, or the devices come from another machine. Put it back; or rebuild its \
                 records from the flash devices: hotset state rebuild; or, to give up the dirty data, make the devices \
                 empty (blkdiscard -z for a device, rm for a file). `hotset flash check` lists that data"
            ),
            Refusal::Unclaimed { name, store } => write!(
                f,
                "the state directory knows neither this volume nor the owners of dirty data in flash store {store}: \
                 that data may be this volume's. Rebuild the records from the flash devices: hotset state rebuild; or, \
                 if none of that data is this volume's: hotset volume adopt {name} --give-up {store}"
            ),
            Refusal::BackingChanged { name, known, found, clean, loss } => {
                write!(f, "its backing is another one than before (was {known}, is {found})")?;
                if !clean {
                    write!(f, ", and the old one was not cleanly stopped")?;
                }
                write!(
                    f,
                    ". Put the old one back; or give this one another name; or, if this one holds the volume's data \
                     now: hotset volume adopt {name}"
                )?;
                match loss {
                    None => Ok(()),
                    Some(loss) => write!(f, " --give-up {}, which gives up {loss}", loss.incarnation),
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
                "flushed data of this volume may lie in the flash log alone, and that log is not in use: {why}. Bring \
                 the log's devices back and start again; or, to go on without that data: hotset volume adopt {name} \
                 --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::LogUnexpected { name, loss } => write!(
                f,
                "the flash log holds dirty data of this volume, and by the state directory its backing has everything: \
                 one of the two is an older copy. If the devices or the state directory were restored from a copy, put \
                 the newest back and start again; or, to keep what the backing has: hotset volume adopt {name} \
                 --give-up {}, which gives up {loss}",
                loss.incarnation
            ),
            Refusal::ContentDiffers { name, missing, loss } => write!(
                f,
                "its backing was changed while dirty data waited for it: {missing} of the blocks that were written \
                 there last hold something else. If the disk was rolled back, restored or exchanged, put back what was \
                 there; or, to keep what the backing has now: hotset volume adopt {name} --give-up {}, which gives up \
                 {loss}",
                loss.incarnation
            ),
            Refusal::ContentUnproven { name, identity, loss } => write!(
                f,
                "dirty data waits for its backing ({identity}), and nothing proves that this is the same disk with the \
                 same content: it is known by its place alone, or the flash store has lost the checksums of what was \
                 written there. If it is: hotset volume adopt {name}, which writes that data to it. If it is not, \
                 attach the right one; or, to keep what this disk has: hotset volume adopt {name} --give-up {}, which \
                 gives up {loss}",
                loss.incarnation
            ),
            Refusal::BackingShrank { name, known_bytes, found_bytes, past_end_bytes } => write!(
                f,
                "its backing has {found_bytes} bytes and had {known_bytes}: {past_end_bytes} bytes of dirty data lie \
                 past its end. Give it its size back; or, to give that data up: hotset volume resize {name} \
                 --discard-dirty"
            ),
        }
    }
}
