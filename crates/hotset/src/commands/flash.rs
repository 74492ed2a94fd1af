//! `hotset flash …`: the flash log and its devices.

use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use messages::{Answer, FlashReport, Request};

use super::confirm::is_confirmed;
use super::daemon::{send_request, unexpected};
use super::flash_offline;
use super::flash_pages::{announce_addition, confirm_removal, confirm_replacement, unused_text};
use super::status::note_start;
use config::is_device;
use seam::real::{PATH_TIMEOUT, PathCall};
use terminal::render::screen;
use terminal::render::style::Style;
use terminal::{Failure, print_json};
use units::{show_bytes, show_counted};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List the devices: state, space, and the volumes with dirty data on flash
    List,
    /// Add an empty device, partition or file while volumes are in service
    Add {
        /// The device
        path: PathBuf,
        /// Destroy its content
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation when a file is created
        #[arg(long)]
        yes: bool,
    },
    /// Remove a device while volumes are in service; its dirty data, and the clean pages for which they have room, are
    /// copied to other devices first
    Remove {
        /// Its path, or its number in `flash list`
        device: String,
        /// Do not ask for confirmation when clean pages are dropped
        #[arg(long)]
        yes: bool,
    },
    /// Replace a device while volumes are in service; dirty data is copied to the new one first, and clean pages to it
    /// or to other devices, as far as they have room
    Replace {
        /// The old device: its path, or its number in `flash list`
        old: String,
        /// The new device
        new: PathBuf,
        /// Destroy the content of the new device
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation when a file is created, or clean pages are dropped
        #[arg(long)]
        yes: bool,
    },
    /// Pause the change in progress
    Pause,
    /// Resume the change
    Resume,
    /// Cancel the change and restore the previous state
    Cancel,
    /// Offline: check the content of devices for damage, and list the dirty data by volume
    Check {
        /// The devices of one store
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Offline: extract the dirty data from devices in any state
    Rescue {
        /// The remaining devices of one store
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Each volume's data goes to FILE.VOLUME_ID, the list of present and lost ranges to FILE.json
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
}

/// The absolute path, because the daemon has another working directory. The address of an image is no path.
pub fn absolute_path(path: &Path) -> Result<String, Failure> {
    let absolute = match path.to_str() {
        Some(text) if config::is_image_address(text) => Ok(path.to_owned()),
        _ => std::path::absolute(path),
    };
    absolute
        .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?
        .into_os_string()
        .into_string()
        .map_err(|_| Failure::usage(format!("{} is not valid UTF-8", path.display())))
}

/// The absolute path of a device, or its number.
pub fn absolute_path_or_number(device: &str) -> Result<String, Failure> {
    match device.parse::<u32>() {
        Ok(_) => Ok(device.to_owned()),
        Err(_) => absolute_path(Path::new(device)),
    }
}

/// Says which file the daemon creates at the path of a new device, and asks whether to go on if there is a terminal.
fn confirm_new_file(socket: Option<&Path>, path: &str, yes: bool) -> Result<(), Failure> {
    let Answer::Configuration(report) = send_request(socket, &Request::Configuration {})? else {
        return Err(unexpected());
    };
    let size = report.keys.iter().find(|key| (key.table.as_str(), key.key.as_str()) == ("flash", "size"));
    let Some(size) = size.and_then(|key| key.value.as_deref()).filter(|size| *size != "none") else { return Ok(()) };
    if !is_to_be_created(Path::new(path)) {
        return Ok(());
    }
    eprintln!("{path} does not exist: a file of {size} is created there ([flash] size)");
    confirm("Create it?", yes)
}

/// True if a path is missing where the daemon creates a file. A path that does not answer is left to the daemon.
fn is_to_be_created(path: &Path) -> bool {
    let looked_up = path.to_owned();
    let look_up = move || {
        let is_missing = looked_up.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        is_missing && !is_device(&looked_up) && looked_up.parent().is_some_and(Path::is_dir)
    };
    PathCall::start(path, move |_| look_up()).wait(PATH_TIMEOUT).unwrap_or(false)
}

/// Asks whether to go on if there is a terminal and no `--yes`.
pub fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes || !std::io::stdin().is_terminal() || is_confirmed(question)? {
        return Ok(());
    }
    Err(Failure::failed("nothing was changed"))
}

