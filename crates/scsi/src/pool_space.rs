//! Space of a pool of thin units, and the thresholds of its fill.

/// A threshold of a pool's fill, numbered in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftThreshold(u8);

impl SoftThreshold {
    /// Number of thresholds of a pool.
    pub const COUNT: usize = 3;
    /// All thresholds, ascending.
    pub const ALL: [SoftThreshold; Self::COUNT] = [SoftThreshold(0), SoftThreshold(1), SoftThreshold(2)];
    /// Offset of the first threshold descriptor in the Logical Block Provisioning mode page.
    pub const FIRST_DESCRIPTOR: usize = 16;
    /// Length of a threshold descriptor in bytes.
    pub const DESCRIPTOR_BYTES: usize = 8;

    /// Offset of its descriptor in the mode page: the information field of its unit attention.
    pub fn descriptor_offset(self) -> u64 {
        (Self::FIRST_DESCRIPTOR + usize::from(self.0) * Self::DESCRIPTOR_BYTES) as u64
    }
}

/// Space of a pool, shared by all of its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpace {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Free bytes.
    pub available_bytes: u64,
    /// Used bytes at which each threshold is reached.
    pub soft_thresholds: [u64; SoftThreshold::COUNT],
}
