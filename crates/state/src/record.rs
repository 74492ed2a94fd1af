//! The state file: its content, and reading and writing it as JSON with a version.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use engine::VolumeId;
use flash::MembershipGeneration;
use format_version::{NewerFormat, Release};
use serde::{Deserialize, Serialize};

use super::content::ContentRecord;
use super::fields::{hex, hex_volume, is_zero};
use super::store_record::StoreRecord;
use super::trust::{OlderThan, Sabotage, SeenStore};
use super::{StateError, UnitRecord};

/// The format that this version reads and writes.
pub const STATE_VERSION: u64 = 1;
/// Key under which a later format names the first release that reads it, as text (`1.4.0`).
const NEEDS_KEY: &str = "needs";

/// Content of the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Identity of the state directory, 32 hexadecimal digits, drawn once; flash stores name it as their owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Number of daemon starts on this directory.
    pub generation: u64,
    /// Random number of the last start, 16 hexadecimal digits; 0 before the first start of a version that draws one.
    #[serde(default, with = "hex", skip_serializing_if = "is_zero")]
    pub life: u64,
    /// Grows whenever a volume is added, removed or replaced. A copy on the flash devices with a greater revision is
    /// newer than this state.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u64,
    /// All flash stores that daemons on this directory have used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreRecord>,
    /// Set after a store was found that a later state of this directory had used: this state is an older copy, and
    /// serves nothing until it is rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than: Option<OlderThan>,
    /// Flash stores that hold data of volumes unknown to this directory. Volumes new to the directory are refused until
    /// that data is claimed or given up.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unclaimed: BTreeSet<String>,
    /// The last seen ownership of foreign stores in `unclaimed`: an older copy is neither taken over nor used for a
    /// rebuild.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unclaimed_seen: BTreeMap<String, SeenStore>,
    /// Backings that were served while such data was unclaimed: a rebuild restores none of the data for them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub served_beside: BTreeSet<String>,
    /// Written bytes of each flash device, by the device's own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wear: BTreeMap<String, DeviceWear>,
    /// The flash devices, if a command has changed them since the configuration file named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_devices: Option<FlashDevices>,
    /// Files of persisted memory of daemons on this directory, oldest first.
    #[serde(default, rename = "kept", skip_serializing_if = "Vec::is_empty")]
    pub memory_images: Vec<MemoryImageRecord>,
    /// The last boot of the machine that a daemon saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootRecord>,
    /// Volumes that were served at any time and not removed.
    pub volumes: Vec<VolumeRecord>,
    /// Former records of names whose backing another name has adopted, oldest first. Such a name is refused with
    /// another backing until it is adopted, and its clients are notified of a loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displaced: Vec<VolumeRecord>,
    /// Names of configured volumes that a command has removed, each with its configuration entry at that time. A volume
    /// stays removed until its entry changes.
    pub removed: BTreeMap<String, String>,
    /// Pools whose moves of slices are paused by command.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub paused_pools: BTreeSet<String>,
    /// Devices that a command has added to pools, by the pool's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pool_devices: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Identity of the pool to which the records under a pool's name belong, 32 hexadecimal digits. Earlier versions
    /// did not note it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pool_identities: BTreeMap<String, String>,
    /// Tokens for the HTTP interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenRecord>,
    /// Silenced alerts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silences: Vec<messages::report::SilenceReport>,
    /// Random number that makes this daemon's NAA designators unique, 16 hexadecimal digits; 0 before its first use.
    #[serde(rename = "host", default, with = "hex", skip_serializing_if = "is_zero")]
    pub host_id: u64,
    /// LUNs that volumes have had; they are not assigned again unless the configuration file fixes one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub retired_luns: BTreeSet<u16>,
    /// Fields of a later version, preserved unchanged.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
    /// A check that a test disables, to prove that torture detects it.
    #[doc(hidden)]
    #[serde(skip)]
    pub sabotage: Sabotage,
}

/// A boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRecord {
    /// The kernel's boot identifier.
    pub id: String,
    /// The first generation in this boot.
    pub generation: u64,
}

