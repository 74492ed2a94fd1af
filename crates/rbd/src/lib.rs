//! The daemon and `hotset-rbd` share the address of an image and the messages of the control channel.
//!
//! `hotset-rbd` serves one image of Ceph's RBD over NBD to the daemon that started it. The daemon links nothing of
//! Ceph: `hotset-rbd` loads librbd and librados at run time, and a hang or a crash in them stays in its process.

mod boot_clock;
mod image_spec;
mod status;

pub use boot_clock::{LEASE, boot_ms, expired_for};
pub use image_spec::{ImageSpec, ImageSpecError};
pub use status::{Expected, LINE_BYTES_MAX, Ownership, Status};
