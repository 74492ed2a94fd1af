//! The slow storage under a volume, whatever it is: the engine cannot tell a file from an array.

use seam::Seam;

/// Where a volume's data lies.
pub struct Backing<S: Seam> {
    /// The storage.
    pub disk: S::Disk,
}
