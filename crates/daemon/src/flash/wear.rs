//! Bytes written to each flash device across all restarts, and the rated life used. The store counts from its opening.
//! The total is saved in the state directory once a minute and at a clean stop, so that a crash loses at most the bytes
//! of a minute.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use flash::{MemberReport, MemberWrites};
use messages::report::{FlashDeviceReport, WrittenReport};

use super::super::cores::CoreLocal;
use super::FlashLog;
use logging::{self as log, FLASH};
use state::{DeviceWear, State};

/// Rated life: `endurance_dwpd` full writes per day for five years, the usual warranty of manufacturers.
const RATED_DAYS: u64 = 5 * 365;
const DAY_SECONDS: u64 = 86_400;
/// Minimum observation time for a forecast.
const FORECAST_SECONDS_MIN: u64 = 3_600;

/// Bytes written to each device, by device identity.
type WearByDevice = BTreeMap<String, DeviceWear>;

fn unix_seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The bytes written before the store was opened plus the store's own count.
fn total(before: Option<&DeviceWear>, written: &MemberWrites) -> DeviceWear {
    let before = before.cloned().unwrap_or_else(|| DeviceWear { since: unix_seconds_now(), ..DeviceWear::default() });
    DeviceWear {
        since: before.since,
        promotion_bytes: before.promotion_bytes + written.promotion_bytes,
        dirty_bytes: before.dirty_bytes + written.log_bytes,
        journal_bytes: before.journal_bytes + written.journal_bytes,
    }
}

/// Adds the bytes written to a device's report, and the rated life used, where `milli_dwpd` gives a rating.
pub(super) fn report(
    device: &mut FlashDeviceReport,
    before: Option<&DeviceWear>,
    written: &MemberWrites,
    milli_dwpd: u32,
) {
    let total_wear = total(before, written);
    let bytes = total_wear.promotion_bytes + total_wear.dirty_bytes + total_wear.journal_bytes;
    device.written = WrittenReport {
        promotion_bytes: total_wear.promotion_bytes,
        dirty_bytes: total_wear.dirty_bytes,
        journal_bytes: total_wear.journal_bytes,
        since_unix_seconds: total_wear.since,
    };
    let rated_bytes = u128::from(device.size_bytes) * u128::from(milli_dwpd) * u128::from(RATED_DAYS) / 1000;
    if rated_bytes == 0 {
        return;
    }
    device.endurance_used_ratio = Some(bytes as f64 / rated_bytes as f64);
    let age_seconds = unix_seconds_now().saturating_sub(total_wear.since);
    if age_seconds >= FORECAST_SECONDS_MIN && bytes > 0 {
        let remaining_bytes = rated_bytes.saturating_sub(u128::from(bytes));
        device.endurance_left_days =
            Some((remaining_bytes * u128::from(age_seconds) / u128::from(bytes) / u128::from(DAY_SECONDS)) as u64);
    }
}

/// Bytes written to each device before the store was opened.
#[derive(Default)]
pub struct Wear(RefCell<WearByDevice>);

impl Wear {
    /// Loads the totals from before this start. To be called once, after the store was opened.
    pub fn load(&self, state: &State) {
        self.0.borrow_mut().clone_from(&state.wear);
    }

    /// The bytes written to a device before the store was opened.
    pub fn wear_of(&self, device: &str) -> Option<DeviceWear> {
        self.0.borrow().get(device).cloned()
    }

    /// The totals of `members`, of which `written` counts the bytes since the store was opened.
    fn totals(&self, members: Vec<MemberReport>, written: &[MemberWrites]) -> WearByDevice {
        let mut wear = self.0.borrow().clone();
        for member in members {
            let Some(device) = member.device else { continue };
            let written = written.iter().find(|written| written.member == member.member).copied().unwrap_or_default();
            let total = total(wear.get(&device), &written);
            wear.insert(device, total);
        }
        wear
    }
}

impl FlashLog {
    /// Saves the totals up to now.
    pub async fn save_wear(&self) {
        let read = async |local: Rc<CoreLocal>| {
            let members = local.engine.log().map(|log| log.members()).unwrap_or_default();
            let written = local.engine.pages().map(|pages| pages.stats().members).unwrap_or_default();
            (members, written)
        };
        let Ok((members, written)) = self.core().call(read).await else { return };
        let totals = self.wear.totals(members, &written);
        let saved = self.records.change(|state| state.wear = totals);
        if let Err(error) = saved {
            log::error!(target: FLASH, "the write counters of the flash devices could not be saved: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_add_up_over_restarts_and_count_as_used_life() {
        let full_write_bytes = 100 << 30;
        let before = DeviceWear {
            since: unix_seconds_now() - 10 * DAY_SECONDS,
            promotion_bytes: 9 * full_write_bytes,
            ..DeviceWear::default()
        };
        let written = MemberWrites {
            promotion_bytes: full_write_bytes / 2,
            log_bytes: full_write_bytes / 2,
            ..MemberWrites::default()
        };
        let mut device = FlashDeviceReport { size_bytes: full_write_bytes, ..FlashDeviceReport::default() };
        report(&mut device, Some(&before), &written, 1000);
        assert_eq!(
            (device.written.promotion_bytes, device.written.dirty_bytes),
            (9 * full_write_bytes + full_write_bytes / 2, full_write_bytes / 2)
        );
        // The device was written full ten times in ten days; it is rated for once a day over five years.
        let used = device.endurance_used_ratio.expect("it is rated");
        assert!((used - 10.0 / 1825.0).abs() < 1e-6, "{used}");
        assert_eq!(device.endurance_left_days, Some(1815));
        let mut unrated = FlashDeviceReport { size_bytes: full_write_bytes, ..FlashDeviceReport::default() };
        report(&mut unrated, Some(&before), &written, 0);
        assert_eq!(unrated.endurance_used_ratio, None);
    }
}
