//! Refusals: reasons why a volume or a flash store is not served. They keep the state directory, the flash log and the
//! backing in agreement.
//!
//! All refusals follow one rule. Records on both sides must prove that data belongs to this volume, this backing
//! and this point in time before it is served or written to a backing. Without the proof the volume is refused, its
//! backing is not written, and the refusal names the choices.

use std::fmt;
use std::path::{Path, PathBuf};

use format_version::NewerFormat;
use serde::{Deserialize, Serialize};

use super::content::{CopyVerdict, MissingProof};

/// A deliberate fault of the checks, by which a test proves that torture detects it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No fault.
    #[default]
    None,
    /// Any store is accepted as the one used last, with any record in it.
    AnyStore,
    /// A missing or older state directory is trusted.
    AnyState,
    /// A backing is identified by its address alone.
    AnyContent,
    /// Clean pages are trusted although the volume was written without their store.
    StalePages,
    /// Dirty data past the end of a shrunk backing is dropped.
    PastEnd,
    /// Two volumes may lie on one disk.
    SharedDisk,
    /// Adoption gives up dirty data that was not named.
    AdoptUnnamed,
    /// Any backing counts as a current copy of the one that the volume had before.
    AnyCopy,
    /// The possible loss of unflushed writes is not reported to clients.
    UnreportedLoss,
}

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
}

/// Codes of refusals of volumes without a record.
const DATA_UNCLAIMED: &str = "data-unclaimed";
const FLASH_ABSENT: &str = "flash-absent";
/// Code of the refusal of a volume whose backing lacks data that another host may have.
pub const UNDESTAGED_ELSEWHERE: &str = "undestaged-elsewhere";

/// The configuration in the commands of a text that does not know its path.
pub(crate) const UNKNOWN_CONFIG: &str = "FILE";

/// Code of [`Refusal::BackingShrank`], to which a resize is the answer.
pub const BACKING_SHRANK: &str = "backing-shrank";

/// Code of [`Refusal::ContentUnproven`], whose text has the sizes of a backing that has shrunk, too.
const CONTENT_UNPROVEN: &str = "content-unproven";

/// Code of [`Refusal::BackingHung`], which is lifted without an administrator's choice.
pub const BACKING_HUNG: &str = "backing-hung";

/// Why a flash store is not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnusedStore {
    /// The reason as text, with its remedy.
    pub reason: String,
    /// A device of the store is missing, and by the records a present one has the whole log: no data is lost.
    pub has_whole_log: bool,
}

