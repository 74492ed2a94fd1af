//! What the state file holds, and its two directions: JSON with a version, read beside where it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use format_version::{NewerFormat, Release};
use serde::{Deserialize, Serialize};

use super::content::ContentRecord;
use super::fields::{hex, is_zero};
use super::store_record::StoreRecord;
use super::trust::{OlderThan, Sabotage, SeenStore};
use super::{StateError, UnitRecord};

/// The format that this version reads and writes.
pub const STATE_VERSION: u64 = 1;
/// Where a later format names the first release that reads it, as text (`1.4.0`).
const NEEDS: &str = "needs";

/// Everything that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Identity of the state directory, 32 hexadecimal digits, drawn once: flash stores name it as their owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Times that a daemon has started on this directory.
    pub generation: u64,
    /// A number drawn for the last start, 16 hexadecimal digits; 0 before the first start of a version that draws one.
    #[serde(default, with = "hex", skip_serializing_if = "is_zero")]
    pub life: u64,
    /// Grows whenever a volume comes, goes or becomes another: the copy on the flash devices with a greater one is newer than this.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u64,
    /// Every flash store that daemons on this directory have used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreRecord>,
    /// A store was found that a later state of this directory had used: this one is an older copy, and serves nothing until it is rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than: Option<OlderThan>,
    /// Flash stores that were seen to hold data of volumes which this directory does not know: volumes that are new to it are refused until that data is
    /// claimed or given up.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unclaimed: BTreeSet<String>,
    /// Of these, stores of another directory as they were seen last: an older copy is neither taken over nor rebuilt from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unclaimed_seen: BTreeMap<String, SeenStore>,
    /// Backings that were served while such data was unclaimed: a rebuild brings nothing of it back for them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub served_beside: BTreeSet<String>,
    /// What was written to each flash device, by the device's own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wear: BTreeMap<String, DeviceWear>,
    /// The flash devices, where they were changed by command since the file named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_devices: Option<FlashDevices>,
    /// Files in memory that daemons on this directory have had for what outlives them, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptRecord>,
    /// The machine's last start that a daemon saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootRecord>,
    /// Volumes that were ever served and not removed.
    pub volumes: Vec<VolumeRecord>,
    /// Names of volumes of the file that were removed by command, with the entry that each had then: it stays removed until the
    /// entry changes.
    pub removed: BTreeMap<String, String>,
    /// Who may use the HTTP interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenRecord>,
    /// What tells this daemon's LUNs from those of all others, 16 hexadecimal digits; 0 where nobody has asked yet.
    #[serde(default, with = "hex", skip_serializing_if = "is_zero")]
    pub host: u64,
    /// Numbers of LUNs that volumes have had: no other gets them unless the file says so.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub retired_luns: BTreeSet<u16>,
    /// Fields of a later version: kept as they are.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
    /// A rule that a test breaks on purpose.
    #[doc(hidden)]
    #[serde(skip)]
    pub sabotage: Sabotage,
}

/// A start of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRecord {
    /// What the kernel calls it.
    pub id: String,
    /// The first generation of it.
    pub generation: u64,
}

/// Acknowledged writes that no flush had covered, and that ended with a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRecord {
    /// The generation in which clients are told.
    pub generation: u64,
    /// The machine was started anew since: its own clients ended too.
    pub remote_clients: bool,
}

/// What is kept of a token: not the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Its name.
    pub name: String,
    /// What it permits.
    pub role: messages::Role,
    /// SHA-256 of it, 64 hexadecimal digits.
    pub hash: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
}

/// A file in memory, for what outlives the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRecord {
    /// Where.
    pub path: PathBuf,
    /// Tells it from others, 16 hexadecimal digits.
    #[serde(with = "hex")]
    pub id: u64,
    /// The generation of the daemon that made it.
    pub generation: u64,
}

/// A flash store as versions before [`StoreRecord`] noted it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct FlashRecord {
    store: String,
    generation: u64,
    #[serde(default)]
    map_void: bool,
    #[serde(default)]
    written: BTreeMap<String, DeviceWear>,
}

/// What was written to a flash device, as last kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWear {
    /// When counting began, in seconds since 1970.
    pub since: u64,
    /// Bytes of clean pages.
    pub promotion_bytes: u64,
    /// Bytes of the log.
    pub dirty_bytes: u64,
    /// Bytes of the map of clean pages.
    pub journal_bytes: u64,
}

/// Flash devices that were changed by command: they hold until the file names others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashDevices {
    /// What the file named then.
    pub file: Vec<PathBuf>,
    /// What holds.
    pub devices: Vec<PathBuf>,
}

