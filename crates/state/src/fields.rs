//! Formats of fields in the records.

use engine::VolumeId;

/// A volume ID as 16 hexadecimal digits.
pub fn show_volume_id(volume_id: VolumeId) -> String {
    show_number(volume_id.0)
}

/// 16 hexadecimal digits.
pub(super) fn show_number(number: u64) -> String {
    format!("{number:016x}")
}

/// True for a number that the record omits.
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

/// A volume ID as 16 hexadecimal digits.
pub(super) mod hex_volume {
    use engine::VolumeId;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &VolumeId, serializer: S) -> Result<S::Ok, S::Error> {
        super::hex::serialize(&value.0, serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VolumeId, D::Error> {
        super::hex::deserialize(deserializer).map(VolumeId)
    }
}

/// Defines the two directions of a typed number that is a plain number in the file.
macro_rules! plain_number {
    ($module:ident, $number:ident) => {
        pub(super) mod $module {
            use flash::$number;
            use serde::{Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(value: &$number, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(value.0)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$number, D::Error> {
                u64::deserialize(deserializer).map($number)
            }
        }
    };
}

plain_number!(sequence, Sequence);
plain_number!(store_generation, MembershipGeneration);
