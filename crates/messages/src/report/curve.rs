//! Miss-ratio curves of a volume, estimated while it is used.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume's two curves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MissRatioCurve {
    /// Time since the volume was attached.
    pub observed_ms: u64,
    /// Of memory, in blocks of 4 KiB.
    pub memory: Curve,
    /// Of flash, in pages of 64 KiB.
    pub flash: Curve,
}

/// One curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Curve {
    /// Bytes of a block or page.
    pub unit_bytes: u64,
    /// Accessed blocks or pages; older accesses count less.
    pub accesses: u64,
    /// Bytes of the recently accessed blocks or pages.
    pub working_set_bytes: u64,
    /// By growing size, 64 at most.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Point {
    /// The size of a cache.
    pub size_bytes: u64,
    /// Miss ratio of an LRU cache of that size.
    pub miss_ratio: f64,
}