/// What is kept of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its identity for life, 16 hexadecimal digits.
    #[serde(with = "hex")]
    pub incarnation: u64,
    /// The name that it was last served by.
    pub name: String,
    /// What its backing says it is.
    pub backing_identity: String,
    /// False from before its first write until it was cleanly stopped.
    pub clean: bool,
    /// The flash store in whose log data may lie that is not on the backing, 32 hexadecimal digits; set before it is served with the
    /// log, removed when it was drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_on_flash: Option<String>,
    /// Flash stores whose clean pages of it are true to its backing: each was open whenever the volume was served since they were written.
    /// `None` in a record of a version that did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_on: Option<BTreeSet<String>>,
    /// What its backing held when it was served last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentRecord>,
    /// The generation that last served it.
    pub generation: u64,
    /// What daemons before this generation acknowledged, and nobody had flushed, may be lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_before: u64,
    /// What clients have to be told, in the generation that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossRecord>,
    /// True when the generation that last served it acknowledged nothing before it was on the backing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durable_writes: bool,
    /// Changes made by command, by key.
    #[serde(default)]
    pub overrides: BTreeMap<String, Override>,
    /// Set when the volume itself was added by command: it is in no file.
    #[serde(default)]
    pub added: Option<AddedVolume>,
    /// What initiators know it by, once there was an iSCSI target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitRecord>,
    /// Fields of a later version: kept as they are.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
}

/// A change made by command; it holds until the key changes in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// What holds.
    pub value: String,
    /// What the file said when the change was made.
    pub file: String,
}

/// A volume that was added by command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedVolume {
    /// Its backing, as in the file.
    pub backing: String,
    /// Its size in bytes, where the backing has none of its own.
    pub size_bytes: Option<u64>,
    /// Its policy.
    pub policy: String,
    /// Whether writes are refused.
    pub read_only: bool,
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u64,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

impl State {
    /// Reads the file; `None` where there is none yet.
    pub(super) fn load(path: &Path) -> Result<Option<State>, StateError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::Io { doing: "read its file", path: path.to_owned(), error }),
        };
        let damaged =
            |error: serde_json::Error| StateError::Damaged { path: path.to_owned(), detail: error.to_string() };
        let mut versioned: Versioned = serde_json::from_slice(&bytes).map_err(damaged)?;
        if versioned.version > STATE_VERSION {
            let needs = versioned.rest.get(NEEDS).and_then(|needs| Release::parse(needs.as_str()?));
            let newer = NewerFormat::of_format(versioned.version, STATE_VERSION, needs);
            return Err(StateError::Newer { path: path.to_owned(), newer });
        }
        if versioned.version < STATE_VERSION {
            let detail = format!("no version of Hotset has written format {}", versioned.version);
            return Err(StateError::Damaged { path: path.to_owned(), detail });
        }
        let legacy = versioned.rest.remove("flash").map(serde_json::from_value).transpose().map_err(damaged)?;
        let state: State = serde_json::from_value(versioned.rest.into()).map_err(damaged)?;
        Ok(Some(state.upgraded(legacy)))
    }

    /// Takes over what earlier versions wrote in another place.
    fn upgraded(mut self, legacy: Option<FlashRecord>) -> State {
        if let Some(FlashRecord { store, generation, map_void, written }) = legacy {
            for record in self.volumes.iter_mut().filter(|record| record.cached_on.is_none()) {
                record.cached_on = Some(BTreeSet::from([store.clone()]));
            }
            if self.store(&store).is_none() {
                self.stores.push(StoreRecord { generation, map_void, ..StoreRecord::new(&store) });
            }
            self.wear.extend(written);
        }
        self
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let rest = serde_json::to_value(self).expect("a state has only text keys");
        let serde_json::Value::Object(rest) = rest else { unreachable!("a struct becomes an object") };
        let versioned = Versioned { version: STATE_VERSION, rest };
        let mut bytes = serde_json::to_vec_pretty(&versioned).expect("a state has only text keys");
        bytes.push(b'\n');
        bytes
    }

    /// The record that was last served by that name.
    pub fn by_name(&self, name: &str) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|record| record.name == name)
    }

    /// All records by name, for whoever looks for many: a thousand searches of a thousand records are a million comparisons.
    pub fn by_names(&self) -> BTreeMap<&str, &VolumeRecord> {
        self.volumes.iter().map(|record| (record.name.as_str(), record)).collect()
    }

    /// What is kept of the volume of that identity.
    pub fn by_incarnation(&self, incarnation: u64) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|record| record.incarnation == incarnation)
    }

    /// The record of that incarnation.
    pub fn by_incarnation_mut(&mut self, incarnation: u64) -> Option<&mut VolumeRecord> {
        self.volumes.iter_mut().find(|record| record.incarnation == incarnation)
    }
}
