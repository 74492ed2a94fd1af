//! Parser for the output of `smartctl --json -a` (smartmontools). It reads the health log of an NVMe drive (NVM Express
//! Base Specification 2.0, "SMART / Health Information") or the vendor-specific attributes of an ATA drive. Values that
//! are absent stay `None`.

use messages::report::DriveReport;
use serde_json::Value;

/// Meaning of each bit of an NVMe drive's critical warning, lowest first.
const WARNINGS: [&str; 6] = [
    "its spare blocks are below the threshold",
    "its temperature is out of bounds",
    "its reliability is degraded by media or internal errors",
    "it is read-only",
    "its power-loss protection has failed",
    "its persistent memory region is read-only or unreliable",
];
/// ATA attributes, by their names in smartmontools' database, whose normalised value is the rated life left in percent.
const LIFE_LEFT: [&str; 5] = [
    "Percent_Lifetime_Remain",
    "SSD_Life_Left",
    "Media_Wearout_Indicator",
    "Wear_Leveling_Count",
    "Remaining_Lifetime_Perc",
];
/// ATA attributes whose normalised value is the spare blocks left in percent.
const SPARE_LEFT: [&str; 3] = ["Available_Reservd_Space", "Unused_Rsvd_Blk_Cnt_Tot", "Used_Rsvd_Blk_Cnt_Tot"];
/// ATA attributes whose raw value counts uncorrected errors.
const UNCORRECTED: [&str; 3] = ["Reported_Uncorrect", "Uncorrectable_Error_Cnt", "Offline_Uncorrectable"];
/// Maximum characters that are kept of a drive's text.
const TEXT_MAX: usize = 120;

/// The drive's health as of `now` in seconds since 1970, or the reason why it is unknown.
pub fn parse(text: &[u8], now: u64) -> Result<DriveReport, String> {
    let output: Value = serde_json::from_slice(text).map_err(|_| "smartctl printed invalid JSON".to_owned())?;
    let mut report = DriveReport {
        model: truncated(output["model_name"].as_str().unwrap_or_default()),
        read_unix_seconds: now,
        temperature_celsius: output["temperature"]["current"].as_i64(),
        ..DriveReport::default()
    };
    let passed = output["smart_status"]["passed"].as_bool();
    let nvme = &output["nvme_smart_health_information_log"];
    let attributes = output["ata_smart_attributes"]["table"].as_array();
    if nvme.is_object() {
        read_nvme(nvme, &mut report);
    } else if let Some(attributes) = attributes {
        read_ata(&output, attributes, &mut report);
    } else if passed.is_none() {
        return Err(failure_reason(&output));
    }
    let is_low =
        report.spare_ratio.zip(report.spare_threshold_ratio).is_some_and(|(spare, threshold)| spare < threshold);
    if is_low && !report.warnings.iter().any(|warning| warning == WARNINGS[0]) {
        report.warnings.push(WARNINGS[0].to_owned());
    }
    if passed == Some(false) {
        report.warnings.push("its overall health self-assessment has failed".to_owned());
    }
    Ok(report)
}

fn read_nvme(log: &Value, report: &mut DriveReport) {
    report.spare_ratio = percent(&log["available_spare"]);
    report.spare_threshold_ratio = percent(&log["available_spare_threshold"]);
    report.wear_used_ratio = percent(&log["percentage_used"]);
    report.media_errors = log["media_errors"].as_u64();
    let bits = log["critical_warning"].as_u64().unwrap_or(0);
    let is_set = |bit: &usize| bits >> bit & 1 == 1;
    report.warnings = (0..WARNINGS.len()).filter(is_set).map(|bit| WARNINGS[bit].to_owned()).collect();
}

fn read_ata(output: &Value, attributes: &[Value], report: &mut DriveReport) {
    let find =
        |names: &[&str]| names.iter().find_map(|name| attributes.iter().find(|attribute| attribute["name"] == **name));
    // Newer versions of smartctl compute the wear themselves, for more drives.
    report.wear_used_ratio = percent(&output["endurance_used"]["current_percent"])
        .or_else(|| Some(1.0 - percent(&find(&LIFE_LEFT)?["value"])?.min(1.0)));
    let spare = find(&SPARE_LEFT);
    report.spare_ratio =
        percent(&output["spare_available"]["current_percent"]).or_else(|| Some(percent(&spare?["value"])?.min(1.0)));
    let threshold = percent(&output["spare_available"]["threshold_percent"]).or_else(|| percent(&spare?["thresh"]));
    report.spare_threshold_ratio = threshold.filter(|threshold| *threshold > 0.0);
    report.media_errors = find(&UNCORRECTED).and_then(|attribute| attribute["raw"]["value"].as_u64());
    let failing = attributes.iter().filter(|attribute| attribute["when_failed"] == "now");
    let named = failing.filter_map(|attribute| attribute["name"].as_str());
    report.warnings = named.map(|name| format!("its attribute {} is below the threshold", truncated(name))).collect();
}

