//! The configuration file: parsed as a whole into typed values. All errors are reported together, each with its
//! location and remedy.

mod alerts;
mod api;
pub mod array;
pub mod backing;
mod flash;
mod fleet;
mod history;
mod iscsi;
pub mod keys;
mod load;
mod log;
mod look_up;
mod mail;
mod names;
mod nearest;
mod path_checks;
mod pools;
pub mod problem;
pub mod qos;
pub mod quota;
mod read;
pub mod redact;
mod secrets;
mod shape;
mod socket;
mod tables;
mod vhost_user;
pub mod volume_qos;
mod volumes;
pub mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{DatastoreSpec, Threshold, WritePolicy};
use pool::Provisioning;
use seam::Address;
use seam::model::{ArraySpec, SsdSpec};

use crate::quota::{Ceiling, SizeOrPercent};
use crate::volume_qos::VolumeQos;
pub use alerts::AlertsConfig;
pub use api::ApiConfig;
pub use array::{default_array, show_array};
pub use backing::{BackingSpec, is_device};
pub use fleet::{FleetConfig, LinkConfig, TakeOverConfig, TakeOverMode};
pub use history::HistoryConfig;
pub use iscsi::{IscsiConfig, read_chap};
pub use log::LogConfig;
pub use look_up::LOOK_UP_TIMEOUT;
pub use names::check_name;
pub use nearest::nearest;
pub use pools::{
    PoolConfig, RateSetting, RelocationTimes, TierChoice, TierConfig, check_slice, check_tier_name, name_devices,
    parse_placement,
};
pub use problem::{Problem, Problems};
pub use qos::{QosRule, RuleValue};
use qos::{qos_by_rules, rule_values};
pub use rbd::is_image_address;
pub use vhost_user::VhostUserConfig;
use written::Written;

/// Default path of the configuration file.
pub const DEFAULT_CONFIG: &str = "/etc/hotset/hotset.toml";
/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/hotset/control.sock";
/// Minimum of `[memory] size`, in bytes.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;
/// Maximum of `[memory] size` on any machine: the largest pool whose blocks can be numbered.
pub const MEMORY_MAX_BYTES: u64 = 16 << 40;

/// The processors that serve data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Chosen by the operating system.
    Auto,
    /// Pinned to the first processor of the list.
    List(Vec<u32>),
}

/// The location of persisted memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepIn {
    /// `/dev/shm`, if it has room.
    Auto,
    /// Memory does not outlive the daemon.
    Nowhere,
    /// A directory on tmpfs.
    Directory(PathBuf),
}

impl KeepIn {
    /// The directory of persisted memory; `None` if memory does not outlive the daemon.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            KeepIn::Auto => Some(Path::new("/dev/shm")),
            KeepIn::Nowhere => None,
            KeepIn::Directory(directory) => Some(directory),
        }
    }
}

/// TLS of NBD clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Without TLS only.
    #[default]
    Off,
    /// With or without TLS.
    Allowed,
    /// With TLS only.
    Required,
}

/// TLS of the NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Refuse clients without TLS.
    pub required: bool,
    /// Certificate, key and CA for client certificates.
    pub files: tls::Files,
}

/// The NBD listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdConfig {
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// User that owns the Unix sockets.
    pub socket_owner: Option<String>,
    /// Group that the Unix sockets belong to.
    pub socket_group: Option<String>,
    /// Permissions of the Unix sockets.
    pub socket_mode: u32,
    /// TLS, if clients may or must use it.
    pub tls: Option<TlsConfig>,
}

impl NbdConfig {
    /// True when a change to `new` needs a restart. A change of the TLS files needs none while the same kinds of
    /// files are specified.
    pub fn needs_restart(&self, new: &NbdConfig) -> bool {
        let without_files = |config: &NbdConfig| {
            let tls = config.tls.as_ref().map(|tls| (tls.required, tls.files.client_ca.is_some()));
            (NbdConfig { tls: None, ..config.clone() }, tls)
        };
        without_files(self) != without_files(new)
    }
}

/// The flash cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashConfig {
    /// One to eight devices or files.
    pub devices: Vec<PathBuf>,
    /// Size for creating missing files.
    pub size_bytes: Option<u64>,
    /// Acknowledge a flush from a single copy.
    pub allow_single_copy: bool,
    /// Full writes of the devices per day that promotion may make, in thousandths; 0: no limit.
    pub endurance_milli_dwpd: u32,
    /// Bytes per second that the scrub reads; `None`: no scrub.
    pub scrub: Option<u64>,
    /// Latency above which the devices are congested.
    pub threshold: Threshold,
    /// A modelled SSD whose timing the devices take. No key sets it; the demonstration does.
    pub ssd: Option<SsdSpec>,
}

/// One `[[array]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayConfig {
    /// Its name.
    pub name: String,
    /// Its specification.
    pub spec: ArraySpec,
}

