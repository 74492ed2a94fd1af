//! The vhost-user-blk front end: a guest's own queues in shared memory, without a network and without a copy in between.
//!
//! `server` accepts virtual machines' front ends, `socket` talks to one on a thread of its own, `session` keeps what it says of its guest.
//! From there on the front end takes no part: `queue` serves what the guest's driver puts into its rings, on the data core. What came from
//! a guest is looked at once, copied, and never trusted: a queue whose driver breaks the rules stops, and nothing else does.

mod config;
mod descriptor;
mod device;
mod inflight;
pub mod memory;
pub mod message;
mod queue;
mod request;
pub mod ring;
mod room;
mod server;
mod session;
mod socket;

pub use ring::Broken;
pub use server::{Report, Server};
pub use session::{Left, MakeBell, Refused, Session, Shared};