/// Acknowledged and unflushed writes that were lost with a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRecord {
    /// The generation in which the loss is reported to clients.
    pub generation: u64,
    /// Set if the machine has rebooted since: local clients have ended too, so only remote clients receive the report.
    pub remote_clients: bool,
}

/// Record of a token, without the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Name of the token.
    pub name: String,
    /// Role that the token grants.
    pub role: messages::Role,
    /// SHA-256 of the token, 64 hexadecimal digits.
    pub hash: String,
    /// Creation time, in seconds since 1970.
    pub created: u64,
}

/// The file of a daemon's persisted memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryImageRecord {
    /// Path of the file.
    pub path: PathBuf,
    /// Distinguishes the file from other files, 16 hexadecimal digits.
    #[serde(with = "hex")]
    pub id: u64,
    /// Generation of the daemon that created it.
    pub generation: u64,
}

/// A flash store in the format of versions before [`StoreRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct FlashRecord {
    store: String,
    generation: u64,
    #[serde(rename = "map_void", default)]
    map_unusable: bool,
    #[serde(default)]
    written: BTreeMap<String, DeviceWear>,
}

/// Bytes written to a flash device, as last recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWear {
    /// Start of counting, in seconds since 1970.
    pub since: u64,
    /// Bytes of clean pages.
    pub promotion_bytes: u64,
    /// Bytes of the log.
    pub dirty_bytes: u64,
    /// Bytes of the map of clean pages.
    pub journal_bytes: u64,
}

/// Flash devices that were changed by command; valid until the configuration file names others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashDevices {
    /// Devices in the configuration file at the daemon's start before the change.
    pub file: Vec<PathBuf>,
    /// Devices in the file as of the last reload before the change, if they differ: the next start reads these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reloaded: Option<Vec<PathBuf>>,
    /// Devices in effect.
    pub devices: Vec<PathBuf>,
}

impl FlashDevices {
    /// True if the file's list, `file`, is the one that the commands changed.
    pub fn is_valid_for(&self, file: &[PathBuf]) -> bool {
        self.file == file || self.reloaded.as_deref() == Some(file)
    }
}

/// The backing of a volume as the configuration named it at one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredBacking {
    /// Path or URI.
    pub path: String,
    /// Generation of that service. An earlier version updates that of the record alone, and this path may then be
    /// outdated.
    pub generation: u64,
}

/// Record of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Persistent identity, 16 hexadecimal digits.
    #[serde(rename = "incarnation", with = "hex_volume")]
    pub volume_id: VolumeId,
    /// Name at the last service.
    pub name: String,
    /// Identity of its backing.
    pub backing_identity: String,
    /// Its backing as configured, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<ConfiguredBacking>,
    /// False from before its first write until a clean stop.
    pub clean: bool,
    /// The flash store whose log may hold data that is not on the backing, 32 hexadecimal digits. Set before the volume
    /// is served with the log, removed after a drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_on_flash: Option<String>,
    /// Flash stores whose clean pages of the volume match its backing: each was open whenever the volume was served
    /// since its pages were written. `None` in a record of a version without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_on: Option<BTreeSet<String>>,
    /// Content of its backing at the last service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentRecord>,
    /// Generation of the last service.
    pub generation: u64,
    /// Acknowledged and unflushed writes before this generation may be lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_before: u64,
    /// Loss to report to clients, in the generation that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossRecord>,
    /// True if the generation of the last service acknowledged writes only after they were on the backing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durable_writes: bool,
    /// Changes made by command, by key.
    #[serde(default)]
    pub overrides: BTreeMap<String, Override>,
    /// Set for a volume that was added by command and is in no configuration file.
    #[serde(default)]
    pub added: Option<AddedVolume>,
    /// Identity for initiators, set once an iSCSI target has been configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitRecord>,
    /// Fields of a later version, preserved unchanged.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
}

impl VolumeRecord {
    /// Path or URI of the backing at the last service, if it is known.
    pub fn backing_path(&self) -> Option<&str> {
        let configured = self.configured.as_ref().filter(|configured| configured.generation == self.generation)?;
        Some(&configured.path)
    }
}

/// A change made by command; valid until the key changes in the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Value in effect.
    pub value: String,
    /// Value in the configuration file at the time of the change.
    pub file: String,
}

