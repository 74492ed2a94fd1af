//! `hotset init`: examines the machine and proposes a configuration, with reasons. It only reads disks, and writes at
//! most one file.

mod machine;
mod plan;
mod text;

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use machine::Machine;
use plan::UserChoices;
use serde_json::json;

use config::Config;
use config::DEFAULT_CONFIG;
use terminal::{Failure, print_json};

/// Options of the command.
pub struct Options {
    /// The file to write, which must not exist; without it the configuration is printed.
    pub out: Option<PathBuf>,
    /// Disks to serve even if they carry data.
    pub volumes: Vec<PathBuf>,
    /// Devices for the cache; the administrator erases their content before the first start.
    pub flash: Vec<PathBuf>,
    /// Devices for a pool.
    pub pool: Vec<PathBuf>,
    /// Devices to examine besides the ones named above; empty for the whole machine.
    pub look_at: Vec<PathBuf>,
}

/// Examines the machine, and writes or prints a configuration.
pub fn run(options: Options, json: bool) -> Result<(), Failure> {
    // The write checks again; this early check saves the examination.
    if let Some(out) = options.out.as_deref().filter(|out| out.symlink_metadata().is_ok()) {
        return Err(file_exists(out));
    }
    let as_failure = if options.look_at.is_empty() { Failure::failed } else { Failure::usage };
    let machine = Machine::examine(&options.look_at).map_err(as_failure)?;
    let examined_by_name = !options.look_at.is_empty();
    let choices = UserChoices { volumes: options.volumes, flash: options.flash, pool: options.pool, examined_by_name };
    let plan = plan::plan(&machine, &choices)?;
    let text = text::text(&plan);
    let path = options.out.as_deref().unwrap_or(Path::new(DEFAULT_CONFIG));
    if let Err(problems) = Config::parse(path, &text) {
        return Err(Failure::failed(format!(
            "the proposed configuration is invalid, which is a defect of Hotset:\n{problems}\n{text}"
        )));
    }
    if let Some(out) = &options.out {
        create(out, &text)?;
    }
    if json {
        return print_json(&json!({ "file": options.out, "plan": plan, "configuration": text }));
    }
    match &options.out {
        None => print!("{text}"),
        Some(out) => println!("{}: {}; its comments give the reasons", out.display(), text::summary(&plan)),
    }
    Ok(())
}

/// Creates a file atomically; fails if it exists.
fn create(out: &Path, text: &str) -> Result<(), Failure> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write_failure = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => {
            let folder = folder.display();
            Failure::failed(format!("the directory {folder} does not exist; run `mkdir -p {folder}` first"))
        }
        ErrorKind::AlreadyExists => file_exists(out),
        _ => Failure::failed(format!("{} cannot be written: {error}", out.display())),
    };
    let readable = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(folder).map_err(write_failure)?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(write_failure)?;
    file.persist_noclobber(out).map(drop).map_err(|failed| write_failure(failed.error))
}

fn file_exists(out: &Path) -> Failure {
    let file = out.display();
    Failure::failed(format!("{file} exists and is not overwritten; specify another file with --out"))
}

#[cfg(test)]
mod tests;