/// Reason why a store or a volume is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The store is an older copy of the one used last.
    StoreOlder {
        /// The store.
        store: String,
        /// Epoch that the store names.
        epoch: u64,
        /// Epoch of its last opening.
        known: u64,
    },
    /// One device of the store is an older copy.
    DeviceOlder {
        /// The device.
        device: String,
        /// The store.
        store: String,
        /// Epoch that the device names.
        epoch: u64,
        /// Epoch of the store's last opening.
        known: u64,
    },
    /// A device holds a store of a later format.
    StoreNewer {
        /// The device.
        device: String,
        /// Its format.
        newer: NewerFormat,
    },
    /// A killed daemon of a newer version has left persisted memory that may hold content of the volume.
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
        /// The store that proves it.
        store: String,
        /// Epoch that the store names.
        epoch: u64,
        /// Epoch that the state directory knows.
        known: u64,
    },
    /// The store belongs to another state directory, or to a lost one, and holds data.
    StoreForeign {
        /// The store.
        store: String,
        /// Identity of the directory that the store names as its owner.
        owner: String,
        /// The last start of that directory that used the store.
        epoch: u64,
        /// Identity of the directory in use.
        own: String,
        /// Path of the directory in use, if it is given.
        directory: Option<PathBuf>,
    },
    /// A flash store holds data of volumes unknown to the state directory, and this volume is new to the directory.
    Unclaimed {
        /// The volume.
        name: String,
        /// The store.
        store: String,
    },
    /// Configured flash devices cannot be read, and the state directory knows neither the volume nor any flash store.
    FlashAbsent {
        /// The volume.
        name: String,
        /// The unread devices, each with its fault.
        devices: String,
    },
    /// The volume had another backing before: the present one is a clone, an older snapshot or another disk.
    BackingChanged {
        /// The volume.
        name: String,
        /// The backing served under that name before: path if it is known, identity, and the volume that has it now.
        known: String,
        /// The present backing: path and identity.
        found: String,
        /// True if the old backing was cleanly stopped.
        clean: bool,
        /// Dirty data that the old backing lacks.
        loss: Option<Box<Loss>>,
        /// Whether the new backing is a copy of the old one, which can take that data.
        copy: CopyVerdict,
    },
    /// The backing belongs to a volume that is in service under another name.
    BackingTaken {
        /// The volume in service.
        other: String,
    },
    /// Data of the volume may lie in a flash log that is not in use.
    DirtyElsewhere {
        /// The volume.
        name: String,
        /// Reason why that log is not in use.
        unused: UnusedStore,
        /// Dirty data that is given up by continuing without the log.
        loss: Box<Loss>,
    },
    /// The flash log holds data of the volume, although the state directory excludes it.
    LogUnexpected {
        /// The volume.
        name: String,
        /// Dirty data in that log.
        loss: Box<Loss>,
    },
    /// The backing has changed since dirty data for it was logged.
    ContentDiffers {
        /// The volume.
        name: String,
        /// Number of blocks destaged last whose content has changed.
        changed_blocks: u64,
        /// The waiting dirty data.
        loss: Box<Loss>,
    },
    /// Dirty data waits for a backing that another process may have written to since.
    OwnerChanged {
        /// The volume.
        name: String,
        /// Identity of the backing.
        identity: String,
        /// The trace of the other process, as a clause.
        reason: String,
        /// The waiting dirty data.
        loss: Box<Loss>,
    },
    /// The log of another host may have flushed writes that the backing lacks.
    UndestagedElsewhere {
        /// The volume.
        name: String,
        /// The backing.
        backing: String,
        /// Name of the writes.
        data: String,
        /// The other host.
        host: String,
    },
    /// Dirty data waits for a backing that is not proven to be the same disk.
    ContentUnproven {
        /// The volume.
        name: String,
        /// Identity of the backing.
        identity: String,
        /// The evidence that is missing.
        missing: MissingProof,
        /// The change of size, if the backing has also shrunk.
        shrink: Option<Shrink>,
        /// The waiting dirty data.
        loss: Box<Loss>,
    },
    /// The backing has shrunk, and dirty data lies past its end.
    BackingShrank {
        /// The volume.
        name: String,
        /// The change of size.
        shrink: Shrink,
        /// True if the backing is proven to be the same disk. If not, the administrator has adopted it.
        is_proven: bool,
    },
    /// The backing has grown, and its last block, which was partial, is dirty.
    BackingGrew {
        /// The volume.
        name: String,
        /// Size at the last service.
        known_bytes: u64,
        /// Present size.
        found_bytes: u64,
        /// The waiting dirty data.
        loss: Box<Loss>,
    },
    /// The backing does not answer: its file system or device hangs.
    BackingHung {
        /// The backing, as configured.
        backing: String,
    },
}

/// A backing that is smaller than when its volume was last served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// Size at the last service.
    pub known_bytes: u64,
    /// Present size.
    pub found_bytes: u64,
    /// Dirty bytes past the present end.
    pub past_end_bytes: u64,
}

impl fmt::Display for Shrink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shrink { known_bytes, found_bytes, past_end_bytes } = self;
        write!(
            f,
            "has {found_bytes} bytes and had {known_bytes}: {past_end_bytes} bytes of dirty data lie past its end"
        )
    }
}

/// Dirty data that a choice would give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Identifies the data: the volume ID, 16 hexadecimal digits.
    pub volume_id: String,
    /// The volume's name at the last service.
    pub volume: String,
    /// The flash store that may hold the data.
    pub store: Option<String>,
    /// Size of the data, if it can be counted.
    pub bytes: Option<u64>,
}

/// A flash store of another state directory, as described by its superblocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenStore {
    /// Identity of the owning directory, 32 hexadecimal digits.
    pub owner: String,
    /// The last start of that directory that used the store.
    pub epoch: u64,
}

/// Evidence that a state directory is an older copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderThan {
    /// The store that proves it.
    pub store: String,
    /// The start that the store names.
    pub epoch: u64,
    /// The last start that used the store, as known to the directory.
    pub known: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{} KiB of dirty data of volume {}", bytes.div_ceil(1024), self.volume)?,
            None => write!(f, "an unknown amount of dirty data of volume {}", self.volume)?,
        }
        write!(f, " (data {}", self.volume_id)?;
        match &self.store {
            Some(store) => write!(f, ", flash store {store})"),
            None => write!(f, ")"),
        }
    }
}

