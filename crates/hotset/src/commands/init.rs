//! `hotset init`: looks at the machine and proposes a configuration.

use std::path::PathBuf;

use clap::Args;
use terminal::Failure;

/// What to look at, and what to propose.
#[derive(Args)]
pub struct Options {
    /// The file to write, which must not be there; without it the configuration is printed
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Serve this disk, partition or array, even if it carries data: it is served as it is
    #[arg(long = "volume", value_name = "DEVICE")]
    volumes: Vec<PathBuf>,
    /// Keep the cache on this device; what it carries is yours to erase before the first start
    #[arg(long, value_name = "DEVICE")]
    flash: Vec<PathBuf>,
    /// Look at this device, and at no other but those named so; loop devices are looked at only so
    #[arg(long, value_name = "DEVICE")]
    look_at: Vec<PathBuf>,
}

/// Looks, proposes, and writes or prints it.
pub fn run(options: Options, json: bool) -> Result<(), Failure> {
    let Options { out, volumes, flash, look_at } = options;
    setup::run(setup::Options { out, volumes, flash, look_at }, json)
}
