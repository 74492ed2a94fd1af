//! A volume's quality of service and its text form: shares, limits, a reservation.

use std::fmt;
use std::str::FromStr;

use engine::{Limits, Qos};

use units::{exact_bytes, parse_size};

/// Key of the weight under congestion.
pub const SHARES: &str = "shares";
/// Key of the limit in requests per second.
pub const LIMIT_IOPS: &str = "limit_iops";
/// Key of the limit in bytes per second.
pub const LIMIT_BYTES: &str = "limit_bytes";
/// Key of the burst in requests.
pub const BURST_IOPS: &str = "burst_iops";
/// Key of the burst in bytes.
pub const BURST_BYTES: &str = "burst_bytes";
/// Key of the reservation in requests per second.
pub const RESERVATION_IOPS: &str = "reservation_iops";
/// All keys.
pub const KEYS: [&str; 6] = [SHARES, LIMIT_IOPS, LIMIT_BYTES, BURST_IOPS, BURST_BYTES, RESERVATION_IOPS];

/// Weights by name.
const NAMED_SHARES: [(&str, u32); 3] = [("low", 500), ("normal", Qos::NORMAL_SHARES), ("high", 2_000)];
const SHARES_MAX: u32 = 100_000;
/// Minimum of a limit in bytes. A smaller value probably lacks its unit: one long request would wait for a minute.
const LIMIT_BYTES_MIN: u64 = 64 << 10;

/// A volume's weight in a congested datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares(pub u32);

impl Default for Shares {
    fn default() -> Self {
        Shares(Qos::NORMAL_SHARES)
    }
}

impl FromStr for Shares {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMED_SHARES.iter().find(|(name, _)| *name == text).map(|(_, shares)| *shares);
        let shares = named.or_else(|| text.parse().ok()).filter(|shares| (1..=SHARES_MAX).contains(shares));
        shares.map(Shares).ok_or_else(|| {
            format!(
                "\"{text}\" is not a weight; give \"low\", \"normal\", \"high\", or a number from 1 to \
                     {SHARES_MAX}"
            )
        })
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED_SHARES.iter().find(|(_, shares)| *shares == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// Bytes per second, or bytes of a burst; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteLimit(pub u64);

impl FromStr for ByteLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_size(text)?;
        if (1..LIMIT_BYTES_MIN).contains(&bytes) {
            return Err(format!("\"{text}\" is too low; specify at least 64 KiB, or 0 for no limit"));
        }
        Ok(ByteLimit(bytes))
    }
}

impl fmt::Display for ByteLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Network rates use powers of ten: a round number of kB or MB is displayed in that unit.
        let bytes = self.0;
        let is_decimal =
            |unit: u64, binary_unit: u64| bytes > 0 && bytes.is_multiple_of(unit) && !bytes.is_multiple_of(binary_unit);
        match bytes {
            _ if is_decimal(1_000_000, 1 << 20) => write!(f, "{} MB", bytes / 1_000_000),
            _ if is_decimal(1_000, 1 << 10) => write!(f, "{} kB", bytes / 1_000),
            _ => f.write_str(&exact_bytes(bytes)),
        }
    }
}

/// Quality of service of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeQos {
    /// Its weight among the volumes of a congested datastore.
    pub shares: Shares,
    /// Requests per second at most; 0: no limit.
    pub limit_iops: u32,
    /// Bytes per second at most.
    pub limit_bytes: ByteLimit,
    /// Credit in requests that can accumulate below the limit.
    pub burst_iops: u32,
    /// Credit in bytes that can accumulate below the limit.
    pub burst_bytes: ByteLimit,
    /// Requests of 4 KiB per second that its datastore serves first; 0: no reservation.
    pub reservation_iops: u32,
}

impl VolumeQos {
    /// The value of a key as text; `None` for an unknown key.
    pub fn setting(&self, key: &str) -> Option<String> {
        Some(match key {
            SHARES => self.shares.to_string(),
            LIMIT_IOPS => self.limit_iops.to_string(),
            LIMIT_BYTES => self.limit_bytes.to_string(),
            BURST_IOPS => self.burst_iops.to_string(),
            BURST_BYTES => self.burst_bytes.to_string(),
            RESERVATION_IOPS => self.reservation_iops.to_string(),
            _ => return None,
        })
    }

