//! Numbers that are easily mixed up, each with its own type.
//!
//! The integer inside is public. Code reads it only where a number leaves its type: in a disk format, as an index or a
//! count, or in text. There is no arithmetic except by named methods, and no conversion from or to an integer by itself.

use std::fmt;

/// Defines a number that prints like its integer.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

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
    /// The persistent identity of a volume: its incarnation. It is never reused, unlike a name.
    VolumeId
}

impl fmt::LowerHex for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
