//! The vhost-user-blk back end (device side): serves a guest's queues in shared memory, without a network and with one
//! copy of the data.
//!
//! In the specification QEMU is the *front end* and the daemon the *back end*. `server` accepts front ends. `socket`
//! exchanges messages with one front end on a thread of its own; `session` holds the negotiated state. After the setup
//! the front end is not involved: `queue` serves the rings of the guest's driver on the data core. Guest data is
//! copied once and validated. A queue whose driver violates the protocol stops; other queues continue.

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
