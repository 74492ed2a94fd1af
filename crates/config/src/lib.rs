//! The configuration file: read once, whole, into parsed types; every error found at once, with its place and remedy.

mod alerts;
mod api;
pub mod array;
pub mod backing;
mod flash;
mod history;
mod iscsi;
pub mod keys;
mod load;
pub mod problem;
pub mod qos;
pub mod quota;
mod read;
pub mod redact;
mod secrets;
mod vhost_user;
pub mod volume_qos;
mod volumes;
pub mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{DatastoreSpec, Threshold, WritePolicy};
use seam::Address;
use seam::model::{ArraySpec, SsdSpec};

use crate::quota::{Ceiling, SizeOrPercent};
use crate::volume_qos::VolumeQos;
pub use alerts::AlertsConfig;
pub use api::ApiConfig;
pub use array::{default_array, show_array};
pub use backing::{BackingSpec, is_device};
pub use history::HistoryConfig;
pub use iscsi::{IscsiConfig, read_chap, show_portal};
pub use problem::{Problem, Problems};
pub use qos::{FromRule, QosRule};
use qos::{from_rules, qos_by_rules};
pub use vhost_user::VhostUserConfig;
pub use volumes::check_name;
use written::Written;

/// Where the configuration is, when nobody says.
pub const DEFAULT_CONFIG: &str = "/etc/hotset/hotset.toml";
/// Where commands look for the daemon when told nothing else.
pub const DEFAULT_SOCKET: &str = "/run/hotset/control.sock";
/// The least memory that a cache can work with, in bytes.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;
/// Most that `[memory] size` may be on any machine: what the numbers of a pool's blocks reach.
pub const MEMORY_MAX_BYTES: u64 = 16 << 40;

/// Which processors serve data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Wherever the system likes.
    Auto,
    /// Pinned to the first of these.
    List(Vec<u32>),
}

/// Where memory lies that outlives the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepIn {
    /// In `/dev/shm`, if it has room.
    Auto,
    /// It goes with the daemon.
    Nowhere,
    /// A directory in a file system in memory.
    Directory(PathBuf),
}

/// Whether NBD clients use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// They cannot.
    #[default]
    Off,
    /// They may.
    Allowed,
    /// They must.
    Required,
}

/// The server's side of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Refuse clients without.
    pub required: bool,
    /// What the server shows itself with.
    pub files: tls::Files,
}

/// Where NBD clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdConfig {
    /// Listening sockets.
    pub listen: Vec<Address>,
    /// User that owns the Unix sockets.
    pub socket_owner: Option<String>,
    /// Group that the Unix sockets belong to.
    pub socket_group: Option<String>,
    /// Permissions of the Unix sockets.
    pub socket_mode: u32,
    /// TLS for clients.
    pub tls: Option<TlsConfig>,
}

impl NbdConfig {
    /// Whether what differs takes a restart. Other files for TLS do not, as long as they are as many as before.
    pub fn differs_for_good(&self, fresh: &NbdConfig) -> bool {
        let kept = |of: &NbdConfig| {
            let tls = of.tls.as_ref().map(|tls| (tls.required, tls.files.client_ca.is_some()));
            (NbdConfig { tls: None, ..of.clone() }, tls)
        };
        kept(self) != kept(fresh)
    }
}

/// Where what is dirty is kept, mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashConfig {
    /// One to eight devices or files.
    pub devices: Vec<PathBuf>,
    /// Size of files that are to be created.
    pub size_bytes: Option<u64>,
    /// One copy is enough to acknowledge a flush.
    pub allow_single_copy: bool,
    /// How often a day promotion may write the devices full, in thousandths; 0: no limit.
    pub endurance_milli_dwpd: u32,
    /// Bytes a second that the scrub reads; none: there is no scrub.
    pub scrub: Option<u64>,
    /// Latency past which shares count there.
    pub threshold: Threshold,
    /// Devices that take a modelled SSD's time. No key says it; the demo does.
    pub ssd: Option<SsdSpec>,
}

/// One `[[array]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayConfig {
    /// Its name.
    pub name: String,
    /// What it is.
    pub spec: ArraySpec,
}

/// One `[[volume]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Name that clients see.
    pub name: String,
    /// Where its data lies.
    pub backing: BackingSpec,
    /// Bytes, where the backing has no size of its own.
    pub size_bytes: Option<u64>,
    /// When writes are acknowledged.
    pub policy: WritePolicy,
    /// `write-back-volatile` alone: age at which a write is durable at the latest, while the backing takes as much as is written.
    pub defer: Duration,
    /// Name of its datastore; empty = none.
    pub datastore: String,
    /// For people and for metrics.
    pub labels: BTreeMap<String, String>,
    /// Refuse writes.
    pub read_only: bool,
    /// Clean pages may be kept on flash.
    pub flash: bool,
    /// The number of its LUN; none: given once.
    pub lun: Option<u16>,
    /// Initiators that its LUN is there for; empty = all.
    pub acl: Vec<String>,
    /// Its backing will not come back.
    pub declared_lost: bool,
    /// What of the memory nobody takes away from it.
    pub memory_min: SizeOrPercent,
    /// What of the memory it may have at most.
    pub memory_max: Ceiling,
    /// What of the flash nobody takes away from it.
    pub flash_min: SizeOrPercent,
    /// What of the flash it may have at most.
    pub flash_max: Ceiling,
    /// What it is entitled to beside others and held to, `[[qos]]` included.
    pub qos: VolumeQos,
}

