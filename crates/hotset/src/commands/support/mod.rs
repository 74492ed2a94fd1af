//! `hotset support`: diagnostics for support in one archive, without secrets, whether the daemon runs or not.

mod archive;
mod collect;
mod machine;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use terminal::{Failure, print_json};
use units::show_bytes;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// The archive to write; only its owner can read it
    #[arg(long, value_name = "FILE.tar.gz")]
    out: PathBuf,
    /// Overwrite FILE if it exists
    #[arg(long)]
    force: bool,
    /// The configuration file; default: the daemon's, else /etc/hotset/hotset.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Collects, writes the archive, and lists the missing items.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    let file = options.out.display().to_string();
    // Checked again when the file is written; this early check avoids a useless wait.
    if !options.force && options.out.symlink_metadata().is_ok() {
        return Err(Failure::failed(format!("{file} exists; specify another file, or overwrite it with --force")));
    }
    let archive = collect::collect(socket, options.config.as_deref());
    let bytes = archive.write(&options.out, options.force).map_err(|error| {
        Failure::failed(format!("{file} cannot be written: {error}; choose a file in a writable directory"))
    })?;
    if json {
        let contents: Vec<&str> = archive.names().collect();
        return print_json(
            &json!({ "file": file, "size_bytes": bytes, "contents": contents, "missing": archive.missing() }),
        );
    }
    println!("{file}: {}; review it before you pass it on", show_bytes(bytes));
    archive.missing().iter().for_each(|missing| println!("missing: {}: {}", missing.item, missing.reason));
    Ok(())
}
