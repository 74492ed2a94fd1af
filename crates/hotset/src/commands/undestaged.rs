//! `hotset undestaged`: lists volumes whose backings are not complete, with a daemon or without one. The package's
//! removal script runs it first.
//!
//! Two sources prove that a backing is complete: the records of a daemon that has ended, and the counters of a daemon
//! that serves. While a daemon starts or stops, neither is valid, so the command waits until the daemon ends or serves,
//! and fails if that takes too long. Every error gives a nonzero exit code.
//!
//! Without records, the superblocks of the configured flash devices distinguish a new installation from a lost state
//! directory. A daemon that refuses a volume has not proven its backing complete.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use control::Client;
use engine::VolumeId;
use messages::{Answer, Request, StatusReport, VolumeReport, VolumeState};
use serde_json::json;

use super::configured_stores::{absent, find_store, find_unclaimed_data, unclaimed_data};
use super::daemon::unexpected;
use config::DEFAULT_CONFIG;
use config::{Config, DEFAULT_SOCKET, socket_of_environment};
use state::{State, StateDir, StateError, may_lack_marks};
use terminal::{Failure, print_json};

/// Time-out for a daemon that starts or stops.
const TRANSITION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval while a daemon starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Remedy without a running daemon.
const START_AND_STOP: &str = "start the daemon again, then run `hotset stop --destage`; if it refuses a volume, \
                              resolve the refusal first: `hotset volume show NAME`; if a volume is no longer \
                              configured, list it again, or remove its record: `hotset volume remove NAME`";
/// Code of the refusal of a store with data of another state directory.
const STORE_FOREIGN: &str = "store-foreign";
/// Remedy for an absent device that may hold data of unknown volumes.
const ATTACH_DEVICE: &str = "attach the device; or, if it never had data of the volumes, remove it from [flash]";

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Configuration file with the state directory; default: the directory of the daemon at --socket, else
    /// /etc/hotset/hotset.toml
    #[arg(long)]
    config: Option<PathBuf>,
    /// The state directory itself
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "config")]
    state: Option<PathBuf>,
}

/// A state directory, and the socket of the daemon that may hold it.
struct Location {
    directory: PathBuf,
    socket: PathBuf,
    /// The configuration that names the directory, if it is known.
    config: Option<Box<Config>>,
}

impl Location {
    fn of_config(config: Config, socket: Option<&Path>) -> Location {
        let socket = socket.unwrap_or(&config.control_socket).to_owned();
        Location { directory: config.state_directory.clone(), socket, config: Some(Box::new(config)) }
    }

    /// The flash devices: the configured ones, or the list as changed by commands.
    fn flash_devices(&self, state: Option<&State>) -> Vec<PathBuf> {
        let flash = self.config.as_ref().and_then(|config| config.flash.as_ref());
        let configured = flash.map(|flash| flash.devices.clone()).unwrap_or_default();
        let changed = state.and_then(|state| state.flash_devices_by_command(&configured));
        changed.map(<[PathBuf]>::to_vec).unwrap_or(configured)
    }

    /// Remedy for a store with data of unknown volumes. A rebuild records these volumes; erased devices hold no data.
    fn rebuild_remedy(&self) -> String {
        let file = self.config.as_ref().map_or("FILE".to_owned(), |config| config.file.display().to_string());
        format!(
            "restore the state directory that was used last, or rebuild its records from the flash devices while no \
             daemon runs: `hotset state rebuild --config {file}`; or, to discard the data, erase the devices \
             (blkdiscard -z for a device, rm and touch for a file)"
        )
    }

    /// Evidence, as text with a remedy, that flash devices may have data of volumes which `state` does not know: it
    /// knows no store, and a device carries one, cannot be read, or is absent. A start would refuse these volumes.
    fn unknown_flash_data(&self, state: &State) -> Result<Option<(String, String)>, Failure> {
        let flash = self.config.as_ref().and_then(|config| config.flash.as_ref());
        let Some(flash) = flash.filter(|_| state.stores.is_empty()) else { return Ok(None) };
        let devices = self.flash_devices(Some(state));
        if let Some(evidence) = find_store(&devices)? {
            return Ok(Some((evidence, self.rebuild_remedy())));
        }
        let absent = absent(&devices).find(|path| flash.create_bytes(path).is_none());
        Ok(absent.map(|path| (format!("flash device {} is absent", path.display()), ATTACH_DEVICE.to_owned())))
    }

