//! Formats of fields in the records.

/// 16 hexadecimal digits.
pub fn show_incarnation(incarnation: u64) -> String {
    format!("{incarnation:016x}")
}

/// True for a number that is left out.
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A number as 16 hexadecimal digits.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}
