//! Several hosts with volumes on the same storage: `[fleet]`, and the keys of volumes about it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use super::backing::split_host_port;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError};
use crate::BackingSpec;

/// Default of `take_over_after`.
pub(super) const AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// Bounds of `take_over_after`. The lease of an owner, within which it may serve without the storage, is shorter.
const AFTER: std::ops::RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_secs(24 * 3600);

/// Maximum number of hosts of a fleet.
const HOSTS_MAX: usize = 64;

/// `[fleet]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetConfig {
    /// Name of this host among the hosts.
    pub host: String,
    /// The link to other hosts, if there is one.
    pub link: Option<LinkConfig>,
}

/// The link between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The address, and the port, at which each host listens, by its name; this host is among them.
    pub hosts: BTreeMap<String, (String, u16)>,
    /// Certificate and key of this host, and the authority of all hosts.
    pub files: tls::Files,
}

impl FleetConfig {
    /// True when a change to `new` needs a restart; one of the TLS files does not.
    pub fn needs_restart(&self, new: &FleetConfig) -> bool {
        let hosts = |config: &FleetConfig| config.link.as_ref().map(|link| link.hosts.clone());
        self.host != new.host || hosts(self) != hosts(new)
    }
}

impl Default for FleetConfig {
    fn default() -> Self {
        FleetConfig { host: rbd::machine_name(), link: None }
    }
}

/// Condition under which a host on standby takes a volume over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakeOverMode {
    /// By command.
    #[default]
    Command,
    /// By itself, when the owner was absent for a time.
    Automatic,
}

impl TakeOverMode {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TakeOverMode::Command => "command",
            TakeOverMode::Automatic => "automatic",
        }
    }
}

impl Setting for TakeOverMode {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("\"command\" or \"automatic\""))?;
        let modes = [TakeOverMode::Command, TakeOverMode::Automatic];
        let mode = modes.into_iter().find(|mode| mode.name() == text);
        mode.ok_or_else(|| {
            let fault = format!("\"{text}\" is no way of a take-over");
            ValueError::Value(fault, "specify \"command\" or \"automatic\"".to_owned())
        })
    }
}

/// When this host takes a volume over that another one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeOverConfig {
    /// By command, or by itself.
    pub mode: TakeOverMode,
    /// Time for which the owner was absent.
    pub after: Duration,
}

impl Default for TakeOverConfig {
    fn default() -> Self {
        TakeOverConfig { mode: TakeOverMode::default(), after: AFTER_DEFAULT }
    }
}

/// Reads `[fleet]`; relative paths are relative to `folder`.
pub(super) fn read_fleet(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> FleetConfig {
    let host = match section.get::<String>("host", source) {
        None => FleetConfig::default().host,
        Some(Located { value: host, span }) => {
            if !is_host_name(&host) {
                let remedy = "use letters, digits, \".\", \"-\" and \"_\", as in a host name";
                source.add_problem(&span, format!("\"{host}\" is not a name of a host"), remedy);
            }
            host
        }
    };
    let link = read_link(&host, section, folder, source);
    FleetConfig { host, link }
}

fn is_host_name(host: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
    !host.is_empty() && host.len() <= 255 && host.chars().all(is_plain)
}

/// Reads the keys of the link; `None` without them, and after a problem.
fn read_link(own_host: &str, section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> Option<LinkConfig> {
    let keys = ["tls_certificate", "tls_key", "tls_ca"];
    if !section.has("hosts") && !keys.iter().any(|key| section.has(key)) {
        return None;
    }
    let entries = section.require::<Vec<Located<String>>>("hosts", source);
    let [certificate, key, ca] =
        keys.map(|key| section.require::<String>(key, source).map(|text| folder.join(text.value)));
    let (mut hosts, entries) = (BTreeMap::new(), entries?);
    for Located { value, span } in &entries.value {
        let parsed = value.split_once('=').filter(|(host, _)| is_host_name(host));
        let Some((host, address)) = parsed.and_then(|(host, at)| Some((host, split_host_port(at, None).ok()?))) else {
            let remedy = "write it like \"alpha=10.0.0.1:7401\"";
            source.add_problem(span, format!("\"{value}\" is not a host and its address"), remedy);
            continue;
        };
        if hosts.insert(host.to_owned(), address).is_some() {
            source.add_problem(span, format!("host {host} is listed twice"), "remove one of them");
        }
    }
    if !hosts.contains_key(own_host) {
        let remedy = format!("add \"{own_host}=ADDRESS:PORT\", at which this host listens, or set host");
        source.add_problem(&entries.span, format!("this host, {own_host}, is not among the hosts"), remedy);
    }
    if hosts.len() > HOSTS_MAX {
        let fault = format!("there are {} hosts", hosts.len());
        source.add_problem(&entries.span, fault, format!("list at most {HOSTS_MAX}"));
    }
    Some(LinkConfig { hosts, files: tls::Files { certificate: certificate?, key: key?, client_ca: Some(ca?) } })
}

/// Reads the keys of a volume.
pub(super) fn read_take_over(
    section: &Section<'_>,
    backing: Option<&BackingSpec>,
    source: &mut Source<'_>,
) -> TakeOverConfig {
    let (mode, after) = (section.get::<TakeOverMode>("take_over", source), section.get("take_over_after", source));
    let given = mode.as_ref().map(|mode| &mode.span).or(after.as_ref().map(|after: &Located<Duration>| &after.span));
    if let (Some(span), Some(backing)) = (given, backing)
        && !matches!(backing, BackingSpec::Rbd(_))
    {
        let fault = format!("{backing} has no owner that could be taken over from");
        source.add_problem(span, fault, "remove the key: only images of RBD are shared by hosts");
    }
    let default = TakeOverConfig::default();
    let mode = mode.map_or(default.mode, |mode| mode.value);
    if let Some(after) = &after {
        if mode != TakeOverMode::Automatic {
            let remedy = "remove it, or ask for take_over = \"automatic\"";
            source.add_problem(&after.span, "\"take_over_after\" means nothing without an automatic take-over", remedy);
        } else if !AFTER.contains(&after.value) {
            let remedy = "give 30s to 24h: the owner may serve for 25 s without the cluster";
            source.add_problem(&after.span, "an owner cannot be taken over from after that time", remedy);
        }
    }
    TakeOverConfig { mode, after: after.map_or(default.after, |after| after.value) }
}