/// A volume added by command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedVolume {
    /// Its backing, as in the configuration file.
    pub backing: String,
    /// Its size in bytes, if the backing has no size of its own.
    pub size_bytes: Option<u64>,
    /// Its write policy.
    pub policy: String,
    /// True if writes are refused.
    pub read_only: bool,
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u64,
    #[serde(flatten)]
    fields: serde_json::Map<String, serde_json::Value>,
}

impl State {
    /// Reads the file; `None` if there is none yet.
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
            let needs = versioned.fields.get(NEEDS_KEY).and_then(|needs| Release::parse(needs.as_str()?));
            let newer = NewerFormat::of_format(versioned.version, STATE_VERSION, needs);
            return Err(StateError::Newer { path: path.to_owned(), newer });
        }
        if versioned.version < STATE_VERSION {
            let detail = format!("format {} was never released", versioned.version);
            return Err(StateError::Damaged { path: path.to_owned(), detail });
        }
        let legacy = versioned.fields.remove("flash").map(serde_json::from_value).transpose().map_err(damaged)?;
        let state: State = serde_json::from_value(versioned.fields.into()).map_err(damaged)?;
        Ok(Some(state.upgrade(legacy)))
    }

    /// Converts fields that earlier versions stored elsewhere.
    fn upgrade(mut self, legacy: Option<FlashRecord>) -> State {
        if let Some(FlashRecord { store, generation, map_unusable, written }) = legacy {
            for record in self.volumes.iter_mut().filter(|record| record.cached_on.is_none()) {
                record.cached_on = Some(BTreeSet::from([store.clone()]));
            }
            if self.store(&store).is_none() {
                self.stores.push(StoreRecord {
                    generation: MembershipGeneration(generation),
                    map_unusable,
                    ..StoreRecord::new(&store)
                });
            }
            self.wear.extend(written);
        }
        self
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let fields = serde_json::to_value(self).expect("a state has only text keys");
        let serde_json::Value::Object(fields) = fields else { unreachable!("a struct becomes an object") };
        let versioned = Versioned { version: STATE_VERSION, fields };
        let mut bytes = serde_json::to_vec_pretty(&versioned).expect("a state has only text keys");
        bytes.push(b'\n');
        bytes
    }

    /// The record last served under this name.
    pub fn by_name(&self, name: &str) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|record| record.name == name)
    }

    /// All records by name, for repeated look-ups: a thousand searches among a thousand records take a million
    /// comparisons.
    pub fn by_names(&self) -> BTreeMap<&str, &VolumeRecord> {
        self.volumes.iter().map(|record| (record.name.as_str(), record)).collect()
    }

    /// The former record of a name whose backing another name has adopted. An earlier version may have served the name
    /// since: its record counts then.
    pub fn displaced(&self, name: &str) -> Option<&VolumeRecord> {
        self.displaced.iter().find(|record| record.name == name).filter(|_| self.by_name(name).is_none())
    }

    /// The records of a volume's backing and of its name, and the former record of its name.
    pub fn records_of(&self, name: &str, identity: &str) -> impl Iterator<Item = &VolumeRecord> {
        let by_backing = self.volumes.iter().find(|record| record.backing_identity == identity);
        [by_backing, self.by_name(name), self.displaced(name)].into_iter().flatten()
    }

    /// The record of this volume ID.
    pub fn by_id(&self, volume_id: VolumeId) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|record| record.volume_id == volume_id)
    }

    /// The record of this volume ID, mutable.
    pub fn by_id_mut(&mut self, volume_id: VolumeId) -> Option<&mut VolumeRecord> {
        self.volumes.iter_mut().find(|record| record.volume_id == volume_id)
    }

    /// Notes that the records under a pool's name belong to this pool. Records of another pool, which had the name
    /// before, are dropped.
    pub fn claim_pool_records(&mut self, name: &str, identity: &str) {
        let former = self.pool_identities.insert(name.to_owned(), identity.to_owned());
        if former.is_some_and(|former| former != identity) {
            self.paused_pools.remove(name);
            self.pool_devices.remove(name);
        }
    }

    /// The record of a store.
    pub fn store(&self, store: &str) -> Option<&StoreRecord> {
        self.stores.iter().find(|record| record.store == store)
    }
}
