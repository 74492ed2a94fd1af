//! Collects data of the daemon, of its files and of the machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{Client, ClientError};
use messages::report::EventsPage;
use messages::{Answer, Request, StatusReport, unix_time};

use super::found::Found;
use super::machine;
use config::Config;
use config::redact;
use config::{DEFAULT_CONFIG, control_socket};
use daemon::EVENTS_FOLDER;
use state::StateDir;

/// Time-out of each answer: a hung daemon may be the reason for the archive.
const PATIENCE: Duration = Duration::from_secs(15);
/// Volumes in the status at most.
const VOLUMES_MAX: usize = 1_000;
/// Volumes with their slow requests: the ones with the most requests.
const SLOW_VOLUMES: usize = 20;
/// Events at most, the newest.
const EVENTS_MAX: usize = 1_000;
/// Bytes of the configuration at most.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Collects all available data.
pub fn collect(named: Option<&Path>, config: Option<&Path>) -> Found {
    let mut found = Found::default();
    let read = config.and_then(|file| Config::load(file).ok());
    let socket = match (&read, named) {
        (Some(read), None) => read.control_socket.clone(),
        _ => control_socket(named),
    };
    let mut daemon = Daemon::connect(&socket, &mut found);
    let status = daemon.as_mut().and_then(|daemon| daemon.status(&mut found));
    if let (Some(daemon), Some(status)) = (&mut daemon, &status) {
        daemon.tell(status, &mut found);
    }
    let file = config.map(Path::to_owned).or_else(|| status.as_ref().map(|status| status.configuration.clone().into()));
    let file = file.unwrap_or_else(|| DEFAULT_CONFIG.into());
    let read = read.or_else(|| Config::load(&file).ok());
    add_configuration(&file, &mut found);
    match &read {
        Some(read) => add_state(&read.state_directory, status.is_none(), &mut found),
        None => found.miss("state.json", "the configuration does not say where, or has errors: `hotset check-config`"),
    }
    machine::add(status.as_ref().map(|status| status.pid), &mut found);
    machine::add_devices(&devices(status.as_ref(), read.as_ref()), &mut found);
    found
}

/// A connection to the daemon. After a time-out it is not used again, because a late answer would be taken for the
/// answer to another request.
struct Daemon {
    client: Client,
    is_silent: bool,
}

impl Daemon {
    fn connect(socket: &Path, found: &mut Found) -> Option<Daemon> {
        let client = Client::connect(socket).and_then(|client| client.with_timeout(PATIENCE));
        let daemon = client.map(|client| Daemon { client, is_silent: false });
        daemon.map_err(|error| found.miss("what the daemon tells", error.to_string())).ok()
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        if self.is_silent {
            return Err("the daemon had kept silent before".to_owned());
        }
        self.client.request(request, |_| ()).map_err(|error| {
            self.is_silent = matches!(error, ClientError::Broken { .. });
            error.to_string()
        })
    }

    /// Adds the daemon's answer, or the reason for its absence.
    fn add(&mut self, name: &'static str, request: &Request, found: &mut Found) {
        match self.ask(request) {
            Ok(Answer::History(history)) => found.add_json(name, &history),
            Ok(Answer::Events(page)) => found.add_json(name, &page),
            Ok(_) => found.miss(name, "the daemon answered something else"),
            Err(why) => found.miss(name, why),
        }
    }

    fn status(&mut self, found: &mut Found) -> Option<StatusReport> {
        let why = match self.ask(&Request::Status {}) {
            Ok(Answer::Status(status)) => return Some(*status),
            Ok(_) => "it answered something else".to_owned(),
            Err(why) => why,
        };
        found.miss("what the daemon tells", why);
        None
    }

    fn tell(&mut self, status: &StatusReport, found: &mut Found) {
        let mut shown = StatusReport { volumes: status.volumes.clone(), ..status.without_volumes() };
        if shown.volumes.len() > VOLUMES_MAX {
            found.miss(
                "status.json",
                format!("{} volumes of {}", shown.volumes.len() - VOLUMES_MAX, shown.volumes.len()),
            );
            shown.volumes.truncate(VOLUMES_MAX);
        }
        found.add_json("status.json", &shown);
        let now = unix_time::now().as_secs();
        for (name, back) in [("history-hour.json", 3_600), ("history-week.json", 7 * 86_400)] {
            let request = Request::History {
                volume: None,
                datastore: None,
                from_unix_seconds: Some(now.saturating_sub(back)),
                to_unix_seconds: None,
                step_seconds: None,
                series: Vec::new(),
            };
            self.add(name, &request, found);
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
        self.add("events.json", &events, found);
        self.tell_slow(status, found);
    }

    fn tell_slow(&mut self, status: &StatusReport, found: &mut Found) {
        let mut volumes: Vec<_> = status.volumes.iter().collect();
        volumes.sort_by_key(|volume| std::cmp::Reverse(volume.reads + volume.writes));
        let mut slow = serde_json::Map::new();
        for volume in volumes.into_iter().take(SLOW_VOLUMES) {
            // A refused volume has none.
            if let Ok(Answer::Slow(requests)) = self.ask(&Request::VolumeSlow { name: volume.name.clone() }) {
                slow.insert(volume.name.clone(), serde_json::json!(requests));
            }
        }
        if self.is_silent {
            found.miss("slow requests", format!("of {} volumes alone: the daemon kept silent", slow.len()));
        }
        found.add_json("slow.json", &slow);
    }
}

fn add_configuration(file: &Path, found: &mut Found) {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_string(&mut text));
    let shown = match read {
        Ok(_) => redact::configuration(&text),
        Err(error) => Err(error.to_string()),
    };
    match shown {
        Ok(shown) => found.add("configuration.toml", shown),
        Err(why) => found.miss("configuration.toml", format!("{}: {why}", file.display())),
    }
}

/// Adds the records of the state directory, and events if no daemon has answered.
fn add_state(directory: &Path, with_events: bool, found: &mut Found) {
    match StateDir::peek(directory) {
        Ok(Some(state)) => {
            let removed: Vec<_> = state.removed.keys().collect();
            let (stores, devices, volumes) = (&state.stores, &state.flash_devices, &state.volumes);
            let shown = serde_json::json!({
                "generation": state.generation, "stores": stores, "flash_devices": devices, "volumes": volumes,
                "removed": removed });
            found.add_json("state.json", &shown);
        }
        Ok(None) => found.miss("state.json", format!("there is none in {}", directory.display())),
        Err(error) => found.miss("state.json", error.to_string()),
    }
    if with_events {
        found.miss("history", "a daemon has to run to tell it");
        let events = events::read(&directory.join(EVENTS_FOLDER), EVENTS_MAX);
        if events.is_empty() {
            found.miss("events.json", format!("none can be read in {}", directory.join(EVENTS_FOLDER).display()));
        } else {
            found.add_json("events.json", &EventsPage { events: events.into_iter().rev().collect(), next: None });
        }
    }
}

/// Paths of all known backings and flash devices.
fn devices(status: Option<&StatusReport>, config: Option<&Config>) -> Vec<PathBuf> {
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
