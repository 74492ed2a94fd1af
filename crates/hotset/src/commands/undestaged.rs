//! `hotset undestaged`: whose backings are not complete, with a daemon or without one. What removes the program asks this first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use control::{Answer, Request, VolumeReport};
use serde_json::json;

use super::daemon::{ask, unexpected};
use crate::cli::{Failure, print_json};
use crate::config::{Config, DEFAULT_SOCKET};
use state::{State, StateDir, StateError};

/// Where to look.
#[derive(Args)]
pub struct Options {
    /// The configuration that names the state directory
    #[arg(long, default_value = "/etc/hotset/hotset.toml")]
    config: PathBuf,
    /// The state directory itself
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "config")]
    state: Option<PathBuf>,
}

/// Prints the volumes, and fails if there are any.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    let (directory, socket) = match &options.state {
        Some(directory) => (directory.clone(), socket.unwrap_or(Path::new(DEFAULT_SOCKET)).to_owned()),
        None => {
            let config = Config::load(&options.config).map_err(|problems| Failure::usage(problems.to_string()))?;
            (config.state_directory, socket.map_or(config.control_socket, Path::to_owned))
        }
    };
    let (names, remedy) = names_in(&directory, &socket)?;
    if json {
        print_json(&json!({ "undestaged": names }))?;
    } else {
        names.iter().for_each(|name| println!("{name}"));
    }
    let what = match names.len() {
        0 => return Ok(()),
        1 => "the backing of 1 volume is not complete".to_owned(),
        count => format!("the backings of {count} volumes are not complete"),
    };
    Err(Failure::failed(format!("{what}; {remedy}")))
}

/// The volumes, and what brings them to their backings.
fn names_in(directory: &Path, socket: &Path) -> Result<(BTreeSet<String>, &'static str), Failure> {
    let failed = |error: StateError| Failure::failed(error.to_string());
    // Where no daemon has been, nothing is made by a look.
    let Some(seen) = StateDir::peek(directory).map_err(failed)? else { return Ok((BTreeSet::new(), "")) };
    match StateDir::open(directory) {
        Ok(state) => Ok((undestaged(state.state(), &[]), "start the daemon again, then run `hotset stop --destage`")),
        Err(StateError::Held { .. }) => {
            let Answer::Volumes(served) = ask(Some(socket), &Request::VolumeList {})? else { return Err(unexpected()) };
            Ok((undestaged(&seen, &served), "run `hotset stop --destage`"))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Of the volumes that a daemon serves those of which something is dirty; of all others those of which something lies in the flash log,
/// or which were not stopped cleanly.
fn undestaged(state: &State, served: &[VolumeReport]) -> BTreeSet<String> {
    let dirty = served.iter().filter(|volume| volume.dirty_bytes + volume.written_bytes + volume.flash_dirty_bytes > 0);
    let is_served = |incarnation: u64| served.iter().any(|volume| volume.incarnation == format!("{incarnation:016x}"));
    let others = state.volumes.iter().filter(|volume| !is_served(volume.incarnation));
    let left = others.filter(|volume| volume.dirty_on_flash.is_some() || !volume.clean);
    dirty.map(|volume| volume.name.clone()).chain(left.map(|volume| volume.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use control::VolumeState;

    use super::*;
    use state::VolumeRecord;

    fn record(incarnation: u64, name: &str, clean: bool, on_flash: bool) -> VolumeRecord {
        VolumeRecord {
            incarnation,
            name: name.to_owned(),
            backing_identity: String::new(),
            clean,
            dirty_on_flash: on_flash.then(|| "0".repeat(32)),
            generation: 1,
            ..VolumeRecord::default()
        }
    }

    fn served(incarnation: u64, name: &str) -> VolumeReport {
        let incarnation = format!("{incarnation:016x}");
        VolumeReport { incarnation, ..VolumeReport::idle(name, VolumeState::Active, "write-back", "/dev/sdb") }
    }

    fn names(state: &State, served: &[VolumeReport]) -> Vec<String> {
        undestaged(state, served).into_iter().collect()
    }

    #[test]
    fn a_volume_that_is_not_served_is_judged_by_its_record_and_one_that_is_by_what_is_dirty() {
        let volumes = vec![
            record(1, "whole", true, false),
            record(2, "killed", false, false),
            record(3, "parked", true, true),
            record(4, "idle", false, true),
        ];
        let state = State { volumes, ..State::default() };
        assert_eq!(names(&state, &[]), ["idle", "killed", "parked"]);
        // While it is served the marks are set whatever is dirty; a refused volume is served to nobody.
        let refused = VolumeReport::idle("parked", VolumeState::Refused, "write-back", "/dev/sdb");
        assert_eq!(names(&state, &[served(4, "idle"), served(2, "killed"), refused]), ["parked"]);
        for part in 0..3 {
            let mut busy = served(4, "idle");
            *[&mut busy.dirty_bytes, &mut busy.written_bytes, &mut busy.flash_dirty_bytes][part] = 4096;
            assert_eq!(names(&state, &[busy, served(2, "killed"), served(3, "parked")]), ["idle"]);
        }
    }
}
