//! The vhost-user-blk front end: serves a guest's queues in shared memory, without a network and without an extra copy.
//!
//! `server` accepts front ends of virtual machines. `socket` talks to one front end on a thread of its own, and
//! `session` keeps the state that it sets up. After the setup the front end is not involved: `queue` serves the rings
//! of the guest's driver on the data core. Guest data are copied once and validated. A queue whose driver breaks the
//! rules stops; other queues are not affected.

mod config;
mod descriptor;
mod device;
mod inflight;
pub mod memory;
pub mod message;
mod payload_pool;
mod queue;
mod request;
pub mod ring;
mod server;
mod session;
mod socket;

pub use ring::QueueError;
pub use server::{Report, Server};
pub use session::{MakeEventfd, Refused, Session, Shared, UnfinishedRequests};
