//! Number types of the pool: one type each, because these numbers are easily mixed up.
//!
//! The integer inside is public. Code reads it only where a number leaves its type: in a disk format, as an index or a
//! count, or in text.

use std::fmt;

/// Defines a number that prints like its integer.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident: $integer:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $integer);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub fn next(self) -> Self {
                $name(self.0 + 1)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// The persistent identity of a volume in its pool, from 1 on; never reused.
    VolumeId: u32
}
number! {
    /// The number of a slice in its volume.
    SliceNo: u32
}
number! {
    /// The number of a group: the index of its entry in the superblock.
    GroupNo: u16
}
number! {
    /// The number of a slot on its group.
    SlotNo: u32
}
number! {
    /// The number of a tier; 0 is the fastest.
    TierNo: u8
}
number! {
    /// +1 with every change of the members.
    PoolGeneration: u64
}
number! {
    /// The number of a journal block; its place in the ring is this number modulo the ring's length.
    Sequence: u64
}
number! {
    /// The number of a checkpoint, from 1 on. Odd ones lie in area B, even ones in area A.
    CheckpointNo: u64
}

impl GroupNo {
    /// The index of its entry in lists of all groups.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl SlotNo {
    /// The index of its entry in lists of all slots of a group.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl SliceNo {
    /// The index of its entry in lists of all slices of a volume.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Sequence {
    /// The sequence number `count` blocks later.
    #[must_use]
    pub fn plus(self, count: u64) -> Sequence {
        Sequence(self.0 + count)
    }
}

/// A slot of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotAddress {
    /// The group.
    pub group: GroupNo,
    /// The slot on it.
    pub slot: SlotNo,
}

impl fmt::Display for SlotAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} of group {}", self.slot, self.group)
    }
}

/// A slice of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceAddress {
    /// The volume.
    pub volume: VolumeId,
    /// The slice of it.
    pub slice: SliceNo,
}

/// A slice of a family: of a volume, its snapshots and its clones. A slot that several of them share is the same slice
/// of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilySlice {
    /// The number of the family: the one of its first volume, which may be gone.
    pub family: VolumeId,
    /// The slice of each volume.
    pub slice: SliceNo,
}

impl fmt::Display for FamilySlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice {} of the family of volume {}", self.slice, self.family)
    }
}

impl fmt::Display for SliceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice {} of volume {}", self.slice, self.volume)
    }
}
