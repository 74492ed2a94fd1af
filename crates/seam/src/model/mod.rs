//! How long disks take: spindles, RAID groups and SSDs as pure arithmetic in whole nanoseconds.
//!
//! A model does no I/O and knows no clock. It is told what is submitted and when, says when it wants to be looked at next,
//! and then says what has completed. So the same model runs in virtual time in front of a simulated disk and in real time in
//! front of a sparse file ([`ModelledDisk`], the `sim://` backing).
//!
//! What the models are calibrated to, and how far they keep to it, is what `cargo test -p seam calibration -- --nocapture`
//! prints.

mod array;
#[cfg(test)]
mod calibration;
mod controller;
mod disk;
mod layout;
mod spindle;
mod ssd;
mod types;

pub use array::{Array, ArraySpec, ModelError};
pub use disk::{ModelledDisk, SharedArray};
pub use layout::RaidLevel;
pub use spindle::{Spindle, SpindleSpec};
pub use ssd::{Ssd, SsdSpec};
pub use types::DiskType;

use crate::Nanos;

/// What a device is asked to do with its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// One device of an array: takes operations, says when it is to be looked at, says what is done.
pub trait Device {
    /// Takes an operation on `len` bytes from `at` on; `token` comes back when it is done.
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64);

    /// The time of the next completion.
    fn next_event(&self) -> Option<Nanos>;

    /// The operation that completes at [`Device::next_event`], which has come; what waited starts at that time.
    fn complete(&mut self) -> u64;

    /// Operations that were submitted and are not done.
    fn queued(&self) -> usize;

    /// Time that it has been busy.
    fn busy(&self) -> Nanos;
}

#[cfg(test)]
mod tests;
