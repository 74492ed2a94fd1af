//! Metric families of the daemon: memory, certificates, iSCSI sessions, flash devices.

use std::collections::BTreeMap;

use messages::report::{DriveReport, FlashDeviceReport, IscsiReport, IscsiSessionReport};
use messages::{FlashReport, StatusReport};

use super::lines::{Labels, Lines};

/// Writes all families; `left_out` is the number of volumes without series of their own.
pub fn write(lines: &mut Lines, status: &StatusReport, left_out: usize) {
    let none = Labels::default();
    let mut single = |name, kind, help, value: f64| {
        lines.family(name, kind, help);
        lines.sample(&none, &[], value);
    };
    single("hotset_uptime_seconds", "gauge", "Time since the daemon started.", status.uptime_seconds as f64);
    single("hotset_stopping", "gauge", "1 while the daemon is stopping.", f64::from(u8::from(status.stopping)));
    single(
        "hotset_metrics_volumes_left_out",
        "gauge",
        "Volumes without time series because their number exceeds [api] metrics_volumes.",
        left_out as f64,
    );
    lines.family("hotset_build_info", "gauge", "Version of the daemon; the value is always 1.");
    lines.sample(&none, &[("version", &status.version)], 1.0);
    let sum =
        |value_of: fn(&messages::report::CoreReport) -> u64| status.cores.iter().map(value_of).sum::<u64>() as f64;
    let help = "Cache memory by use: configured size, buffer pool, used part of the pool, index.";
    lines.family("hotset_memory_bytes", "gauge", help);
    for (name, bytes) in [
        ("configured", status.memory_bytes as f64),
        ("pool", sum(|core| core.pool_bytes)),
        ("pool_used", sum(|core| core.pool_used_bytes)),
        ("index", sum(|core| core.index_bytes)),
    ] {
        lines.sample(&none, &[("use", name)], bytes);
    }
    lines.family("hotset_connections", "gauge", "Client connections.");
    lines.sample(&none, &[], sum(|core| core.connections));
    lines.family(
        "hotset_certificate_expiry_timestamp_seconds",
        "gauge",
        "Expiry time of the certificate chain, in seconds since 1970; the earliest certificate counts.",
    );
    for certificate in &status.certificates {
        if let Some(expiry) = certificate.ends_unix_seconds {
            lines.sample(&none, &[("table", &certificate.table)], expiry as f64);
        }
    }
    if let Some(flash) = &status.flash {
        write_flash(lines, flash);
    }
    if let Some(iscsi) = &status.iscsi {
        write_iscsi(lines, iscsi);
    }
}

/// Sums over the sessions of each initiator.
fn write_iscsi(lines: &mut Lines, iscsi: &IscsiReport) {
    let none = Labels::default();
    lines.family("hotset_iscsi_connections_total", "counter", "iSCSI connections accepted.");
    lines.sample(&none, &[], iscsi.connections as f64);
    lines.family("hotset_iscsi_failed_logins_total", "counter", "iSCSI connections that failed to log in.");
    lines.sample(&none, &[], iscsi.failed_logins as f64);
    let mut initiators: BTreeMap<&str, Vec<&IscsiSessionReport>> = BTreeMap::new();
    for session in iscsi.sessions.iter().filter(|session| !session.discovery) {
        initiators.entry(&session.initiator).or_default().push(session);
    }
    let mut write_family = |name, help, value_of: fn(&IscsiSessionReport) -> u64| {
        lines.family(name, "gauge", help);
        for (initiator, sessions) in &initiators {
            let sum: u64 = sessions.iter().map(|session| value_of(session)).sum();
            lines.sample(&none, &[("initiator", initiator)], sum as f64);
        }
    };
    write_family("hotset_iscsi_sessions", "iSCSI sessions by initiator.", |_| 1);
    write_family("hotset_iscsi_commands_under_way", "Outstanding SCSI commands by initiator.", |session| {
        session.commands_in_flight
    });
}