/// Bytes written to each device, and the endurance used.
fn show_wear(report: &FlashReport) -> String {
    let mut text = String::new();
    for device in report.devices.iter().filter(|device| device.state == "in-service") {
        let written = &device.written;
        let used = device
            .endurance_used_ratio
            .map_or(String::new(), |used| format!("; {:.2} % of its endurance", used * 100.0));
        let time_left = device
            .endurance_left_days
            .map_or(String::new(), |days| format!(", {} left at this rate", show_counted(days, "day")));
        text += &format!(
            "         written to {}: {} promoted, {} dirty, {} map{used}{time_left}\n",
            device.device,
            show_bytes(written.promotion_bytes),
            show_bytes(written.dirty_bytes),
            show_bytes(written.journal_bytes),
        );
    }
    if let Some(factor) = report.write_amplification {
        text += &format!(
            "         write amplification {factor:.2} since the start: bytes written to all devices per byte of data\n"
        );
    }
    text
}

/// Runs the subcommand and prints its result.
pub fn run(socket: Option<&Path>, action: &Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::Check { paths } => return flash_offline::check(paths, json),
        Action::Rescue { paths, to } => return flash_offline::rescue(paths, to, json),
        Action::List => {
            note_start(socket);
            Request::FlashList {}
        }
        Action::Add { path, force, yes } => {
            let path = absolute_path(path)?;
            confirm_new_file(socket, &path, *yes)?;
            announce_addition(socket, &path)?;
            Request::FlashAdd { path, force: *force }
        }
        Action::Remove { device, yes } => {
            let path = absolute_path_or_number(device)?;
            confirm_removal(socket, &path, *yes)?;
            Request::FlashRemove { path }
        }
        Action::Replace { old, new, force, yes } => {
            let (old, new) = (absolute_path_or_number(old)?, absolute_path(new)?);
            confirm_new_file(socket, &new, *yes)?;
            confirm_replacement(socket, &old, &new, *yes)?;
            Request::FlashReplace { old, new, force: *force }
        }
        Action::Pause => Request::FlashPause {},
        Action::Resume => Request::FlashResume {},
        Action::Cancel => Request::FlashCancel {},
    };
    let report = match send_request(socket, &request)? {
        Answer::Flash(report) => *report,
        _ => return Err(unexpected()),
    };
    if json {
        return print_json(&report);
    }
    let style = Style::of_stdout();
    terminal::render::print(&screen::flash(&report, style));
    terminal::render::print(&show_wear(&report));
    unused_text(report.pages.unmapped_slots).iter().for_each(|text| println!("         {text}"));
    if !report.volumes.is_empty() {
        println!("         dirty data of {}", report.volumes.join(", "));
    }
    report.problems.iter().for_each(|alert| println!("         {}", style.warn(&alert.text)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_created_only_in_an_existing_directory_outside_dev() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let [file, typo, nested] = ["f0", "f9", "none/f9"].map(|name| folder.path().join(name));
        std::fs::write(&file, "x").expect("the folder can be written");
        let created = [&typo, &file, &nested].map(|path| is_to_be_created(path));
        assert_eq!(created, [true, false, false]);
        assert!(!is_to_be_created(Path::new("/dev/hotset-no-such-device")));
    }

    #[test]
    fn list_says_what_write_amplification_is() {
        let report = FlashReport { write_amplification: Some(2.04), ..FlashReport::default() };
        let text = show_wear(&report);
        assert!(text.contains("2.04 since the start: bytes written to all devices per byte of data"), "{text}");
    }
}
