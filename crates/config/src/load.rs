//! Parsing of the file's text into a [`Config`] or the list of its problems.

use std::path::{Path, PathBuf};
use std::time::Duration;

use seam::Address;
use seam::real::PATH_TIMEOUT;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::alerts::read_alerts;
use super::api::read_api;
use super::backing::split_host_port;
use super::flash::read_flash;
use super::fleet::read_fleet;
use super::history::read_history;
use super::iscsi::read_iscsi;
use super::log::read_log;
use super::look_up::LookUps;
use super::pools::{check_pool_devices, read_pools};
use super::problem::Source;
use super::qos::{read_datastores, read_rules};
use super::read::{Located, Section, Setting, Size, ValueError, check_tables};
use super::socket::{read_group, read_owner, read_socket_mode};
use super::vhost_user::read_vhost_user;
use super::volumes::{read_arrays, read_volumes};
use super::written::Written;
use super::{
    Config, Cores, DEFAULT_SOCKET, KeepIn, MEMORY_MAX_BYTES, MEMORY_MIN_BYTES, NbdConfig, Problems, TlsConfig, TlsMode,
};
use units::show_bytes;

const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
const DEFAULT_NBD_SOCKET: &str = "/run/hotset/nbd.sock";
const DEFAULT_STATE_DIRECTORY: &str = "/var/lib/hotset";

impl Config {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<Config, Problems> {
        Config::load_within(file, PATH_TIMEOUT)
    }

    /// Reads `file` without touching the paths in it, for a command that needs only its settings.
    pub fn load_settings(file: &Path) -> Result<Config, Problems> {
        Config::load_within(file, Duration::ZERO)
    }

    /// Reads and checks `file`. A backing or flash device that has not answered for `limit` counts as hung. With a
    /// limit of zero, no path is looked up.
    pub fn load_within(file: &Path, limit: Duration) -> Result<Config, Problems> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let remedy = "specify a file that exists and that this user may read";
            Problems::of_file(file, format!("cannot be read: {error}"), remedy)
        })?;
        Config::parse_within(file, &text, limit)
    }

    /// Parses `text` as the content of `file`; relative paths are relative to the file's folder.
    pub fn parse(file: &Path, text: &str) -> Result<Config, Problems> {
        Config::parse_within(file, text, PATH_TIMEOUT)
    }

    fn parse_within(file: &Path, text: &str, limit: Duration) -> Result<Config, Problems> {
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let folder = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let mut source = Source::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            source.add_problem(
                &span,
                format!("not TOML: {}", error.message()),
                "correct the line; text values stand in quotes",
            );
        }
        let config = match errors.is_empty() {
            true => {
                let look_ups = LookUps::of(root.get_ref(), &folder, limit);
                read_config(&root, file, (&folder, &look_ups), text, &mut source)
            }
            false => None,
        };
        let problems = source.into_problems();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            config => {
                let mut problems = problems;
                problems.extend(config.into_iter().flat_map(|config| config.backing_problems));
                problems.sort_by_key(|problem| (problem.line, problem.column));
                Err(Problems { file: file.to_owned(), problems })
            }
        }
    }
}

/// Reads all tables; problems are added to `source`.
fn read_config(
    root: &Spanned<DeTable<'_>>,
    file: &Path,
    (folder, look_ups): (&Path, &LookUps),
    text: &str,
    source: &mut Source<'_>,
) -> Option<Config> {
    let table = root.get_ref();
    check_tables(table, source);
    let cores = Section::top(root).get("cores", source).map_or(Cores::Auto, |cores| cores.value);
    let state_directory =
        read_path(&Section::single(table, "state", source), "directory", DEFAULT_STATE_DIRECTORY, folder, source);
    let control_socket =
        read_path(&Section::single(table, "control", source), "socket", DEFAULT_SOCKET, folder, source);
    let memory = Section::single(table, "memory", source);
    let memory_bytes = read_memory(&memory, source);
    let flash = read_flash(&Section::single(table, "flash", source), folder, look_ups, source);
    let keep_in = read_keep_in(&memory, folder, source);
    let api = read_api(&Section::single(table, "api", source), folder, source);
    let history = read_history(&Section::single(table, "history", source), source);
    let alerts = read_alerts(&Section::single(table, "alerts", source), folder, source);
    let log = read_log(&Section::single(table, "log", source), source);
    let nbd = read_nbd(&Section::single(table, "nbd", source), folder, source);
    let iscsi = read_iscsi(&Section::single(table, "iscsi", source), folder, source);
    let vhost_user = read_vhost_user(&Section::single(table, "vhost_user", source), folder, source);
    let fleet = read_fleet(&Section::single(table, "fleet", source), folder, source);
    let arrays = read_arrays(&Section::repeated(table, "array", source), source);
    let sections_of_pools = Section::repeated(table, "pool", source);
    let pools = read_pools(&sections_of_pools, folder, source);
    let datastores = read_datastores(&Section::repeated(table, "datastore", source), source);
    let qos = read_rules(&Section::repeated(table, "qos", source), source);
    let sections = Section::repeated(table, "volume", source);
    let volumes =
        read_volumes(&sections, (folder, look_ups), (&arrays, &pools), (&datastores, &qos), memory_bytes, source);
    check_pool_devices(&sections_of_pools, &pools, flash.as_ref(), &volumes, source);
    let file = file.to_owned();
    let backing_problems = source.take_backing_problems();
    Some(Config {
        file,
        backing_problems,
        cores,
        state_directory,
        memory_bytes,
        keep_in,
        flash,
        control_socket,
        api,
        history,
        alerts,
        log,
        nbd,
        iscsi,
        vhost_user,
        fleet,
        arrays,
        pools,
        datastores,
        qos,
        volumes,
        written: Written::of(text),
    })
}

