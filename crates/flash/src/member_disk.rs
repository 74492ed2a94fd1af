//! The disks that a store can use.

use nbd_client::NbdDisk;
use seam::{Seam, forward_to_variants};

/// A disk of the store.
pub enum MemberDisk<S: Seam> {
    /// A file or device of this machine.
    Local(S::Disk),
    /// An image of a storage cluster (RBD), which a helper process of the daemon serves over NBD.
    Image(NbdDisk<S>),
    /// A simulated disk in the role of an image: the simulated world has no servers.
    SimulatedImage(S::Disk),
}

forward_to_variants!(MemberDisk: Local, Image, SimulatedImage);

impl<S: Seam> MemberDisk<S> {
    /// True for an image of a cluster, which keeps copies of it.
    pub fn is_image(&self) -> bool {
        match self {
            MemberDisk::Local(_) => false,
            MemberDisk::Image(_) | MemberDisk::SimulatedImage(_) => true,
        }
    }
}

/// The disks on which a store has its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlacement {
    /// Two local disks: each has a copy.
    Mirrored,
    /// One image: its cluster keeps the copies. Local disks of the store hold only pages, and never take over the log.
    Image,
}

impl LogPlacement {
    /// The placement of a store on these disks: on an image, if there is one.
    pub fn of<'a, S: Seam>(disks: impl IntoIterator<Item = &'a MemberDisk<S>>) -> LogPlacement {
        if disks.into_iter().any(MemberDisk::is_image) { LogPlacement::Image } else { LogPlacement::Mirrored }
    }

    /// The number of members that carry the log when it is complete.
    pub fn copies(self) -> usize {
        match self {
            LogPlacement::Mirrored => 2,
            LogPlacement::Image => 1,
        }
    }

    /// True if this disk may carry the log.
    pub fn admits<S: Seam>(self, disk: &MemberDisk<S>) -> bool {
        disk.is_image() == (self == LogPlacement::Image)
    }
}
