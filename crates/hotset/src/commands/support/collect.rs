//! Collects data of the daemon, of its files and of the machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{Client, ClientError};
use messages::report::EventsPage;
use messages::{Answer, Request, StatusReport, unix_time};

use super::archive::Archive;
use super::machine;
use config::Config;
use config::redact;
use config::{DEFAULT_CONFIG, control_socket};
use daemon::EVENTS_DIRECTORY;
use state::StateDir;

/// Time-out of each answer: a hung daemon may be the reason for the archive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of volumes in the status.
const VOLUMES_MAX: usize = 1_000;
/// Maximum number of volumes whose slow requests are collected: the volumes with the most requests.
const SLOW_VOLUMES_MAX: usize = 20;
/// Maximum number of events, the newest.
const EVENTS_MAX: usize = 1_000;
/// Maximum size of the configuration, in bytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Collects all available data.
pub fn collect(socket: Option<&Path>, config: Option<&Path>) -> Archive {
    let mut archive = Archive::default();
    let settings = config.and_then(|file| Config::load_settings(file).ok());
    let socket = match (&settings, socket) {
        (Some(settings), None) => settings.control_socket.clone(),
        _ => control_socket(socket),
    };
    let mut daemon = Daemon::connect(&socket, &mut archive);
    let status = daemon.as_mut().and_then(|daemon| daemon.status(&mut archive));
    if let (Some(daemon), Some(status)) = (&mut daemon, &status) {
        daemon.add_all(status, &mut archive);
    }
    let file = config.map(Path::to_owned).or_else(|| status.as_ref().map(|status| status.configuration.clone().into()));
    let file = file.unwrap_or_else(|| DEFAULT_CONFIG.into());
    let settings = settings.or_else(|| Config::load_settings(&file).ok());
    add_configuration(&file, &mut archive);
    match &settings {
        Some(settings) => add_state(&settings.state_directory, status.is_none(), &mut archive),
        None => archive.add_missing(
            "state.json",
            "the state directory is unknown, because the configuration cannot be loaded: run `hotset check-config`",
        ),
    }
    machine::add(status.as_ref().map(|status| status.pid), &mut archive);
    machine::add_devices(&device_paths(status.as_ref(), settings.as_ref()), &mut archive);
    archive
}

/// A connection to the daemon. After a time-out it is not used again, because a late answer would be taken for the
/// answer to another request.
struct Daemon {
    client: Client,
    has_timed_out: bool,
}

impl Daemon {
    fn connect(socket: &Path, archive: &mut Archive) -> Option<Daemon> {
        let client = Client::connect(socket).and_then(|client| client.with_timeout(ANSWER_TIMEOUT));
        let daemon = client.map(|client| Daemon { client, has_timed_out: false });
        daemon.map_err(|error| archive.add_missing("data from the daemon", error.to_string())).ok()
    }

    fn request(&mut self, request: &Request) -> Result<Answer, String> {
        if self.has_timed_out {
            return Err("an earlier request timed out".to_owned());
        }
        self.client.request(request, |_| ()).map_err(|error| {
            self.has_timed_out = matches!(error, ClientError::Broken { .. });
            error.to_string()
        })
    }

    /// Adds the daemon's answer, or the reason for its absence.
    fn add(&mut self, name: &'static str, request: &Request, archive: &mut Archive) {
        match self.request(request) {
            Ok(Answer::History(history)) => archive.add_json(name, &history),
            Ok(Answer::Events(page)) => archive.add_json(name, &page),
            Ok(_) => archive.add_missing(name, "unexpected reply from the daemon"),
            Err(reason) => archive.add_missing(name, reason),
        }
    }

    /// The daemon's status; `None` if it does not answer.
    fn status(&mut self, archive: &mut Archive) -> Option<StatusReport> {
        let reason = match self.request(&Request::Status {}) {
            Ok(Answer::Status(status)) => return Some(*status),
            Ok(_) => "unexpected reply from the daemon".to_owned(),
            Err(reason) => reason,
        };
        archive.add_missing("data from the daemon", reason);
        None
    }

