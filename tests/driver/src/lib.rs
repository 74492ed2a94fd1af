//! A guest's side of vhost-user-blk: a front end's messages and a driver's queues in shared memory, for tests and measurements.
//!
//! Written from the specification and sharing nothing with the server, so that both have to be right. It keeps to the rules where it is not
//! told otherwise; what a hostile driver does is done with [`Queue::put_descriptor`] and its like.

mod front_end;
mod memory;
mod queue;

pub use front_end::{FrontEnd, Inflight, feature, protocol};
pub use memory::Memory;
pub use queue::{Done, Queue, Request, descriptor};