    /// Sets a key to the value in `text`.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let count = || {
            text.parse::<u32>().map_err(|_| {
                format!("\"{text}\" is not a number of requests for \"{key}\"; write a whole number, 0 for no limit")
            })
        };
        match key {
            SHARES => self.shares = text.parse()?,
            LIMIT_IOPS => self.limit_iops = count()?,
            LIMIT_BYTES => self.limit_bytes = text.parse()?,
            BURST_IOPS => self.burst_iops = count()?,
            BURST_BYTES => self.burst_bytes = text.parse()?,
            RESERVATION_IOPS => self.reservation_iops = count()?,
            _ => return Err(format!("\"{key}\" is not a QoS setting; the settings are {}", KEYS.join(", "))),
        }
        Ok(())
    }

    /// The first contradiction, as key, fault and remedy. A burst without a limit is harmless, and a fault only if the
    /// burst is set now (`sets_burst`).
    pub fn fault(&self, has_datastore: bool, sets_burst: bool) -> Option<(&'static str, String, &'static str)> {
        if sets_burst && self.burst_iops > 0 && self.limit_iops == 0 {
            return Some((
                BURST_IOPS,
                "burst_iops without limit_iops".to_owned(),
                "add limit_iops, or remove the burst",
            ));
        }
        if sets_burst && self.burst_bytes.0 > 0 && self.limit_bytes.0 == 0 {
            let remedy = "add limit_bytes, or remove the burst";
            return Some((BURST_BYTES, "burst_bytes without limit_bytes".to_owned(), remedy));
        }
        if self.limit_iops > 0 && self.reservation_iops > self.limit_iops {
            let (reserved, limit) = (self.reservation_iops, self.limit_iops);
            let fault = format!("reservation_iops {reserved} is above limit_iops {limit}");
            return Some((RESERVATION_IOPS, fault, "lower the one or raise the other"));
        }
        if self.reservation_iops > 0 && !has_datastore {
            let remedy = "give the volume a datastore, or remove the reservation";
            return Some((RESERVATION_IOPS, "reservation_iops without a datastore".to_owned(), remedy));
        }
        None
    }

    /// The quality of service for the engine.
    pub fn of_engine(&self) -> Qos {
        let limits = Limits {
            iops: self.limit_iops.into(),
            burst_iops: self.burst_iops.into(),
            bytes: self.limit_bytes.0,
            burst_bytes: self.burst_bytes.0,
        };
        Qos { shares: self.shares.0, reservation_iops: self.reservation_iops.into(), limits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_setting_parses_to_the_same_value() {
        let cases = [
            (SHARES, "high", "high"),
            (SHARES, "1000", "normal"),
            (SHARES, "1234", "1234"),
            (LIMIT_IOPS, "500", "500"),
            (LIMIT_BYTES, "20 MB", "20 MB"),
            (LIMIT_BYTES, "64 MB", "64 MB"),
            (LIMIT_BYTES, "100500", "100500 B"),
            (BURST_IOPS, "0", "0"),
            (BURST_BYTES, "64 KiB", "64 KiB"),
            (RESERVATION_IOPS, "300", "300"),
        ];
        for (key, text, shown) in cases {
            let mut qos = VolumeQos::default();
            qos.set(key, text).expect(text);
            assert_eq!(qos.setting(key).as_deref(), Some(shown), "{key}");
            let mut reparsed = VolumeQos::default();
            reparsed.set(key, shown).expect(shown);
            assert_eq!(reparsed, qos);
        }
        for (key, text) in
            [(SHARES, "0"), (SHARES, "100001"), (SHARES, "some"), (LIMIT_IOPS, "-1"), (LIMIT_BYTES, "20")]
        {
            VolumeQos::default().set(key, text).expect_err(text);
        }
    }

    #[test]
    fn contradictory_settings_are_reported() {
        let qos = VolumeQos {
            limit_iops: 100,
            reservation_iops: 101,
            burst_bytes: ByteLimit(1 << 20),
            ..VolumeQos::default()
        };
        let fault = |qos: VolumeQos, sets_burst| qos.fault(true, sets_burst).map(|(key, ..)| key);
        assert_eq!((fault(qos, true), fault(qos, false)), (Some(BURST_BYTES), Some(RESERVATION_IOPS)));
        let valid = VolumeQos { reservation_iops: 100, limit_bytes: ByteLimit(1 << 20), ..qos };
        assert_eq!((fault(valid, true), valid.fault(false, true).map(|(key, ..)| key)), (None, Some(RESERVATION_IOPS)));
    }
}