impl VolumeConfig {
    /// A volume with defaults for everything but its name and backing.
    pub fn new(name: &str, backing: BackingSpec) -> Self {
        VolumeConfig {
            name: name.to_owned(),
            backing,
            size_bytes: None,
            policy: WritePolicy::default(),
            defer: volumes::DEFER_DEFAULT,
            datastore: String::new(),
            labels: BTreeMap::new(),
            read_only: false,
            flash: true,
            lun: None,
            acl: Vec::new(),
            declared_lost: false,
            memory_min: SizeOrPercent::NOTHING,
            memory_max: Ceiling::default(),
            flash_min: SizeOrPercent::NOTHING,
            flash_max: Ceiling::default(),
            qos: VolumeQos::default(),
        }
    }

    /// With what these rules give a volume that says nothing itself.
    pub fn by_rules(self, rules: &[QosRule]) -> Self {
        VolumeConfig { qos: qos_by_rules(rules, &self.name, &self.labels), ..self }
    }

    /// The text of a key that commands can change; empty where there is none of that name.
    pub fn setting(&self, key: &str) -> String {
        match key {
            "policy" => self.policy.to_string(),
            "declared_lost" => self.declared_lost.to_string(),
            "memory_min" => self.memory_min.to_string(),
            "memory_max" => self.memory_max.to_string(),
            "flash_min" => self.flash_min.to_string(),
            "flash_max" => self.flash_max.to_string(),
            _ => self.qos.setting(key).unwrap_or_default(),
        }
    }

    /// What holds after a reload that has read `fresh`: what takes a restart stays as it was.
    pub fn renewed(&self, fresh: &VolumeConfig) -> VolumeConfig {
        let of = |key| if keys::takes_restart("volume", key) { self } else { fresh };
        VolumeConfig {
            name: of("name").name.clone(),
            backing: of("backing").backing.clone(),
            size_bytes: of("size").size_bytes,
            policy: of("policy").policy,
            defer: of("defer").defer,
            datastore: of("datastore").datastore.clone(),
            labels: of("labels").labels.clone(),
            read_only: of("read_only").read_only,
            flash: of("flash").flash,
            lun: of("lun").lun,
            acl: of("acl").acl.clone(),
            declared_lost: of("declared_lost").declared_lost,
            memory_min: of("memory_min").memory_min,
            memory_max: of("memory_max").memory_max,
            flash_min: of("flash_min").flash_min,
            flash_max: of("flash_max").flash_max,
            qos: of("shares").qos,
        }
    }

    /// What makes the entry this one and no other, as text.
    pub fn entry(&self) -> String {
        let size = self.size_bytes.map_or(String::new(), |size| size.to_string());
        format!("{} {size} {} {}", self.backing, self.policy, self.read_only)
    }
}

/// A configuration without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that it came from.
    pub file: PathBuf,
    /// Which processors serve data.
    pub cores: Cores,
    /// Where identities and changes made by command are kept.
    pub state_directory: PathBuf,
    /// All memory that caching may take, in bytes.
    pub memory_bytes: u64,
    /// Where memory lies that outlives the daemon.
    pub keep_in: KeepIn,
    /// The flash log, if there is to be one.
    pub flash: Option<FlashConfig>,
    /// What the commands talk to.
    pub control_socket: PathBuf,
    /// The HTTP interface.
    pub api: ApiConfig,
    /// What is kept of the past.
    pub history: HistoryConfig,
    /// From when on something is wrong, and who is told.
    pub alerts: AlertsConfig,
    /// Where NBD clients connect.
    pub nbd: NbdConfig,
    /// Where iSCSI initiators connect, if any may.
    pub iscsi: Option<IscsiConfig>,
    /// Where virtual machines find their volumes' sockets, if they may.
    pub vhost_user: Option<VhostUserConfig>,
    /// Modelled arrays.
    pub arrays: Vec<ArrayConfig>,
    /// Groups of volumes that share spindles.
    pub datastores: Vec<DatastoreSpec>,
    /// What volumes are entitled to by their labels.
    pub qos: Vec<QosRule>,
    /// What is served.
    pub volumes: Vec<VolumeConfig>,
    /// Backings that the machine does not have: each keeps its own volume from being served, and no other.
    pub absent: Vec<Problem>,
    /// The file's own words, as far as they are in force.
    pub written: Written,
}

impl Config {
    /// What a volume of the file has from `[[qos]]`.
    pub fn from_qos(&self, volume: &VolumeConfig) -> Vec<FromRule> {
        let own = self.written.entries("volume").find(|(name, _)| **name == volume.name).map(|(_, entry)| entry);
        from_rules(&self.qos, &volume.name, &volume.labels, |key| own.is_some_and(|own| own.contains_key(key)))
    }
}

/// The daemon's socket: what was named, else the default configuration's, else the default.
pub fn control_socket(named: Option<&Path>) -> PathBuf {
    let configured = || Config::load(Path::new(DEFAULT_CONFIG)).ok().map(|config| config.control_socket);
    named.map(Path::to_owned).or_else(configured).unwrap_or_else(|| DEFAULT_SOCKET.into())
}
