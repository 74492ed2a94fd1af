//! `hotset init`: examines the machine and proposes a configuration.

use std::path::PathBuf;

use clap::Args;
use terminal::Failure;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// File to write, which must not exist; default: print the configuration
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Serve this disk, partition or array, even if it has data; the data is kept
    #[arg(long = "volume", value_name = "DEVICE")]
    volumes: Vec<PathBuf>,
    /// Use this device for the flash cache; erase it before the first start
    #[arg(long, value_name = "DEVICE")]
    flash: Vec<PathBuf>,
    /// Use this device in a tiered pool
    #[arg(long, value_name = "DEVICE")]
    pool: Vec<PathBuf>,
    /// Examine only the devices named by this option; required for loop devices
    #[arg(long, value_name = "DEVICE")]
    look_at: Vec<PathBuf>,
}

/// Examines the machine, and writes or prints a configuration.
pub fn run(options: Options, json: bool) -> Result<(), Failure> {
    let Options { out, volumes, flash, pool, look_at } = options;
    setup::run(setup::Options { out, volumes, flash, pool, look_at }, json)
}