    /// True if a configured volume has no record in `state`.
    fn has_new_volume(&self, state: &State) -> bool {
        let mut volumes = self.config.iter().flat_map(|config| &config.volumes);
        volumes.any(|volume| state.by_name(&volume.name).is_none())
    }
}

/// The volumes whose backings are not complete, and the remedy. `unproven` is the reason why the list may lack some.
#[derive(Default)]
struct Undestaged {
    names: BTreeSet<String>,
    unproven: Option<String>,
    remedy: String,
}

/// Prints the volumes; fails if there are any, or if the list may be incomplete.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    // A configuration or state directory in the options overrides the environment.
    let is_default = options.config.is_none() && options.state.is_none();
    let socket = socket.map(Path::to_owned).or_else(|| socket_of_environment().filter(|_| is_default));
    let result = wait_for_result(&locate(socket.as_deref(), options)?)?;
    if json {
        print_json(&json!({ "undestaged": result.names }))?;
    } else {
        result.names.iter().for_each(|name| println!("{name}"));
    }
    let finding = match (result.names.len(), result.unproven) {
        (0, None) => return Ok(()),
        (_, Some(reason)) => reason,
        (1, None) => "the backing of 1 volume is not complete".to_owned(),
        (count, None) => format!("the backings of {count} volumes are not complete"),
    };
    Err(Failure::failed(format!("{finding}; {}", result.remedy)))
}

/// Location of the state directory: from the options, else from the daemon at the given socket, else from the default
/// configuration.
fn locate(socket: Option<&Path>, options: &Options) -> Result<Location, Failure> {
    if let Some(directory) = &options.state {
        if !directory.is_dir() {
            let text = format!(
                "{} is not a directory; specify the directory of [state] in the configuration",
                directory.display()
            );
            return Err(Failure::failed(text));
        }
        let socket = socket.unwrap_or(Path::new(DEFAULT_SOCKET)).to_owned();
        return Ok(Location { directory: directory.clone(), socket, config: None });
    }
    let load = |file: &Path| Config::load_settings(file).map_err(|problems| Failure::usage(problems.to_string()));
    match (&options.config, socket) {
        (Some(file), _) => Ok(Location::of_config(load(file)?, socket)),
        (None, None) => Ok(Location::of_config(load(Path::new(DEFAULT_CONFIG))?, None)),
        (None, Some(socket)) => locate_by_socket(socket),
    }
}

/// The state directory of the daemon at `socket`. If no daemon answers, the state directory of the default
/// configuration, if that configuration names this socket.
fn locate_by_socket(socket: &Path) -> Result<Location, Failure> {
    match fetch_status(socket).map(|status| (status.state_directory, status.configuration)) {
        Ok((Some(directory), configuration)) => {
            let config = Config::load_settings(Path::new(&configuration)).ok().map(Box::new);
            Ok(Location { directory: directory.into(), socket: socket.to_owned(), config })
        }
        Ok((None, _)) => Err(Failure::failed(
            "the daemon is of an older version and does not report its state directory; specify it with --state",
        )),
        Err(failure) => {
            let config = Config::load_settings(Path::new(DEFAULT_CONFIG)).ok();
            let config = config.filter(|config| config.control_socket == socket).ok_or_else(|| {
                let text = failure.message;
                Failure::failed(format!(
                    "{text}; without a daemon, give the state directory with --state or the configuration with --config"
                ))
            })?;
            Ok(Location::of_config(config, None))
        }
    }
}

