//! `[api]`: the HTTP interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::problem::Source;
use super::read::{Located, Section};

/// Default of `listen`: loopback, so that only this machine reaches the web console.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);
/// Value of `listen` that turns the HTTP interface off.
const LISTEN_NONE: &str = "none";
/// Default of `metrics_volumes`.
const DEFAULT_METRICS_VOLUMES: u32 = 1000;

/// Address, names and TLS of the HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    /// The address that it listens on; `None`: there is no HTTP interface.
    pub listen: Option<SocketAddr>,
    /// Host names under which it accepts requests, besides loopback.
    pub names: Vec<String>,
    /// Maximum number of volumes with metrics of their own.
    pub metrics_volumes: u32,
    /// Certificate and key for TLS; `None`: plain HTTP.
    pub tls: Option<tls::Files>,
}

impl ApiConfig {
    /// URL of the web console for other machines, with the first host name. `None` without a host name or a fixed port.
    pub fn console_url(&self) -> Option<String> {
        let (port, name) = (self.listen?.port(), self.names.first()?);
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = if name.contains(':') { format!("[{name}]") } else { name.clone() };
        (port > 0).then(|| format!("{scheme}://{host}:{port}/"))
    }

    /// True when a change to `new` needs a restart. A change of the TLS files needs none while TLS stays on.
    pub fn needs_restart(&self, new: &ApiConfig) -> bool {
        let without_tls = ApiConfig { tls: None, ..self.clone() };
        without_tls != ApiConfig { tls: None, ..new.clone() } || self.tls.is_some() != new.tls.is_some()
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            listen: Some(DEFAULT_LISTEN),
            names: Vec::new(),
            metrics_volumes: DEFAULT_METRICS_VOLUMES,
            tls: None,
        }
    }
}

/// Reads `[api]`; relative paths are relative to `folder`.
pub(super) fn read_api(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> ApiConfig {
    let listen = section.get::<String>("listen", source).map_or(Some(DEFAULT_LISTEN), |Located { value, span }| {
        if value == LISTEN_NONE {
            return None;
        }
        let address = value.parse().ok();
        if address.is_none() {
            let fault = format!("\"{value}\" is not a listen address");
            let remedy = "write an address and a port, like \"127.0.0.1:7400\" or \"[::1]:7400\", or \"none\"";
            source.add_problem(&span, fault, remedy);
        }
        address
    });
    let names = section.get::<Vec<Located<String>>>("names", source).map_or(Vec::new(), |list| list.value);
    for Located { value, span } in &names {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        // An IPv6 address has at least two colons.
        let has_port = value.matches(':').count() == 1;
        if value.is_empty() || has_port || !value.chars().all(is_name) {
            let fault = format!("\"{value}\" is not a host name");
            source.add_problem(span, fault, "write a name or an address without a port, like \"cache.example\"");
        }
    }
    let names = names.into_iter().map(|name| name.value).collect();
    let metrics_volumes = section.get("metrics_volumes", source).map_or(DEFAULT_METRICS_VOLUMES, |count| count.value);
    ApiConfig { listen, names, metrics_volumes, tls: read_tls(section, folder, source) }
}

/// Reads the TLS files; `None` without the keys, and after a problem.
fn read_tls(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> Option<tls::Files> {
    let keys = ["tls_certificate", "tls_key"];
    if !keys.iter().any(|key| section.has(key)) {
        return None;
    }
    // A certificate without a key, or the reverse, is an error: it must not result in plain HTTP.
    let [certificate, key] = keys.map(|key| section.require::<String>(key, source).map(|text| folder.join(text.value)));
    Some(tls::Files { certificate: certificate?, key: key?, client_ca: None })
}