/// Assigns a code to each variant and lists the codes; a variant without a code does not compile.
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
    Unclaimed => DATA_UNCLAIMED,
    FlashAbsent => FLASH_ABSENT,
    BackingChanged => "backing-changed",
    BackingTaken => "backing-taken",
    DirtyElsewhere => "dirty-elsewhere",
    LogUnexpected => "log-unexpected",
    ContentDiffers => "content-differs",
    OwnerChanged => "owner-changed",
    UndestagedElsewhere => UNDESTAGED_ELSEWHERE,
    ContentUnproven => CONTENT_UNPROVEN,
    BackingShrank => BACKING_SHRANK,
    BackingGrew => "backing-grew",
    BackingHung => BACKING_HUNG,
}

/// True if a new volume can be refused with this code, since no record of the state directory speaks for it.
pub fn is_of_new_volume(code: &str) -> bool {
    matches!(code, DATA_UNCLAIMED | FLASH_ABSENT | UNDESTAGED_ELSEWHERE)
}

/// True if the text of a refusal with this code says how much dirty data lies past the end of a shrunk backing.
pub fn may_have_shrunk(code: &str) -> bool {
    matches!(code, CONTENT_UNPROVEN | BACKING_SHRANK)
}

/// True if data of a volume that is refused with this code may be in a flash log or in persisted memory without a mark
/// in the volume's record. With the other codes, the records show all data of the volume that its backing lacks.
pub fn may_lack_marks(code: &str) -> bool {
    !matches!(code, "backing-changed" | "backing-taken" | BACKING_HUNG)
}

impl Refusal {
    /// The refusal with the path of the state directory in use, where its text names that directory.
    pub fn in_directory(self, path: &Path) -> Refusal {
        match self {
            Refusal::StoreForeign { store, owner, epoch, own, .. } => {
                Refusal::StoreForeign { store, owner, epoch, own, directory: Some(path.to_owned()) }
            }
            refusal => refusal,
        }
    }
}

impl std::error::Error for Refusal {}

/// The text, with [`UNKNOWN_CONFIG`] in its commands.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &UNKNOWN_CONFIG)
    }
}

/// A refusal by a daemon with the configuration in a known file.
struct WithConfig<'a>(&'a Refusal, &'a Path);

impl fmt::Display for WithConfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, &self.1.display())
    }
}

impl Refusal {
    /// The text, with the path of the configuration in its commands.
    pub fn text(&self, config: &Path) -> String {
        WithConfig(self, config).to_string()
    }