/// Reads a path, which is relative to `folder`.
fn read_path(
    section: &Section<'_>,
    key: &'static str,
    default: &str,
    folder: &Path,
    source: &mut Source<'_>,
) -> PathBuf {
    section.get::<String>(key, source).map_or(PathBuf::from(default), |text| folder.join(text.value))
}

fn read_memory(section: &Section<'_>, source: &mut Source<'_>) -> u64 {
    let Some(Located { value: Size(bytes), span }) = section.get("size", source) else { return DEFAULT_MEMORY_BYTES };
    if bytes < MEMORY_MIN_BYTES {
        let fault = format!("{} of memory is too small to work with", show_bytes(bytes));
        source.add_problem(&span, fault, format!("specify at least {}", show_bytes(MEMORY_MIN_BYTES)));
    }
    let max = machine_bytes().map_or(MEMORY_MAX_BYTES, |machine| machine.min(MEMORY_MAX_BYTES));
    if bytes > max {
        let fault =
            format!("{} of memory is more than this machine can give, which is {}", show_bytes(bytes), show_bytes(max));
        source.add_problem(&span, fault, "specify less, so that the system keeps some".to_owned());
    }
    bytes
}

fn read_keep_in(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> KeepIn {
    let Some(Located { value, .. }) = section.get::<String>("keep_in", source) else { return KeepIn::Auto };
    match value.as_str() {
        "auto" => KeepIn::Auto,
        "none" => KeepIn::Nowhere,
        directory => KeepIn::Directory(folder.join(directory)),
    }
}

/// Bytes of the machine's memory; `None` if `/proc/meminfo` cannot be read.
fn machine_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl Setting for Cores {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        const EXPECTED: ValueError = ValueError::Type("\"auto\" or a list of processor numbers");
        if let Some(text) = value.as_str() {
            return if text == "auto" { Ok(Cores::Auto) } else { Err(EXPECTED) };
        }
        let entries = value.as_array().ok_or(EXPECTED)?.iter();
        let mut list: Vec<u32> = entries.map(|entry| u32::read(entry.get_ref())).collect::<Result<_, _>>()?;
        let count = list.len();
        list.sort_unstable();
        list.dedup();
        if list.is_empty() || list.len() < count {
            let fault = if list.is_empty() { "no processor is specified" } else { "a processor is specified twice" };
            return Err(ValueError::Value(
                fault.to_owned(),
                "specify each processor once, or write \"auto\"".to_owned(),
            ));
        }
        match list.iter().find(|core| **core >= 1024) {
            Some(core) => Err(ValueError::Value(
                format!("there is no processor {core}"),
                "processors are numbered from 0; `nproc` says how many there are".to_owned(),
            )),
            None => Ok(Cores::List(list)),
        }
    }
}

impl Setting for TlsMode {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        match value.as_str() {
            Some("off") => Ok(TlsMode::Off),
            Some("allowed") => Ok(TlsMode::Allowed),
            Some("required") => Ok(TlsMode::Required),
            _ => Err(ValueError::Type("\"off\", \"allowed\" or \"required\"")),
        }
    }
}

fn read_nbd(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> NbdConfig {
    let listen = match section.get::<Vec<Located<String>>>("listen", source) {
        None => vec![Address::Unix(DEFAULT_NBD_SOCKET.into())],
        Some(list) => {
            let mut listen = Vec::new();
            for Located { value, span } in &list.value {
                match parse_listen(value, folder) {
                    Ok(address) if listen.contains(&address) => {
                        source.add_problem(span, format!("\"{value}\" is listed twice"), "remove one of them");
                    }
                    Ok(address) => listen.push(address),
                    Err((fault, remedy)) => source.add_problem(span, fault, remedy),
                }
            }
            listen
        }
    };
    let (socket_owner, socket_mode) = (read_owner(section, source), read_socket_mode(section, source));
    let socket_group = read_group(section, source);
    NbdConfig { listen, socket_owner, socket_group, socket_mode, tls: read_tls(section, folder, source) }
}

fn read_tls(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> Option<TlsConfig> {
    let mode = section.get::<TlsMode>("tls", source);
    let mut file = |key| Some(folder.join(section.get::<String>(key, source)?.value));
    let (certificate, key, client_ca) = (file("tls_certificate"), file("tls_key"), file("tls_client_ca"));
    let Located { value: mode, span } = mode?;
    if mode == TlsMode::Off {
        return None;
    }
    if certificate.is_none() || key.is_none() {
        let remedy = "add tls_certificate = \"…\" and tls_key = \"…\"";
        source.add_problem(&span, "TLS needs a certificate and its key", remedy);
    }
    let files = tls::Files { certificate: certificate?, key: key?, client_ca };
    Some(TlsConfig { required: mode == TlsMode::Required, files })
}

fn parse_listen(text: &str, folder: &Path) -> Result<Address, (String, String)> {
    let wrong = |detail: &str| {
        let remedy = "write it like \"unix:/run/hotset/nbd.sock\" or \"tcp:127.0.0.1:10809\"".to_owned();
        (format!("\"{text}\" is not a listen address{detail}"), remedy)
    };
    if let Some(path) = text.strip_prefix("unix:") {
        let path = folder.join(path);
        // The kernel limits a socket's path to 108 bytes, its terminating zero included.
        return match path.as_os_str().len() {
            _ if text == "unix:" => Err(wrong("")),
            108.. => Err(wrong(": the path is longer than 107 bytes")),
            _ => Ok(Address::Unix(path)),
        };
    }
    let address = text.strip_prefix("tcp:").ok_or_else(|| wrong(""))?;
    split_host_port(address, None).map(|(host, port)| Address::Tcp(host, port)).map_err(|_| wrong(""))
}