fn wait_for_result(location: &Location) -> Result<Undestaged, Failure> {
    let deadline = Instant::now() + TRANSITION_TIMEOUT;
    loop {
        if let Some(result) = try_check(location, Instant::now() >= deadline)? {
            return Ok(result);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Checks once. `None` while a daemon starts or stops, unless this is the last check.
fn try_check(location: &Location, is_last: bool) -> Result<Option<Undestaged>, Failure> {
    let Location { directory, socket, .. } = location;
    let failed = |error: StateError| Failure::failed(error.to_string());
    // Read-only, so that a check creates no state directory.
    let Some(recorded) = StateDir::peek(directory).map_err(failed)? else {
        if StateDir::was_ever_locked(directory) {
            let text = "a daemon has used this state directory, but state.json is missing: the state of its volumes \
                        is unknown; restore state.json from a backup";
            return Err(Failure::failed(format!("{}: {text}", directory.display())));
        }
        return check_without_records(location).map(Some);
    };
    let holder = match StateDir::open(directory) {
        Ok(state) => {
            let names = undestaged(state.state(), &[]);
            let devices = location.flash_devices(Some(state.state()));
            let unproven = match state.state().older_than.is_some() {
                true => Some(format!("the state directory {} is an older copy", directory.display())),
                false => find_unclaimed_data(&devices, state.state())?,
            };
            let unknown = match location.has_new_volume(state.state()) {
                true => location.unknown_flash_data(state.state())?,
                false => None,
            };
            let (unproven, remedy) = match (unproven, unknown) {
                (Some(unproven), _) => (Some(unproven), location.rebuild_remedy()),
                (None, Some((evidence, remedy))) => (Some(format!("{evidence}, and volumes have no records")), remedy),
                (None, None) => (None, START_AND_STOP.to_owned()),
            };
            return Ok(Some(Undestaged { names, unproven, remedy }));
        }
        Err(StateError::Locked { holder, .. }) => holder,
        Err(error) => return Err(failed(error)),
    };
    let (reason, remedy) = match fetch_status(socket) {
        Ok(status) if holder.parse().is_ok_and(|holder: u32| holder != status.pid) => {
            let text = format!(
                "the daemon at {} (process {}) does not hold {}, which process {holder} holds; specify the socket of \
                 that process with --socket",
                socket.display(),
                status.pid,
                directory.display()
            );
            return Err(Failure::failed(text));
        }
        Ok(status) if status.starting => {
            (format!("the daemon (process {}) is starting", status.pid), "run the command again when it serves")
        }
        Ok(status) if !status.stopping => {
            let names = undestaged_while_serving(&recorded, &status);
            let foreign = status.flash.as_ref().and_then(|flash| flash.refusal.as_deref()) == Some(STORE_FOREIGN);
            let store = recorded.unclaimed.iter().next_back().filter(|_| foreign);
            let unclaimed = status.flash.as_ref().filter(|flash| flash.unclaimed > 0 && names.is_empty());
            let unproven = store.or(unclaimed.map(|flash| &flash.store)).map(|store| unclaimed_data(store));
            let is_rebuilt = unproven.is_some() && names.is_empty();
            let remedy = if is_rebuilt { location.rebuild_remedy() } else { remedy_while_serving(&names, &status) };
            return Ok(Some(Undestaged { names, unproven, remedy }));
        }
        Ok(status) => {
            (format!("the daemon (process {}) is stopping", status.pid), "run the command again after it has ended")
        }
        Err(failure) if is_last => return Err(failure),
        // The daemon may not listen yet, or may have closed its socket. The lock shows when it has ended.
        Err(_) => return Ok(None),
    };
    Ok(is_last.then(|| Undestaged {
        names: undestaged(&recorded, &[]),
        unproven: Some(reason),
        remedy: remedy.to_owned(),
    }))
}

/// Checks a state directory that is missing or empty: it is that of a new installation only if no daemon uses it and no
/// configured flash device carries a store.
fn check_without_records(location: &Location) -> Result<Undestaged, Failure> {
    let Location { directory, socket, .. } = location;
    let shown = directory.display();
    let finding = if directory.exists() { "has no records" } else { "does not exist" };
    let unknown = |evidence: String, remedy: &str| {
        let text = format!("the state directory {shown} {finding}, but {evidence}: it is unknown which volumes have");
        Err(Failure::failed(format!("{text} dirty data there; {remedy}")))
    };
    let status = fetch_status(socket).ok();
    let is_used =
        |status: &StatusReport| status.state_directory.as_ref().is_some_and(|used| Path::new(used) == directory);
    if let Some(status) = status.filter(|status| is_used(status)) {
        let text = format!("a daemon (process {}) uses it", status.pid);
        return unknown(text, "run `hotset volume flush NAME` for each volume before the daemon ends");
    }
    match location.unknown_flash_data(&State::default())? {
        Some((evidence, remedy)) => unknown(evidence, &remedy),
        None => Ok(Undestaged::default()),
    }
}

/// The daemon's status. It reads `stopping` after its volumes, so `stopping` false means that the volumes' counters are
/// valid.
fn fetch_status(socket: &Path) -> Result<Box<StatusReport>, Failure> {
    let failed = |error: control::ClientError| Failure::failed(error.to_string());
    let mut client = Client::connect(socket).and_then(|client| client.with_timeout(ANSWER_TIMEOUT)).map_err(failed)?;
    match client.request(&Request::Status {}, |_| ()).map_err(failed)? {
        Answer::Status(status) => Ok(status),
        _ => Err(unexpected()),
    }
}

/// The volumes with dirty data, the volumes of data cores that do not answer, whose counters are unknown, and refused
/// volumes whose dirty data the records may lack.
fn undestaged_while_serving(state: &State, status: &StatusReport) -> BTreeSet<String> {
    let is_reported = |core: usize| status.cores.iter().any(|report| report.core == core);
    let unknown = status.volumes.iter().filter(|volume| !volume.volume_id.is_empty() && !is_reported(volume.core));
    let mut names = undestaged(state, &status.volumes);
    names.extend(unknown.map(|volume| volume.name.clone()));
    let is_unmarked = |volume: &&VolumeReport| volume.refusal.as_deref().is_some_and(may_lack_marks);
    names.extend(status.volumes.iter().filter(is_unmarked).map(|volume| volume.name.clone()));
    names
}

/// Remedy beside a daemon that serves. A destage needs a served volume.
fn remedy_while_serving(names: &BTreeSet<String>, status: &StatusReport) -> String {
    let state_of = |name: &String| {
        let volume = status.volumes.iter().find(|volume| volume.name == *name);
        volume.map(|volume| volume.state)
    };
    let listed =
        |is_listed: fn(Option<VolumeState>) -> bool| names.iter().filter(move |name| is_listed(state_of(name)));
    let mut remedies = Vec::new();
    for name in listed(|state| state == Some(VolumeState::Refused)) {
        remedies.push(format!("resolve the refusal: `hotset volume show {name}`"));
    }
    for name in listed(|state| state == Some(VolumeState::Standby)) {
        remedies
            .push(format!("{name} is on standby: run `hotset fleet move {name}` on its owner (`hotset fleet status`)"));
    }
    for name in listed(|state| state.is_none()) {
        remedies.push(format!("{name} is not in the configuration: add it again"));
    }
    let is_served = |state: VolumeState| !matches!(state, VolumeState::Refused | VolumeState::Standby);
    if names.iter().filter_map(state_of).any(is_served) || remedies.is_empty() {
        remedies.push("run `hotset stop --destage`".to_owned());
    }
    remedies.join("; ")
}

/// The served volumes with dirty data, and the other volumes with records in the flash log or without a clean stop.
pub(super) fn undestaged(state: &State, served: &[VolumeReport]) -> BTreeSet<String> {
    let dirty = served.iter().filter(|volume| volume.dirty_bytes + volume.written_bytes + volume.flash_dirty_bytes > 0);
    let is_served = |volume_id: VolumeId| served.iter().any(|volume| volume.volume_id == format!("{volume_id:016x}"));
    let incomplete = state.incomplete_outside(is_served);
    dirty.map(|volume| volume.name.clone()).chain(incomplete.map(|volume| volume.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use messages::VolumeState;

    use super::*;
    use state::VolumeRecord;

    fn record(volume_id: VolumeId, name: &str, clean: bool, on_flash: bool) -> VolumeRecord {
        VolumeRecord {
            volume_id,
            name: name.to_owned(),
            backing_identity: String::new(),
            clean,
            dirty_on_flash: on_flash.then(|| "0".repeat(32)),
            generation: 1,
            ..VolumeRecord::default()
        }
    }

    fn served(volume_id: VolumeId, name: &str) -> VolumeReport {
        let volume_id = format!("{volume_id:016x}");
        VolumeReport { volume_id, ..VolumeReport::idle(name, VolumeState::Active, "write-back", "/dev/sdb") }
    }

    fn names(state: &State, served: &[VolumeReport]) -> Vec<String> {
        undestaged(state, served).into_iter().collect()
    }

    #[test]
    fn served_volumes_are_checked_by_dirty_data_others_by_records() {
        let volumes = vec![
            record(VolumeId(1), "whole", true, false),
            record(VolumeId(2), "killed", false, false),
            record(VolumeId(3), "left-on-flash", true, true),
            record(VolumeId(4), "idle", false, true),
        ];
        let state = State { volumes, ..State::default() };
        assert_eq!(names(&state, &[]), ["idle", "killed", "left-on-flash"]);
        // While a volume is served its dirty marks are set in any case. A refused volume is not served.
        let refused = VolumeReport::idle("left-on-flash", VolumeState::Refused, "write-back", "/dev/sdb");
        assert_eq!(
            names(&state, &[served(VolumeId(4), "idle"), served(VolumeId(2), "killed"), refused]),
            ["left-on-flash"]
        );
        for counter in 0..3 {
            let mut busy = served(VolumeId(4), "idle");
            *[&mut busy.dirty_bytes, &mut busy.written_bytes, &mut busy.flash_dirty_bytes][counter] = 4096;
            assert_eq!(
                names(&state, &[busy, served(VolumeId(2), "killed"), served(VolumeId(3), "left-on-flash")]),
                ["idle"]
            );
        }
    }

    #[test]
    fn volumes_of_a_core_without_a_report_are_incomplete() {
        let state = State { volumes: vec![record(VolumeId(1), "a", false, false)], ..State::default() };
        let answering = messages::report::CoreReport::default();
        let status = |cores| StatusReport { cores, volumes: vec![served(VolumeId(1), "a")], ..StatusReport::default() };
        assert_eq!(undestaged_while_serving(&state, &status(vec![answering])), BTreeSet::new());
        assert_eq!(undestaged_while_serving(&state, &status(Vec::new())), BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn refused_volume_without_a_record_is_incomplete() {
        let refused = |name: &str, code: Option<&str>| VolumeReport {
            refusal: code.map(str::to_owned),
            ..VolumeReport::idle(name, VolumeState::Refused, "write-back", "/dev/sdb")
        };
        let volumes = vec![
            refused("unclaimed", Some("data-unclaimed")),
            refused("hung", Some("backing-hung")),
            refused("absent", None),
        ];
        let status = StatusReport { volumes, ..StatusReport::default() };
        let names = undestaged_while_serving(&State::default(), &status);
        assert_eq!(names, BTreeSet::from(["unclaimed".to_owned()]));
        assert_eq!(remedy_while_serving(&names, &status), "resolve the refusal: `hotset volume show unclaimed`");
    }

    #[test]
    fn used_state_directory_without_records_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        let location = |directory: &Path| Location {
            directory: directory.to_owned(),
            socket: directory.join("none.sock"),
            config: None,
        };
        let fresh = wait_for_result(&location(&folder.path().join("never-used"))).map_err(|failure| failure.message);
        assert_eq!(fresh.map(|result| result.names), Ok(BTreeSet::new()));
        drop(StateDir::open(folder.path()).expect("the directory is new"));
        let lost = wait_for_result(&location(folder.path())).err().expect("the records are missing").message;
        assert!(lost.contains("state.json is missing"), "{lost}");
        std::fs::write(folder.path().join("state.json"), "{").expect("the file can be written");
        let damaged = wait_for_result(&location(folder.path())).err().expect("the records are damaged").message;
        assert!(damaged.contains("is damaged"), "{damaged}");
    }
}
