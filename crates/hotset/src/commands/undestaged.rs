//! `hotset undestaged`: without a daemon, whose backings are not complete. What removes the program asks this first.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::{Failure, print_json};
use crate::config::Config;
use crate::state::{State, StateDir};

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
pub fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let directory = match &options.state {
        Some(directory) => directory.clone(),
        None => Config::load(&options.config).map_err(|problems| Failure::usage(problems.to_string()))?.state_directory,
    };
    let names = names_in(&directory)?;
    if json {
        print_json(&json!({ "undestaged": names }))?;
    } else {
        names.iter().for_each(|name| println!("{name}"));
    }
    match names.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "the backings of {count} of the volumes are not complete; start the daemon, then run `hotset stop --destage`"
        ))),
    }
}

fn names_in(directory: &Path) -> Result<Vec<String>, Failure> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    // A daemon that runs holds it, and is told so.
    let state = StateDir::open(directory).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(undestaged(state.state()))
}

/// Volumes of which something lies in the flash log, or which were not stopped cleanly.
fn undestaged(state: &State) -> Vec<String> {
    let is_left = state.volumes.iter().filter(|volume| volume.dirty_on_flash.is_some() || !volume.clean);
    is_left.map(|volume| volume.name.clone()).collect()
}
