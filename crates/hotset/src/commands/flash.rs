//! `hotset flash …`: the flash log and its devices.

use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use messages::report::FlashDeviceReport;
use messages::{Answer, FlashReport, Request};

use super::confirm::is_confirmed;
use super::daemon::{send_request, unexpected};
use super::flash_offline;
use super::status::note_start;
use config::is_device;
use config::quota::PAGE_BYTES;
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
    /// Replace a device while volumes are in service; dirty data and clean pages are copied to the new one first
    Replace {
        /// The old device: its path, or its number in `flash list`
        old: String,
        /// The new device
        new: PathBuf,
        /// Destroy the content of the new device
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation when a file is created
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

/// Number of devices that carry the log; a store of one device has one.
const LOG_DEVICES: usize = 2;

/// The absolute path, because the daemon has another working directory.
fn absolute_path(path: &Path) -> Result<String, Failure> {
    let absolute =
        std::path::absolute(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|_| Failure::usage(format!("{} is not valid UTF-8", path.display())))
}

/// The absolute path of a device, or its number.
fn absolute_path_or_number(device: &str) -> Result<String, Failure> {
    match device.parse::<u32>() {
        Ok(_) => Ok(device.to_owned()),
        Err(_) => absolute_path(Path::new(device)),
    }
}

/// Says how many clean pages the removal of a device drops, and asks whether to go on if there is a terminal.
fn confirm_dropped_pages(socket: Option<&Path>, path: &str, yes: bool) -> Result<(), Failure> {
    let Answer::Flash(report) = send_request(socket, &Request::FlashList {})? else { return Err(unexpected()) };
    let is_same_file = |device: &str| match (std::fs::canonicalize(device), std::fs::canonicalize(path)) {
        (Ok(first), Ok(second)) => first == second,
        _ => device == path,
    };
    let is_removed = |device: &&FlashDeviceReport| device.number.to_string() == path || is_same_file(&device.device);
    let Some(device) = report.devices.iter().find(is_removed) else { return Ok(()) };
    let Some(text) = dropped_pages(&report, device) else { return Ok(()) };
    eprintln!("{text}");
    confirm("Remove it?", yes)
}

/// The text about the clean pages that the removal of a device drops; `None` if it drops none.
fn dropped_pages(report: &FlashReport, removed: &FlashDeviceReport) -> Option<String> {
    let in_service = report.devices.iter().filter(|device| device.state == "in-service");
    let (log, pages): (Vec<_>, Vec<_>) = in_service.partition(|device| device.role == "log");
    let carries_log = log.iter().any(|device| device.number == removed.number);
    let takes_over = carries_log && log.len() <= LOG_DEVICES && !pages.is_empty();
    let name = removed.name();
    let count = removed.pages_lost_if_removed;
    let amount = format!("{} ({})", show_counted(count, "clean page"), show_bytes(count * PAGE_BYTES));
    let successor = match pages.as_slice() {
        [only] => only.name(),
        _ => "the largest device with clean pages only".to_owned(),
    };
    match (takes_over, count) {
        // Until the map is loaded, no page is counted.
        (true, 0) if !report.pages.loaded => Some(format!(
            "{successor} takes over the log; all clean pages of {name} and {successor} are dropped (not counted yet: \
             the page map is loading); they are read from the backings again when needed"
        )),
        (_, 0) => None,
        (true, _) => Some(format!(
            "{successor} takes over the log; all clean pages of {name} and {successor} are dropped: {amount}; they are \
             read from the backings again when needed"
        )),
        (false, _) => Some(format!(
            "{name}: the other devices have no room for {amount}; they are read from the backings again when needed"
        )),
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
fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
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
            Request::FlashAdd { path, force: *force }
        }
        Action::Remove { device, yes } => {
            let path = absolute_path_or_number(device)?;
            confirm_dropped_pages(socket, &path, *yes)?;
            Request::FlashRemove { path }
        }
        Action::Replace { old, new, force, yes } => {
            let (old, new) = (absolute_path_or_number(old)?, absolute_path(new)?);
            confirm_new_file(socket, &new, *yes)?;
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
    fn removal_with_a_take_over_of_the_log_names_the_pages_of_both_devices() {
        let device = |number, role: &str, pages, pages_lost_if_removed| FlashDeviceReport {
            number,
            device: format!("/f{number}"),
            role: role.to_owned(),
            state: "in-service".to_owned(),
            pages,
            pages_lost_if_removed,
            ..FlashDeviceReport::default()
        };
        let mut report = FlashReport {
            devices: vec![device(0, "log", 3, 8), device(1, "log", 4, 9), device(2, "pages", 5, 1)],
            ..FlashReport::default()
        };
        report.pages.loaded = true;
        let text = |report: &FlashReport, index: usize| dropped_pages(report, &report.devices[index]);
        let expected = "/f2 takes over the log; all clean pages of /f0 and /f2 are dropped: 8 clean pages (512 KiB); \
                        they are read from the backings again when needed";
        assert_eq!(text(&report, 0).as_deref(), Some(expected));
        let without_room = text(&report, 2).expect("one page is dropped");
        assert!(without_room.starts_with("/f2: the other devices have no room for 1 clean page ("), "{without_room}");
        // Two other devices carry the log.
        report.devices.push(device(3, "log", 0, 2));
        let without_room = text(&report, 0).expect("pages are dropped");
        assert!(without_room.contains("have no room for 8 clean pages"), "{without_room}");
        report.devices = vec![device(0, "log", 0, 0), device(1, "log", 0, 0)];
        assert_eq!(text(&report, 0), None);
        report.devices.extend([device(2, "pages", 0, 0), device(3, "pages", 0, 0)]);
        assert_eq!(text(&report, 0), None, "there are no pages");
        report.pages.loaded = false;
        let uncounted = text(&report, 0).expect("pages may be dropped");
        assert!(uncounted.contains("the largest device with clean pages only takes over the log"), "{uncounted}");
        assert!(uncounted.contains("not counted yet"), "{uncounted}");
    }

    #[test]
    fn list_says_what_write_amplification_is() {
        let report = FlashReport { write_amplification: Some(2.04), ..FlashReport::default() };
        let text = show_wear(&report);
        assert!(text.contains("2.04 since the start: bytes written to all devices per byte of data"), "{text}");
    }
}
