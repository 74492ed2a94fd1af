//! A group of a pool on modelled hardware: a simulated disk, or a window of a modelled array.

use seam::model::ModelledDisk;
use seam::{Seam, forward_to_variants};

/// The disk of a group, in a pool whose groups differ in kind.
pub enum GroupDisk<S: Seam> {
    /// A disk that was opened through the seam.
    Plain(S::Disk),
    /// A window of a modelled array.
    Modelled(ModelledDisk<S, S::Disk>),
}

forward_to_variants!(GroupDisk: Plain, Modelled);
