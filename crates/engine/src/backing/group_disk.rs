//! A group of a pool on modelled hardware: a simulated disk, or an address range of a modelled array.

use seam::model::ModelledDisk;
use seam::{Seam, forward_to_variants};

/// The disk of a group, which may be of either kind.
pub enum GroupDisk<S: Seam> {
    /// A disk that was opened through the seam.
    Plain(S::Disk),
    /// An address range of a modelled array.
    Modelled(ModelledDisk<S, S::Disk>),
}

forward_to_variants!(GroupDisk: Plain, Modelled);
