//! Several volumes as one linear address space.

use std::sync::Arc;

use super::Access;

/// Mapping of one linear address space to the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Striped over the volumes, with stripes of this many bytes.
    Striped(u64),
    /// Concatenated.
    Concatenated,
}

/// Several volumes as one linear address space.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    /// End of each volume when they are concatenated.
    ends: Arc<[u64]>,
    layout: Layout,
}

impl AddressSpace {
    /// Creates an address space over volumes of these sizes.
    pub fn new(layout: Layout, sizes: impl Iterator<Item = u64>) -> AddressSpace {
        let ends = sizes.scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        AddressSpace { ends: ends.collect(), layout }
    }

    /// Total bytes.
    pub fn size_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Maps an access to a volume and a byte offset on it. An access past the end of a stripe is moved back to end with
    /// the stripe.
    pub fn locate(&self, Access { at, len, .. }: Access) -> (usize, u64) {
        match self.layout {
            Layout::Striped(bytes) => {
                let (stripe, volumes) = (at / bytes, self.ends.len() as u64);
                let offset = (at % bytes).min(bytes - u64::from(len));
                ((stripe % volumes) as usize, stripe / volumes * bytes + offset)
            }
            Layout::Concatenated => {
                let volume = self.ends.partition_point(|end| *end <= at);
                (volume, at - volume.checked_sub(1).map_or(0, |before| self.ends[before]))
            }
        }
    }
}
