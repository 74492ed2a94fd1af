//! Heat map: accesses to each part of a volume, by the minute.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Recent accesses to each part of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeatReport {
    /// The volume's size.
    pub size_bytes: u64,
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Seconds of a row.
    pub step_seconds: u64,
    /// Seconds for which rows are kept.
    pub keep_seconds: u64,
    /// Minutes with accesses, the oldest first.
    pub rows: Vec<HeatRow>,
}

/// A row: each request is counted in the part where it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeatRow {
    /// When it begins, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Reads of each part, by address.
    pub reads: Vec<u32>,
    /// Writes of each.
    pub writes: Vec<u32>,
}
