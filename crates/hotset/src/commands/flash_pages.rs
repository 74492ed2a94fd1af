//! Effects of a change of the flash devices on the clean pages, shown before the change begins.

use std::path::Path;

use messages::report::{FlashDeviceReport, FlashPlanReport};
use messages::{Answer, FlashReport, Request};

use super::daemon::{send_request, unexpected};
use super::flash::confirm;
use config::quota::PAGE_BYTES;
use seam::real::{PATH_TIMEOUT, PathTarget};
use terminal::Failure;
use units::{show_bytes, show_counted};

/// Where dropped pages come from later.
const READ_AGAIN: &str = "they are read from the backings again when needed";

/// Says how many clean pages the removal of a device drops, and asks whether to go on if there is a terminal.
pub fn confirm_removal(socket: Option<&Path>, path: &str, yes: bool) -> Result<(), Failure> {
    let Answer::Flash(report) = send_request(socket, &Request::FlashList {})? else { return Err(unexpected()) };
    let Some(device) = find_device(&report, path) else { return Ok(()) };
    let Some(text) = pages_dropped_by_removal(&report, device) else { return Ok(()) };
    eprintln!("{text}");
    confirm("Remove it?", yes)
}

/// Says how many clean pages the replacement of `old` by `new` keeps and drops, and asks whether to go on if it drops
/// some and there is a terminal.
pub fn confirm_replacement(socket: Option<&Path>, old: &str, new: &str, yes: bool) -> Result<(), Failure> {
    let plan = plan(socket, new, Some(old))?;
    if let Some(text) = pages_of_replacement(&plan, old, new) {
        eprintln!("{text}");
    }
    if let Some(text) = unused_after(&plan) {
        eprintln!("{new}: {text}");
    }
    if plan.loaded && plan.dropped_pages == 0 { Ok(()) } else { confirm("Replace it?", yes) }
}

/// Says how much of an added device is used for clean pages, if the map has no room for all of it.
pub fn announce_addition(socket: Option<&Path>, path: &str) -> Result<(), Failure> {
    if let Some(text) = unused_after(&plan(socket, path, None)?) {
        eprintln!("{path}: {text}");
    }
    Ok(())
}

fn plan(socket: Option<&Path>, path: &str, replaced: Option<&str>) -> Result<FlashPlanReport, Failure> {
    let request = Request::FlashPlan { path: path.to_owned(), replaced: replaced.map(str::to_owned) };
    match send_request(socket, &request)? {
        Answer::FlashPlan(plan) => Ok(plan),
        _ => Err(unexpected()),
    }
}

/// The device with this path, or another name of it, or with this number.
fn find_device<'a>(report: &'a FlashReport, path: &str) -> Option<&'a FlashDeviceReport> {
    let look_up = |path: &str| PathTarget::look_up(Path::new(path)).wait(PATH_TIMEOUT).unwrap_or_else(PathTarget::from);
    let is_named = |device: &&FlashDeviceReport| device.number.to_string() == path || device.device == path;
    report.devices.iter().find(is_named).or_else(|| {
        let target = look_up(path);
        report.devices.iter().find(|device| !device.device.is_empty() && look_up(&device.device) == target)
    })
}

fn show_pages(count: u64) -> String {
    format!("{} ({})", show_counted(count, "clean page"), show_bytes(count * PAGE_BYTES))
}

/// The text about the clean pages that the removal of a device drops; `None` if it drops none.
fn pages_dropped_by_removal(report: &FlashReport, removed: &FlashDeviceReport) -> Option<String> {
    let name_of = |number: u32| {
        let device = report.devices.iter().find(|device| device.number == number);
        device.map_or_else(|| format!("device {number}"), FlashDeviceReport::name)
    };
    let name = removed.name();
    let count = removed.pages_lost_if_removed;
    match (removed.log_successor.map(name_of), count) {
        // Until the map is loaded, no page is counted.
        (Some(successor), 0) if !report.pages.loaded => Some(format!(
            "{successor} takes over the log; all clean pages of {name} and {successor} are dropped (not counted yet: \
             the page map is loading); {READ_AGAIN}"
        )),
        (_, 0) => None,
        (Some(successor), _) => Some(format!(
            "{successor} takes over the log; all clean pages of {name} and {successor} are dropped: {}; {READ_AGAIN}",
            show_pages(count)
        )),
        (None, _) => Some(format!("{name}: the other devices have no room for {}; {READ_AGAIN}", show_pages(count))),
    }
}

/// The text about the clean pages of a replaced device; `None` if it has none.
fn pages_of_replacement(plan: &FlashPlanReport, old: &str, new: &str) -> Option<String> {
    let FlashPlanReport { loaded, device_bytes, kept_pages, dropped_pages, .. } = *plan;
    match (loaded, kept_pages, dropped_pages) {
        (false, ..) => Some(format!(
            "{old}: its clean pages are copied to {new} and to other devices as far as they have room (not counted \
             yet: the page map is loading); the others are dropped, and {READ_AGAIN}"
        )),
        (true, 0, 0) => None,
        (true, kept, 0) => Some(format!(
            "{old}: its {} are kept: they are copied to {new}, or to other devices with room",
            show_pages(kept)
        )),
        (true, kept, dropped) => Some(format!(
            "{old}: at most {} are kept: they are copied to {new} ({}), or to other devices with room. At least {} are \
             dropped for lack of room; {READ_AGAIN}",
            show_pages(kept),
            show_bytes(device_bytes),
            show_pages(dropped)
        )),
    }
}