    /// The text has the finding, then the choices. Each command in it is complete, and is followed by a punctuation
    /// mark or the end of the text. `config` is the configuration file.
    fn write(&self, f: &mut fmt::Formatter<'_>, config: &dyn fmt::Display) -> fmt::Result {
        match self {
            Refusal::StoreOlder { store, epoch, known } => write!(
                f,
                "the devices hold an older copy of flash store {store}: they were last used at start {epoch} of this \
                 installation, the store at start {known}. Attach the devices that were used at start {known}; or, to \
                 discard the data on these devices, erase them (blkdiscard -z for a device, rm and touch for a file)"
            ),
            Refusal::DeviceOlder { device, store, epoch, known } => write!(
                f,
                "flash device {device} holds an older copy of flash store {store}: it was last used at start {epoch} \
                 of this installation, the store at start {known}. Attach the device that was used at start {known}; \
                 or, to continue without it, erase it (blkdiscard -z for a device, rm and touch for a file) and name \
                 only the other devices in [flash], with allow_single_copy = true if one is left; then: hotset flash \
                 add {device}"
            ),
            Refusal::StoreNewer { device, newer } => write!(
                f,
                "flash device {device} holds a flash store that was {newer}. Start that version; or, to discard the \
                 data of the store, erase its devices (blkdiscard -z for a device, rm and touch for a file)"
            ),
            Refusal::MemoryNewer { name, file, newer } => write!(
                f,
                "it was not cleanly stopped, and {}, which may hold acknowledged writes of it, was {newer}. Start that \
                 version and stop it, then start this version; or, to accept the loss of these writes: hotset volume \
                 adopt {name}",
                file.display()
            ),
            Refusal::StateOlder { store, epoch, known } if epoch == known => write!(
                f,
                "the state directory is a copy of another one: flash store {store} was used at start {epoch} of this \
                 installation with the other one. Restore the state directory that was used last; or stop the daemon \
                 and rebuild the records from the flash devices: hotset state rebuild --config {config}"
            ),
            Refusal::StateOlder { store, epoch, known } => write!(
                f,
                "the state directory is an older copy: flash store {store} was last used at start {epoch} of this \
                 installation, and the directory has records only up to start {known}. Restore the newest state \
                 directory; or stop the daemon and rebuild the records from the flash devices: hotset state rebuild \
                 --config {config}"
            ),
            Refusal::StoreForeign { store, owner, own, directory, .. } => {
                write!(f, "flash store {store} holds dirty data of state directory {owner}. The daemon uses state ")?;
                write!(f, "directory {own}")?;
                if let Some(path) = directory {
                    write!(f, ", in directory {}", path.display())?;
                }
                write!(
                    f,
                    ". Either directory {owner} was lost, or the devices come from another machine. Restore directory \
                     {owner}; or stop the daemon and rebuild the records from the flash devices: hotset state rebuild \
                     --config {config}; or, to discard the dirty data, erase the devices (blkdiscard -z for a device, \
                     rm and touch for a file). `hotset flash check` lists that data"
                )
            }
            Refusal::Unclaimed { name, store } => write!(
                f,
                "the state directory has no record of this volume, nor of the owners of dirty data in flash store \
                 {store}: that data may belong to this volume. Stop the daemon and rebuild the records from the flash \
                 devices: hotset state rebuild --config {config}; or, if none of that data belongs to this volume: \
                 hotset volume adopt {name} --give-up {store}"
            ),
            Refusal::FlashAbsent { name, devices } => write!(
                f,
                "the state directory has no record of this volume, nor of any flash store, and a flash device cannot \
                 be read that may hold flushed data of this volume ({devices}). Attach the device, correct its path in \
                 [flash] or restore a lost state directory, and restart; with an empty device in its place, or without \
                 [flash], the volume is served without that data. If the device never had data of this volume: hotset \
                 volume adopt {name}"
            ),
            Refusal::BackingChanged { name, known, found, clean, loss, copy } => {
                write!(f, "its backing is not the one that it had at the last start: it was {known} and is {found}")?;
                if !clean {
                    write!(f, ", and the previous one was not cleanly stopped")?;
                }
                write!(f, ". Attach the previous backing; or give the new backing another volume name; or, ")?;
                let Some(loss) = loss else {
                    return write!(f, "if the new backing holds the volume's data: hotset volume adopt {name}");
                };
                if let CopyVerdict::Current(blocks) = copy {
                    write!(
                        f,
                        "if the new backing is a complete copy that was made after the last write to the previous one: \
                         hotset volume adopt {name}, which keeps the dirty data for it ({blocks} of the blocks destaged \
                         last were compared and have the same content"
                    )?;
                    if !clean {
                        write!(f, "; writes right before the end of the killed daemon cannot be compared")?;
                    }
                    write!(f, "); or, ")?;
                }
                write!(
                    f,
                    "to serve the new backing without the dirty data: hotset volume adopt {name} --give-up {}, which \
                     discards {loss}. ",
                    loss.volume_id
                )?;
                match copy {
                    CopyVerdict::Current(_) => {}
                    CopyVerdict::Differs(blocks) => write!(
                        f,
                        "The new backing is not a current copy of the previous one: {blocks} of the blocks destaged \
                         last have other content. "
                    )?,
                    CopyVerdict::Unproven => write!(
                        f,
                        "Nothing proves that the new backing is a current copy of the previous one, which could keep \
                         that data. "
                    )?,
                }
                write!(f, "`hotset flash rescue` extracts what is in the flash log")
            }
            Refusal::BackingTaken { other } => {
                write!(f, "its backing belongs to volume {other}, which is in service; give it a backing of its own")
            }
            // Giving up data that a present device has would be a needless loss, so that choice is not offered.
            Refusal::DirtyElsewhere { unused: UnusedStore { reason, has_whole_log: true }, .. } => write!(
                f,
                "the flash log may hold the only copy of flushed data of this volume, and that log is not in use: \
                 {reason}. Do either and restart: no data is lost"
            ),
            Refusal::DirtyElsewhere { name, unused: UnusedStore { reason, has_whole_log: false }, loss } => write!(
                f,
                "the flash log may hold the only copy of flushed data of this volume, and that log is not in use: \
                 {reason}. Reconnect the log's devices and restart; or, to continue without that data: hotset volume \
                 adopt {name} --give-up {}, which discards {loss}",
                loss.volume_id
            ),
            Refusal::LogUnexpected { name, loss } => write!(
                f,
                "the flash log holds dirty data of this volume, but by the records of the state directory its backing \
                 is complete: one of the two is an older copy. If the devices or the state directory were restored \
                 from a copy, restore the newest ones and restart; or, to keep the content of the backing: hotset \
                 volume adopt {name} --give-up {}, which discards {loss}",
                loss.volume_id
            ),
            Refusal::ContentDiffers { name, changed_blocks, loss } => write!(
                f,
                "its backing was changed while dirty data waited for it: {changed_blocks} of the blocks destaged last \
                 have other content. If the disk was rolled back, restored or replaced, restore the previous content; \
                 or, to keep the present content of the backing: hotset volume adopt {name} --give-up {}, which \
                 discards {loss}",
                loss.volume_id
            ),
            Refusal::OwnerChanged { name, identity, reason, loss } => write!(
                f,
                "dirty data waits for its backing ({identity}), and another client may have written there since: \
                 {reason}. The dirty data is older than such writes and would overwrite them. If another client has \
                 written, keep the content of the backing: hotset volume adopt {name} --give-up {}, which discards \
                 {loss}. If none has: hotset volume adopt {name}, which writes the dirty data to the backing",
                loss.volume_id
            ),
            Refusal::UndestagedElsewhere { name, backing, data, host } => write!(
                f,
                "its backing {backing} lacks flushed data that may be in the flash log of host {host} alone. \
                 Start that host's daemon, then move the volume from there with `hotset fleet move`: it is then served \
                 here. If that host is lost for good: hotset fleet take-over {name} --give-up {data}, which serves the \
                 volume without that data"
            ),
            Refusal::ContentUnproven { name, identity, missing, shrink, loss } => {
                write!(
                    f,
                    "dirty data waits for its backing ({identity}), and nothing proves that this is the same disk with \
                     the same content: {missing}. "
                )?;
                if let Some(shrink) = shrink {
                    write!(f, "The backing {shrink}. ")?;
                }
                match shrink.filter(|shrink| shrink.past_end_bytes > 0) {
                    None => write!(
                        f,
                        "If it is the same disk: hotset volume adopt {name}, which writes that data to it. If not, "
                    )?,
                    Some(_) => write!(
                        f,
                        "If it is the same disk, restore its size; or, to discard the data past its end and to write \
                         the other dirty data to it: hotset volume adopt {name} --discard-dirty. If not, "
                    )?,
                }
                write!(
                    f,
                    "attach the right disk; or, to keep the content of this disk: hotset volume adopt {name} --give-up \
                     {}, which discards {loss}",
                    loss.volume_id
                )
            }
            Refusal::BackingShrank { name, shrink, is_proven: true } => write!(
                f,
                "its backing {shrink}. Restore its size; or, to discard that data: hotset volume resize {name} \
                 --discard-dirty"
            ),
            // A resize does not accept a backing without proof.
            Refusal::BackingShrank { name, shrink, is_proven: false } => write!(
                f,
                "its backing {shrink}, and nothing proves that it is the same disk with the same content. Restore its \
                 size; or, if it is the same disk, to discard that data and to write the other dirty data to it: \
                 hotset volume adopt {name} --discard-dirty"
            ),
            Refusal::BackingGrew { name, known_bytes, found_bytes, loss } => write!(
                f,
                "its backing has {found_bytes} bytes and had {known_bytes}, which is not a multiple of 4096, and there \
                 is dirty data of the last block: it would overwrite content past the former end. Unless clients have \
                 written past that end, restore the former size, start, and let the served volume grow (hotset volume \
                 resize {name}); or, to keep the present \
                 content of the backing: hotset volume adopt {name} --give-up {}, which discards {loss}",
                loss.volume_id
            ),
            Refusal::BackingHung { backing } => write!(
                f,
                "its backing {backing} does not answer: its file system or device hangs. Check the file server, the \
                 connection to the disk and the kernel's messages (dmesg). The daemon retries automatically, and \
                 serves the volume when the backing answers"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuild_is_proposed_with_the_configuration_and_after_a_stop() {
        let [store, owner, own] = ["ab", "cd", "ef"].map(str::to_owned);
        let refusals = [
            Refusal::StateOlder { store: store.clone(), epoch: 2, known: 1 },
            Refusal::StateOlder { store: store.clone(), epoch: 2, known: 2 },
            Refusal::StoreForeign { store: store.clone(), owner, epoch: 2, own, directory: None },
            Refusal::Unclaimed { name: "v".to_owned(), store },
        ];
        for refusal in refusals {
            let text = refusal.text(Path::new("/etc/other.toml"));
            assert!(text.contains("hotset state rebuild --config /etc/other.toml"), "{text}");
            assert!(text.to_lowercase().contains("stop the daemon and rebuild the records"), "{text}");
            assert_eq!(refusal.to_string(), text.replace("/etc/other.toml", "FILE"));
        }
    }
}