/// One `[[volume]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Name that clients see.
    pub name: String,
    /// Its backing.
    pub backing: BackingSpec,
    /// Size in bytes, if the backing has no size of its own.
    pub size_bytes: Option<u64>,
    /// Write policy.
    pub policy: WritePolicy,
    /// For `write-back-volatile`: the deferral age, at which a write is durable at the latest, as long as the backing
    /// keeps up with the writes.
    pub defer: Duration,
    /// Name of its datastore; empty: none.
    pub datastore: String,
    /// Labels, for people and for metrics.
    pub labels: BTreeMap<String, String>,
    /// Refuse writes.
    pub read_only: bool,
    /// Clean pages may be kept on flash.
    pub flash: bool,
    /// The number of its LUN; `None`: the daemon assigns one.
    pub lun: Option<u16>,
    /// Patterns of the initiators that see its LUN; empty: all.
    pub acl: Vec<String>,
    /// Its backing is permanently lost.
    pub declared_lost: bool,
    /// Memory quota that other volumes cannot take.
    pub memory_min: SizeOrPercent,
    /// Maximum of its memory quota.
    pub memory_max: Ceiling,
    /// Flash quota that other volumes cannot take.
    pub flash_min: SizeOrPercent,
    /// Maximum of its flash quota.
    pub flash_max: Ceiling,
    /// The tiers of its pool on which it is placed.
    pub tier_policy: TierChoice,
    /// When its slices of the pool are allocated.
    pub provisioning: Provisioning,
    /// When this host takes it over from another one.
    pub take_over: TakeOverConfig,
    /// Quality of service, with `[[qos]]` applied.
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
            memory_min: SizeOrPercent::ZERO,
            memory_max: Ceiling::default(),
            flash_min: SizeOrPercent::ZERO,
            flash_max: Ceiling::default(),
            tier_policy: TierChoice::default(),
            provisioning: Provisioning::default(),
            take_over: TakeOverConfig::default(),
            qos: VolumeQos::default(),
        }
    }

    /// The volume with the quality of service of these rules, as if it had no keys of its own.
    pub fn with_rules(self, rules: &[QosRule]) -> Self {
        VolumeConfig { qos: qos_by_rules(rules, &self.name, &self.labels), ..self }
    }

    /// The value of a key that commands can change, as text; empty for an unknown key.
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

    /// The configuration in force after a reload of `new`: keys that need a restart keep their value.
    pub fn after_reload(&self, new: &VolumeConfig) -> VolumeConfig {
        let source = |key| if keys::needs_restart("volume", key) { self } else { new };
        VolumeConfig {
            name: source("name").name.clone(),
            backing: source("backing").backing.clone(),
            size_bytes: source("size").size_bytes,
            policy: source("policy").policy,
            defer: source("defer").defer,
            datastore: source("datastore").datastore.clone(),
            labels: source("labels").labels.clone(),
            read_only: source("read_only").read_only,
            flash: source("flash").flash,
            lun: source("lun").lun,
            acl: source("acl").acl.clone(),
            declared_lost: source("declared_lost").declared_lost,
            memory_min: source("memory_min").memory_min,
            memory_max: source("memory_max").memory_max,
            flash_min: source("flash_min").flash_min,
            flash_max: source("flash_max").flash_max,
            tier_policy: source("tier_policy").tier_policy.clone(),
            provisioning: source("provisioning").provisioning,
            take_over: source("take_over").take_over,
            qos: source("shares").qos,
        }
    }

    /// A text that identifies the entry: backing, size, policy and `read_only`.
    pub fn entry(&self) -> String {
        let size = self.size_bytes.map_or(String::new(), |size| size.to_string());
        format!("{} {size} {} {}", self.backing, self.policy, self.read_only)
    }
}

/// A configuration without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of the file.
    pub file: PathBuf,
    /// The processors that serve data.
    pub cores: Cores,
    /// The state directory.
    pub state_directory: PathBuf,
    /// Memory of the cache, its index included, in bytes.
    pub memory_bytes: u64,
    /// The location of persisted memory.
    pub keep_in: KeepIn,
    /// The flash cache, if there is one.
    pub flash: Option<FlashConfig>,
    /// The control socket.
    pub control_socket: PathBuf,
    /// The HTTP interface.
    pub api: ApiConfig,
    /// The history of counters.
    pub history: HistoryConfig,
    /// Thresholds of alerts, and their receiver.
    pub alerts: AlertsConfig,
    /// The daemon's log.
    pub log: LogConfig,
    /// The NBD listeners.
    pub nbd: NbdConfig,
    /// The iSCSI target, if there is one.
    pub iscsi: Option<IscsiConfig>,
    /// The vhost-user sockets, if they are on.
    pub vhost_user: Option<VhostUserConfig>,
    /// This host among those with volumes on the same storage.
    pub fleet: FleetConfig,
    /// Modelled arrays.
    pub arrays: Vec<ArrayConfig>,
    /// Pools of devices, from which volumes are cut.
    pub pools: Vec<PoolConfig>,
    /// Groups of volumes that share spindles.
    pub datastores: Vec<DatastoreSpec>,
    /// Rules for quality of service by label.
    pub qos: Vec<QosRule>,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
    /// Problems with backings that are absent on this machine: each prevents service of its own volume alone.
    pub backing_problems: Vec<Problem>,
    /// The values as written in the file, as far as they are in force.
    pub written: Written,
}

impl Config {
    /// The values that a volume of the file gets from `[[qos]]`.
    pub fn rule_values(&self, volume: &VolumeConfig) -> Vec<RuleValue> {
        let entry = self.written.entries("volume").find(|(name, _)| **name == volume.name).map(|(_, entry)| entry);
        rule_values(&self.qos, &volume.name, &volume.labels, |key| entry.is_some_and(|entry| entry.contains_key(key)))
    }
}

/// Environment variable with the path of the control socket, for commands without `--socket`.
pub const SOCKET_VARIABLE: &str = "HOTSET_SOCKET";

/// The socket in [`SOCKET_VARIABLE`], where that is set and not empty.
pub fn socket_of_environment() -> Option<PathBuf> {
    std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The daemon's socket: `specified`, else [`SOCKET_VARIABLE`], else the socket in the default configuration file, else
/// [`DEFAULT_SOCKET`].
pub fn control_socket(specified: Option<&Path>) -> PathBuf {
    let configured = || Config::load_settings(Path::new(DEFAULT_CONFIG)).ok().map(|config| config.control_socket);
    specified
        .map(Path::to_owned)
        .or_else(socket_of_environment)
        .or_else(configured)
        .unwrap_or_else(|| DEFAULT_SOCKET.into())
}
