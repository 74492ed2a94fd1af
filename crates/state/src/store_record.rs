//! Record of a flash store.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::fields::{hex, is_zero, show_incarnation};

/// What is known of a flash store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// Its identity, 32 hexadecimal digits.
    pub store: String,
    /// The generation of its members that was last seen: devices that know less were taken out of service.
    pub generation: u64,
    /// The directory's generation in which it was opened last.
    #[serde(default)]
    pub epoch: u64,
    /// The life in which it was opened last, 16 hexadecimal digits; 0 where it was opened by a version that drew none.
    #[serde(default, with = "hex", skip_serializing_if = "is_zero")]
    pub life: u64,
    /// Lives that were about to begin since, 16 hexadecimal digits each: superblocks may name them already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub openings: Vec<String>,
    /// The sequence that its log had reached when it was closed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: u64,
    /// Its map of clean pages is void: all devices that carry it had failed, and backings have been written since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub map_void: bool,
    /// Volumes, 16 hexadecimal digits each, of which its log may hold data that was given up: it is never served.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub given_up: BTreeSet<String>,
    /// Fields of a later version: kept as they are.
    #[serde(flatten)]
    pub newer: serde_json::Map<String, serde_json::Value>,
}

impl StoreRecord {
    /// Of a store of which nothing is known but its identity.
    pub fn new(store: &str) -> StoreRecord {
        StoreRecord { store: store.to_owned(), ..StoreRecord::default() }
    }

    /// True when a device that names that life may be of the last one.
    pub(super) fn may_be_in(&self, life: u64) -> bool {
        life == self.life || self.openings.contains(&show_incarnation(life))
    }
}
