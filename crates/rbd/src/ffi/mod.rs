//! The C interfaces of librbd and librados, and of the C library: the only unsafe code of this crate.
//!
//! Only functions and structures are used that are stable since Ceph 15.

mod aio;
mod cluster;
mod header_changes;
mod image;
mod library;
mod signals;

pub use aio::{Completion, Operation};
pub use cluster::{CephError, Cluster};
pub use header_changes::HeaderChanges;
pub use image::{Image, ImageOption, OptionLevel};
pub use library::{LoadError, load};
pub use signals::ignore_stop_signals;
