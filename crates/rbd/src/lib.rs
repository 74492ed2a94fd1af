//! The daemon and `hotset-rbd` share the address of an image and the messages of the control channel.
//!
//! `hotset-rbd` serves one image of Ceph's RBD over NBD to the daemon that started it. The daemon links nothing of
//! Ceph: `hotset-rbd` loads librbd and librados at run time, and a hang or a crash in them stays in its process.

mod boot_clock;
mod expected;
mod host_name;
mod image_spec;
mod invocation;
mod line;
mod mark;
mod order;
mod release;
mod standby_report;
mod status;

pub use boot_clock::{LEASE, boot_ms, expired_for};
pub use expected::Expected;
pub use host_name::{host_word, machine_name};
pub use image_spec::{ImageSpec, ImageSpecError, is_image_address};
pub use invocation::{Claim, Invocation, Purpose, TakeOver};
pub use line::{LINE_BYTES_MAX, read_line};
pub use mark::{Mark, parse_mark_id, show_mark_id};
pub use order::Order;
pub use release::Release;
pub use standby_report::StandbyReport;
pub use status::{Ownership, Status};
