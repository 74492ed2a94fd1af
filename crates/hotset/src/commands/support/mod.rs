//! `hotset support`: what somebody who helps has to know, in one archive, without secrets; with a daemon that runs or one that does not.

mod collect;
mod found;
mod machine;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use terminal::{Failure, print_json};
use units::show_bytes;

/// What to write, and where the configuration is.
#[derive(Args)]
pub struct Options {
    /// The archive; its owner alone may read it
    #[arg(long, value_name = "FILE.tar.gz")]
    out: PathBuf,
    /// Write over FILE if it is there
    #[arg(long)]
    force: bool,
    /// The configuration file; without it the one that the daemon reads, else /etc/hotset/hotset.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Collects, writes, and says what could not be had.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    let file = options.out.display().to_string();
    // Looked at once more when it is written: here so that nobody waits in vain.
    if !options.force && options.out.symlink_metadata().is_ok() {
        return Err(Failure::failed(format!(
            "{file} is there already; name another file, or write over it with --force"
        )));
    }
    let found = collect::collect(socket, options.config.as_deref());
    let bytes = found.write(&options.out, options.force).map_err(|error| {
        Failure::failed(format!("{file} cannot be written: {error}; name a file in a folder that you may write to"))
    })?;
    if json {
        let contents: Vec<&str> = found.names().collect();
        return print_json(
            &json!({ "file": file, "size_bytes": bytes, "contents": contents, "missing": found.missing() }),
        );
    }
    println!("{file}: {}; look through it before you hand it on", show_bytes(bytes));
    found.missing().iter().for_each(|missing| println!("not in it: {}: {}", missing.what, missing.why));
    Ok(())
}
