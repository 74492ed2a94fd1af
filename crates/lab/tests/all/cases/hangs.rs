//! Hung disks: healthy volumes continue, waits are bounded, and nothing is lost.

use lab::torture::hang::{HangOptions, HungDevice, run};
use seam::Nanos;

/// Options of a run; `log_segments` is `None` without flash.
fn options(hung: HungDevice, log_segments: Option<u64>) -> HangOptions {
    HangOptions {
        seed: 1,
        volumes: 3,
        segments: log_segments,
        hung,
        reads_only: false,
        duration: Nanos::from_secs(60),
        crashes: false,
    }
}

fn run_without_violation(options: &HangOptions) {
    if let Err(message) = run(options) {
        panic!("{message}");
    }
}

#[test]
fn hung_backing_delays_its_own_volume_alone() {
    for crashes in [false, true] {
        run_without_violation(&HangOptions { crashes, ..options(HungDevice::Backing, None) });
        run_without_violation(&HangOptions { crashes, ..options(HungDevice::Backing, Some(400)) });
    }
}

#[test]
fn small_log_does_not_fill_behind_a_hung_backing() {
    run_without_violation(&HangOptions { duration: Nanos::from_secs(120), ..options(HungDevice::Backing, Some(60)) });
}

#[test]
fn hung_flash_device_is_dropped_within_three_seconds() {
    for (reads_only, crashes) in [(false, false), (false, true), (true, false)] {
        run_without_violation(&HangOptions { reads_only, crashes, ..options(HungDevice::OneFlashDevice, Some(200)) });
    }
}

#[test]
fn requests_end_when_both_flash_devices_hang() {
    for crashes in [false, true] {
        run_without_violation(&HangOptions { crashes, ..options(HungDevice::BothFlashDevices, Some(200)) });
    }
}