fn percent(value: &Value) -> Option<f64> {
    value.as_u64().map(|percent| percent as f64 / 100.0)
}

/// The reason why the output has no health, from smartctl's messages if there are any.
fn failure_reason(output: &Value) -> String {
    let messages = output["smartctl"]["messages"].as_array().into_iter().flatten();
    let texts: Vec<&str> = messages.filter_map(|message| message["string"].as_str()).collect();
    match texts.is_empty() {
        true => "the drive reports no health".to_owned(),
        false => format!("smartctl: {}", truncated(&texts.join("; "))),
    }
}

fn truncated(text: &str) -> String {
    text.chars().filter(|c| !messages::is_control(*c)).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVME: &str = include_str!("fixtures/nvme.json");
    const NVME_FAILING: &str = include_str!("fixtures/nvme-failing.json");
    const SATA: &str = include_str!("fixtures/sata.json");
    const DENIED: &str = include_str!("fixtures/denied.json");

    fn parsed(text: &str) -> DriveReport {
        parse(text.as_bytes(), 7).expect("the output reports health")
    }

    #[test]
    fn health_log_of_nvme_drive_is_read() {
        let drive = parsed(NVME);
        let expected = DriveReport {
            model: "EXAMPLE NVMe SSD 1TB".to_owned(),
            read_unix_seconds: 7,
            spare_ratio: Some(1.0),
            spare_threshold_ratio: Some(0.1),
            wear_used_ratio: Some(0.03),
            temperature_celsius: Some(41),
            media_errors: Some(0),
            ..DriveReport::default()
        };
        assert_eq!(drive, expected);
    }

    #[test]
    fn each_drive_warning_is_reported_once_as_text() {
        let drive = parsed(NVME_FAILING);
        assert_eq!(drive.warnings, [WARNINGS[0], WARNINGS[2], "its overall health self-assessment has failed"]);
        assert_eq!((drive.spare_ratio, drive.wear_used_ratio, drive.media_errors), (Some(0.04), Some(1.12), Some(219)));
        // Spare blocks below the threshold without the critical warning bit.
        let quiet = NVME_FAILING.replace("\"critical_warning\": 5", "\"critical_warning\": 0");
        assert_eq!(parsed(&quiet).warnings, [WARNINGS[0], "its overall health self-assessment has failed"]);
    }

    #[test]
    fn sata_attributes_are_read_by_their_known_names() {
        let drive = parsed(SATA);
        assert_eq!((drive.spare_ratio, drive.spare_threshold_ratio), (Some(0.98), Some(0.1)));
        assert_eq!((drive.temperature_celsius, drive.media_errors), (Some(33), Some(2)));
        assert!((drive.wear_used_ratio.expect("the wear is reported") - 0.07).abs() < 1e-9);
        assert_eq!(drive.warnings, [""; 0]);
        let failing = SATA.replacen("\"when_failed\": \"\"", "\"when_failed\": \"now\"", 1);
        assert_eq!(parsed(&failing).warnings, ["its attribute Reallocated_Sector_Ct is below the threshold"]);
        // A value computed by a newer smartctl takes precedence.
        let newer = SATA.replacen('{', "{ \"endurance_used\": { \"current_percent\": 12 },", 1);
        assert_eq!(parsed(&newer).wear_used_ratio, Some(0.12));
    }

    #[test]
    fn unreadable_health_is_reported_with_its_reason() {
        let failure_reason = |text: &str| parse(text.as_bytes(), 7).expect_err("nothing is known");
        assert_eq!(failure_reason(DENIED), "smartctl: Smartctl open device: /dev/sda failed: Permission denied");
        assert_eq!(failure_reason("{}"), "the drive reports no health");
        assert_eq!(failure_reason("[1]"), "the drive reports no health");
        for cut in ["", "smartctl: command line error", &NVME[..NVME.len() / 2]] {
            assert_eq!(failure_reason(cut), "smartctl printed invalid JSON");
        }
        // Fields of an unexpected type.
        let invalid = NVME.replace("\"available_spare\": 100", "\"available_spare\": \"many\"").replace("41", "null");
        let drive = parsed(&invalid);
        assert_eq!((drive.spare_ratio, drive.temperature_celsius), (None, None));
    }
}
