//! Timing models of disks: spindles, RAID groups and SSDs as pure arithmetic in whole nanoseconds.
//!
//! A model does no I/O and has no clock. Callers pass submissions with their times; the model reports the time of its
//! next event, and then the completed requests. The same model therefore runs in virtual time in front of a simulated
//! disk, and in real time in front of a sparse file ([`ModelledDisk`], the `sim://` backing).
//!
//! `cargo test -p seam calibration -- --nocapture` prints the calibration targets of the models and the deviations from
//! them.

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

/// Kind of an access to a device's medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// One device of an array: accepts operations, reports the time of its next event, and reports completions.
pub trait Device {
    /// Submits an operation on `len` bytes from `at` on; [`Device::complete`] returns `token`.
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64);

    /// The time of the next completion.
    fn next_event(&self) -> Option<Nanos>;

    /// Completes the operation of [`Device::next_event`], whose time has come, and starts the next operation at that
    /// time.
    fn complete(&mut self) -> u64;

    /// Operations submitted and not completed.
    fn outstanding(&self) -> usize;

    /// Total busy time.
    fn busy(&self) -> Nanos;
}

#[cfg(test)]
mod tests;