fn write_flash(lines: &mut Lines, flash: &FlashReport) {
    let none = Labels::default();
    let mut single = |name, help, value: f64| {
        lines.family(name, "gauge", help);
        lines.sample(&none, &[], value);
    };
    single(
        "hotset_flash_devices_in_service",
        "Flash devices that hold a complete copy of the dirty data.",
        flash.copies as f64,
    );
    single("hotset_flash_dirty_bytes", "Dirty data in the flash log.", flash.dirty_bytes as f64);
    single("hotset_flash_log_segments", "Segments of the flash log.", flash.segments as f64);
    single("hotset_flash_log_free_segments", "Free segments of the flash log.", flash.free_segments as f64);
    single("hotset_flash_pages", "Clean pages in the flash cache.", flash.pages.pages as f64);
    single("hotset_flash_page_slots", "Capacity of the flash cache in clean pages.", flash.pages.slots as f64);
    let label = |device: &FlashDeviceReport| Labels::default().with("device", &device.name());
    lines.family("hotset_flash_device_in_service", "gauge", "1 while the device is in service.");
    for device in &flash.devices {
        lines.sample(&label(device), &[], f64::from(u8::from(device.state == "in-service")));
    }
    let help = "Age of the oldest outstanding request to the device.";
    lines.family("hotset_flash_device_unanswered_seconds", "gauge", help);
    for device in &flash.devices {
        lines.sample(&label(device), &[], device.unanswered_ms as f64 / 1e3);
    }
    lines.family(
        "hotset_flash_written_bytes_total",
        "counter",
        "Bytes written to the device, by cause; the count survives restarts.",
    );
    for device in &flash.devices {
        let written = &device.written;
        let causes = [
            ("promotion", written.promotion_bytes),
            ("dirty", written.dirty_bytes),
            ("journal", written.journal_bytes),
        ];
        for (cause, bytes) in causes {
            lines.sample(&label(device), &[("cause", cause)], bytes as f64);
        }
    }
    lines.family(
        "hotset_flash_endurance_used_ratio",
        "gauge",
        "Ratio of bytes written to the rated endurance of the device; absent without a rating.",
    );
    for device in &flash.devices {
        if let Some(used) = device.endurance_used_ratio {
            lines.sample(&label(device), &[], used);
        }
    }
    write_drives(lines, flash);
}

/// A metric that a drive reports: name, kind, help and the function that reads it.
type DriveFamily = (&'static str, &'static str, &'static str, fn(&DriveReport) -> Option<f64>);

const DRIVE_FAMILIES: [DriveFamily; 5] = [
    ("hotset_flash_drive_spare_ratio", "gauge", "Ratio of spare blocks left, as reported by the drive.", |drive| {
        drive.spare_ratio
    }),
    (
        "hotset_flash_drive_wear_used_ratio",
        "gauge",
        "Ratio of the rated life used, as reported by the drive.",
        |drive| drive.wear_used_ratio,
    ),
    ("hotset_flash_drive_temperature_celsius", "gauge", "Temperature of the drive.", |drive| {
        drive.temperature_celsius.map(|celsius| celsius as f64)
    }),
    (
        "hotset_flash_drive_media_errors_total",
        "counter",
        "Uncorrectable media errors, as reported by the drive.",
        |drive| drive.media_errors.map(|errors| errors as f64),
    ),
    (
        "hotset_flash_drive_warnings",
        "gauge",
        "Active health warnings of the drive; any warning is critical.",
        |drive| (drive.read_unix_seconds > 0).then_some(drive.warnings.len() as f64),
    ),
];

fn write_drives(lines: &mut Lines, flash: &FlashReport) {
    let drives = || flash.devices.iter().filter_map(|device| Some((device, device.drive.as_ref()?)));
    for (name, kind, help, read) in DRIVE_FAMILIES {
        lines.family(name, kind, help);
        for (device, drive) in drives() {
            if let Some(value) = read(drive) {
                lines.sample(&Labels::default(), &[("device", &device.name())], value);
            }
        }
    }
}
