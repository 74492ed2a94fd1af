//! `[flash]`: the devices of the flash cache.

use std::fmt;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use engine::Threshold;
use rbd::{ImageSpec, is_image_address};
use seam::Nanos;

use super::look_up::LookUps;
use super::path_checks::{is_missing_device, path_fault};
use super::problem::Source;
use super::read::{Located, Rate, Section, Size, Thousandths};
use super::{FlashConfig, is_device};
use units::show_bytes;

/// Maximum number of devices of a store.
const DEVICES_MAX: usize = 8;

/// Default of `endurance_dwpd` in thousandths: full writes of the devices per day that promotion may make.
const ENDURANCE: u32 = 1000;

/// Default of `scrub`: both copies of a log of 64 GiB are read in nine hours.
const SCRUB_BYTES_PER_SECOND: u64 = 4 << 20;

/// Default of `congestion_threshold`.
const THRESHOLD: Threshold = Threshold::Latency(Nanos::from_millis(5));

/// Reads the table; `None` if it is absent. Whether a device exists is checked when it is opened, because a daemon also
/// starts without one of two devices.
pub(super) fn read_flash(
    section: &Section<'_>,
    folder: &Path,
    look_ups: &LookUps,
    source: &mut Source<'_>,
) -> Option<FlashConfig> {
    section.is_present().then_some(())?;
    let devices = section.require::<Vec<Located<String>>>("devices", source);
    let size = section.get::<Size>("size", source);
    let allow_single_copy = section.get("allow_single_copy", source).is_some_and(|allow| allow.value);
    if let Some(Located { value: Size(bytes), span }) = &size
        && (*bytes == 0 || !bytes.is_multiple_of(seam::BLOCK_BYTES as u64))
    {
        source.add_problem(
            span,
            format!("a device of {} cannot be", show_bytes(*bytes)),
            "specify a multiple of 4 KiB",
        );
    }
    let Located { value: list, span } = devices?;
    if list.is_empty() || list.len() > DEVICES_MAX {
        let fault = format!("{} flash devices are specified", list.len());
        source.add_problem(
            &span,
            fault,
            "specify two to eight, or one and allow_single_copy = true; or remove the table",
        );
    }
    let (mut devices, mut has_image): (Vec<PathBuf>, bool) = (Vec::new(), false);
    for Located { value, span } in &list {
        if is_image_address(value) {
            match value.parse::<ImageSpec>() {
                Ok(_) if has_image => {
                    let remedy = "name one image, which carries the log; its cluster keeps the copies";
                    source.add_problem(span, format!("\"{value}\" is a second image"), remedy);
                }
                Ok(image) => devices.push(image.to_string().into()),
                Err(error) => source.add_problem(span, error.to_string(), "correct the address"),
            }
            has_image = true;
            continue;
        }
        let path = folder.join(value);
        let target = look_ups.target(&path);
        let is_same = |other: &PathBuf| *other == path || look_ups.target(other) == target;
        if value.is_empty() || devices.iter().any(is_same) {
            source.add_problem(span, format!("\"{value}\" is no second device"), "specify two different ones");
        }
        devices.push(path);
    }
    let endurance =
        section.get::<Thousandths>("endurance_dwpd", source).map_or(ENDURANCE, |endurance| endurance.value.0);
    let scrub = section.get::<Rate>("scrub", source).map_or(Some(SCRUB_BYTES_PER_SECOND), |rate| rate.value.0);
    let threshold = section.get("congestion_threshold", source).map_or(THRESHOLD, |threshold| threshold.value);
    let (size_bytes, endurance_milli_dwpd) = (size.map(|size| size.value.0), endurance);
    // The cluster keeps the copies of an image.
    let allow_single_copy = allow_single_copy || has_image;
    Some(FlashConfig { devices, size_bytes, allow_single_copy, endurance_milli_dwpd, scrub, threshold, ssd: None })
}

