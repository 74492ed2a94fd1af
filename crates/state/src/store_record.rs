//! Record of a flash store.

use std::collections::BTreeSet;
use std::path::PathBuf;

use flash::{MembershipGeneration, Sequence};
use serde::{Deserialize, Serialize};

use super::fields::{hex, is_zero, sequence, show_number, store_generation};

/// Record of a flash store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// Its identity, 32 hexadecimal digits.
    pub store: String,
    /// Last seen generation of its members: devices with an older one were taken out of service.
    #[serde(with = "store_generation")]
    pub generation: MembershipGeneration,
    /// The directory's generation at the last opening.
    #[serde(default)]
    pub epoch: u64,
    /// Life of the last opening, 16 hexadecimal digits; 0 if a version without lives opened it.
    #[serde(default, with = "hex", skip_serializing_if = "is_zero")]
    pub life: u64,
    /// Lives that were about to begin since then, 16 hexadecimal digits each: superblocks may already name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub openings: Vec<String>,
    /// Sequence number of its log at the last close.
    #[serde(default, with = "sequence", skip_serializing_if = "is_empty_sequence")]
    pub sequence: Sequence,
    /// Its map of clean pages is unusable: all devices with the map had failed, and backings have been written since.
    #[serde(rename = "map_void", default, skip_serializing_if = "std::ops::Not::not")]
    pub map_unusable: bool,
    /// Volumes, 16 hexadecimal digits each, whose data in its log was given up and is never served.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub given_up: BTreeSet<String>,
    /// Absolute paths of its devices. A missing file among them is never created again at a start. Empty in records of
    /// versions that did not record them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub devices: BTreeSet<PathBuf>,
    /// Fields of a later version, preserved unchanged.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
}

fn is_empty_sequence(sequence: &Sequence) -> bool {
    *sequence == Sequence(0)
}

impl StoreRecord {
    /// The record of a store of which only the identity is known.
    pub fn new(store: &str) -> StoreRecord {
        StoreRecord { store: store.to_owned(), ..StoreRecord::default() }
    }

    /// True if a device that names this life may belong to the last opening, or to an interrupted one since.
    pub(super) fn may_have_life(&self, life: u64) -> bool {
        life == self.life || self.openings.contains(&show_number(life))
    }
}
