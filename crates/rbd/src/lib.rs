//! The daemon and `hotset-rbd` share the address of an image and the messages of the control channel.
//!
//! `hotset-rbd` serves one image of Ceph's RBD over NBD to the daemon that started it. The daemon links nothing of
//! Ceph: `hotset-rbd` loads librbd and librados at run time, and a hang or a crash in them stays in its process.

mod boot_clock;
mod image_spec;
mod line;
mod order;
mod status;

/// Argument of a helper before the names of data that may be lost, separated by commas ([`Mark::show_id`]).
pub const GIVE_UP: &str = "--give-up";

pub use boot_clock::{LEASE, boot_ms, expired_for};
pub use image_spec::{ImageSpec, ImageSpecError, is_image_address};
pub use line::{LINE_BYTES_MAX, read_line};
pub use order::Order;
pub use status::{Expected, Mark, Ownership, Status};