impl FlashConfig {
    /// The default of each key for devices that were added by command, without `[flash]` in the file.
    pub fn of_devices(devices: Vec<PathBuf>) -> FlashConfig {
        FlashConfig {
            devices,
            size_bytes: None,
            allow_single_copy: false,
            endurance_milli_dwpd: ENDURANCE,
            scrub: Some(SCRUB_BYTES_PER_SECOND),
            threshold: THRESHOLD,
            ssd: None,
        }
    }

    /// The image at the path of a device; `None` for a local one.
    pub fn image_at(device: &Path) -> Option<ImageSpec> {
        device.to_str().filter(|text| is_image_address(text))?.parse().ok()
    }

    /// The image that carries the log; `None` if local devices do.
    pub fn log_image(&self) -> Option<ImageSpec> {
        self.devices.iter().find_map(|device| FlashConfig::image_at(device))
    }

    /// The size for creating a missing device; only files can be created.
    pub fn create_bytes(&self, device: &Path) -> Option<u64> {
        let is_file = !is_device(device) && !is_missing_device(device) && FlashConfig::image_at(device).is_none();
        self.size_bytes.filter(|_| is_file)
    }

    /// Size of a device, or of the file that is created at its path; `None` if it is unknown. It opens the device, so
    /// the caller runs it as a [`PathCall`](seam::real::PathCall).
    pub fn device_bytes(&self, device: &Path) -> Option<u64> {
        let end = std::fs::File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
        end.ok().filter(|bytes| *bytes > 0).or(self.create_bytes(device))
    }

    /// Estimate of the bytes of clean pages that the devices can hold; `None` if the size of one is unknown. It opens
    /// the devices, so the caller runs it as a [`PathCall`](seam::real::PathCall).
    pub fn estimate_clean_bytes(&self) -> Option<u64> {
        let sizes: Option<Vec<u64>> = self.devices.iter().map(|device| self.device_bytes(device)).collect();
        // Checksums, the map and the log's reserve take the rest.
        sizes.map(|sizes| sizes.iter().map(|bytes| bytes / 10 * 9).sum())
    }

    /// Fault and remedy for a missing file at the path of a device that a store has used, which `of_store` says. Such a
    /// file is not created again: an empty one would look like a new device. `None` if the file exists, or if the path
    /// is not that of a file. It looks up the path, so the caller runs it as a [`PathCall`](seam::real::PathCall).
    pub fn lost_file_fault(device: &Path, of_store: &impl fmt::Display) -> Option<(String, String)> {
        let is_missing = std::fs::metadata(device)
            .is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory));
        if !is_missing || is_device(device) || is_missing_device(device) || FlashConfig::image_at(device).is_some() {
            return None;
        }
        let fault =
            format!("the flash device {} does not exist, and {of_store}: it is not created again", device.display());
        let remedy = "restore it, or mount its file system; if it is lost for good, remove it from [flash], and set \
                      allow_single_copy = true if one device is left";
        Some((fault, remedy.to_owned()))
    }

    /// Fault and remedy for a missing device that is not to be created. It looks up the path, so the caller runs it as
    /// a [`PathCall`](seam::real::PathCall).
    pub fn missing_device_fault(&self, device: &Path) -> Option<(String, String)> {
        if FlashConfig::image_at(device).is_some() {
            return None;
        }
        if let Some((fault, remedy)) = path_fault(device, self.create_bytes(device).is_some()) {
            return Some((format!("the flash device {fault}"), remedy));
        }
        // A crash between the creation of a file and its allocation leaves an empty file.
        let has_content = std::fs::metadata(device).is_ok_and(|meta| !meta.is_file() || meta.len() > 0);
        if has_content || self.create_bytes(device).is_some() {
            return None;
        }
        let path = device.display();
        let fault = format!("the flash device {path} {}", if device.exists() { "is empty" } else { "does not exist" });
        let remedy = match is_device(device) || is_missing_device(device) {
            true => "attach it, or correct the path".to_owned(),
            false => format!(
                "in a new installation create it (fallocate -l 16G {path}), or add size = \"16 GiB\" to [flash]"
            ),
        };
        Some((fault, remedy))
    }
}