/// The text about the part of the devices that stays unused after a change; `None` if the map has room for all.
fn unused_after(plan: &FlashPlanReport) -> Option<String> {
    let unused = unused_text(plan.unmapped_slots)?;
    Some(format!(
        "the devices can hold {} more of clean pages with it, {} in all. {unused}",
        show_bytes(plan.added_slots * PAGE_BYTES),
        show_bytes(plan.map_slots * PAGE_BYTES)
    ))
}

/// The text about room on the devices that the map of clean pages has no room for, with what to do; `None` for no
/// slots.
pub fn unused_text(unmapped_slots: u64) -> Option<String> {
    (unmapped_slots > 0).then(|| {
        format!(
            "{} of the devices stay unused for clean pages: the map of clean pages was sized for the devices with \
             which the store was created, and has no more room. To use all, create the store anew: run `hotset stop \
             --destage`, erase all its devices (blkdiscard -z for a device; rm and fallocate for a file), list all of \
             them in [flash], and start the daemon; the clean pages are read from the backings again",
            show_bytes(unmapped_slots * PAGE_BYTES)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_with_a_take_over_of_the_log_names_the_pages_of_both_devices() {
        let device = |number, pages_lost_if_removed, log_successor| FlashDeviceReport {
            number,
            device: format!("/f{number}"),
            pages_lost_if_removed,
            log_successor,
            ..FlashDeviceReport::default()
        };
        let mut report = FlashReport {
            devices: vec![device(0, 8, Some(2)), device(1, 0, Some(2)), device(2, 1, None)],
            ..FlashReport::default()
        };
        report.pages.loaded = true;
        let text = |report: &FlashReport, index: usize| pages_dropped_by_removal(report, &report.devices[index]);
        let expected = "/f2 takes over the log; all clean pages of /f0 and /f2 are dropped: 8 clean pages (512 KiB); \
                        they are read from the backings again when needed";
        assert_eq!(text(&report, 0).as_deref(), Some(expected));
        let without_room = text(&report, 2).expect("one page is dropped");
        assert!(without_room.starts_with("/f2: the other devices have no room for 1 clean page ("), "{without_room}");
        assert_eq!(text(&report, 1), None, "there are no pages");
        report.pages.loaded = false;
        let uncounted = text(&report, 1).expect("pages may be dropped");
        assert!(uncounted.contains("/f2 takes over the log") && uncounted.contains("not counted yet"), "{uncounted}");
    }

    #[test]
    fn replacement_says_how_many_pages_are_kept_and_dropped() {
        let text = |plan: &FlashPlanReport| pages_of_replacement(plan, "/f0", "/f2");
        let plan = FlashPlanReport { loaded: true, device_bytes: 4 << 30, ..FlashPlanReport::default() };
        assert_eq!(text(&plan), None);
        let kept = text(&FlashPlanReport { kept_pages: 16, ..plan }).expect("pages are copied");
        assert_eq!(
            kept,
            "/f0: its 16 clean pages (1 MiB) are kept: they are copied to /f2, or to other devices with room"
        );
        let dropped = text(&FlashPlanReport { kept_pages: 16, dropped_pages: 32, ..plan }).expect("pages are dropped");
        let expected = "/f0: at most 16 clean pages (1 MiB) are kept: they are copied to /f2 (4 GiB), or to other \
                        devices with room. At least 32 clean pages (2 MiB) are dropped for lack of room; they are read \
                        from the backings again when needed";
        assert_eq!(dropped, expected);
        let uncounted = text(&FlashPlanReport { loaded: false, ..plan }).expect("pages may be dropped");
        assert!(uncounted.contains("not counted yet: the page map is loading"), "{uncounted}");
    }

    #[test]
    fn room_that_the_map_lacks_is_named_with_the_way_to_use_it() {
        let plan = FlashPlanReport { added_slots: 16, map_slots: 1 << 14, ..FlashPlanReport::default() };
        assert_eq!(unused_after(&plan), None);
        let text = unused_after(&FlashPlanReport { unmapped_slots: 48, ..plan }).expect("3 MiB are unused");
        let expected = "the devices can hold 1 MiB more of clean pages with it, 1 GiB in all. 3 MiB of the devices \
                        stay unused for clean pages: ";
        assert!(text.starts_with(expected) && text.contains("`hotset stop --destage`"), "{text}");
    }

    #[test]
    fn device_is_found_by_path_number_and_link() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("f1"), "x").expect("the folder can be written");
        std::os::unix::fs::symlink("f1", path("by-id")).expect("the folder can be written");
        let device = |number, device: String| FlashDeviceReport { number, device, ..FlashDeviceReport::default() };
        let devices = vec![device(4, String::new()), device(5, path("f1"))];
        let report = FlashReport { devices, ..FlashReport::default() };
        for name in [path("f1"), path("by-id"), "5".to_owned()] {
            assert_eq!(find_device(&report, &name).map(|device| device.number), Some(5), "{name}");
        }
        assert_eq!(find_device(&report, &path("f2")), None);
    }
}
