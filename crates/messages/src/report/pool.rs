//! Pools: tiers, groups, and the volumes cut from them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An open pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes of all groups in service that volumes can use.
    pub size_bytes: u64,
    /// Bytes of these that no volume uses.
    pub free_bytes: u64,
    /// Its tiers, the fastest first.
    pub tiers: Vec<PoolTierReport>,
    /// Its volumes.
    pub volumes: Vec<PoolVolumeReport>,
}

/// A tier of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolTierReport {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<PoolGroupReport>,
}

/// A group of a pool: one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolGroupReport {
    /// Its number.
    pub number: u16,
    /// Its device; the last known name if it is absent.
    pub device: String,
    /// `in-service`, `draining`, `removed` or `absent`.
    pub state: String,
    /// True if it carries a copy of the pool's metadata.
    pub carries_metadata: bool,
    /// Bytes that volumes can use.
    pub size_bytes: u64,
    /// Bytes of these that no volume uses.
    pub free_bytes: u64,
}

/// A volume of a pool, which may be served under the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolVolumeReport {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of its slices in each tier, in the order of the tiers.
    pub tier_bytes: Vec<u64>,
    /// Bytes of it on devices that are absent.
    pub lost_bytes: u64,
}