    fn add_all(&mut self, status: &StatusReport, archive: &mut Archive) {
        let mut shown = StatusReport { volumes: status.volumes.clone(), ..status.without_volumes() };
        if shown.volumes.len() > VOLUMES_MAX {
            archive.add_missing(
                "status.json",
                format!("{} volumes of {}", shown.volumes.len() - VOLUMES_MAX, shown.volumes.len()),
            );
            shown.volumes.truncate(VOLUMES_MAX);
        }
        archive.add_json("status.json", &shown);
        let now = unix_time::now().as_secs();
        for (name, seconds_back) in [("history-hour.json", 3_600), ("history-week.json", 7 * 86_400)] {
            let request = Request::History {
                volume: None,
                datastore: None,
                pool: None,
                from_unix_seconds: Some(now.saturating_sub(seconds_back)),
                to_unix_seconds: None,
                step_seconds: None,
                series: Vec::new(),
            };
            self.add(name, &request, archive);
        }
        let events = Request::Events {
            limit: EVENTS_MAX as u32,
            before: None,
            after: None,
            since_unix_seconds: None,
            until_unix_seconds: None,
            subject: None,
            kind: None,
        };
        self.add("events.json", &events, archive);
        self.add_slow_requests(status, archive);
    }

    fn add_slow_requests(&mut self, status: &StatusReport, archive: &mut Archive) {
        let mut volumes: Vec<_> = status.volumes.iter().collect();
        volumes.sort_by_key(|volume| std::cmp::Reverse(volume.reads + volume.writes));
        let mut slow = serde_json::Map::new();
        for volume in volumes.into_iter().take(SLOW_VOLUMES_MAX) {
            // A refused volume has no slow requests.
            if let Ok(Answer::Slow(requests)) = self.request(&Request::VolumeSlow { name: volume.name.clone() }) {
                slow.insert(volume.name.clone(), serde_json::json!(requests));
            }
        }
        if self.has_timed_out {
            archive.add_missing("slow requests", format!("only of {} volumes: a request timed out", slow.len()));
        }
        archive.add_json("slow.json", &slow);
    }
}

fn add_configuration(file: &Path, archive: &mut Archive) {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_string(&mut text));
    let shown = match read {
        Ok(_) => redact::configuration(&text),
        Err(error) => Err(error.to_string()),
    };
    match shown {
        Ok(shown) => archive.add("configuration.toml", shown),
        Err(reason) => archive.add_missing("configuration.toml", format!("{}: {reason}", file.display())),
    }
}

/// Adds the records of the state directory, and events if no daemon has answered.
fn add_state(directory: &Path, with_events: bool, archive: &mut Archive) {
    match StateDir::peek(directory) {
        Ok(Some(state)) => {
            let removed: Vec<_> = state.removed.keys().collect();
            let (stores, devices, volumes) = (&state.stores, &state.flash_devices, &state.volumes);
            let shown = serde_json::json!({
                "generation": state.generation, "stores": stores, "flash_devices": devices, "volumes": volumes,
                "removed": removed });
            archive.add_json("state.json", &shown);
        }
        Ok(None) => archive.add_missing("state.json", format!("there is none in {}", directory.display())),
        Err(error) => archive.add_missing("state.json", error.to_string()),
    }
    if with_events {
        archive.add_missing("history", "available only from a running daemon");
        let events = events::read(&directory.join(EVENTS_DIRECTORY), EVENTS_MAX);
        if events.is_empty() {
            archive.add_missing(
                "events.json",
                format!("no readable events in {}", directory.join(EVENTS_DIRECTORY).display()),
            );
        } else {
            archive.add_json("events.json", &EventsPage { events: events.into_iter().rev().collect(), next: None });
        }
    }
}

/// Paths of all known backings and flash devices.
fn device_paths(status: Option<&StatusReport>, config: Option<&Config>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    if let Some(status) = status {
        let flash =
            status.flash.iter().flat_map(|flash| flash.devices.iter().map(|device| device.device.clone().into()));
        paths.extend(flash);
        paths.extend(status.volumes.iter().map(|volume| volume.backing.clone().into()));
    } else if let Some(config) = config {
        paths.extend(config.flash.iter().flat_map(|flash| flash.devices.iter().cloned()));
        paths.extend(config.volumes.iter().map(|volume| volume.backing.to_string().into()));
    }
    paths.retain(|path| path.is_absolute());
    paths
}
