//! A guest's side of vhost-user-blk: a front end's messages and a driver's queues in shared memory, for tests and
//! measurements.
//!
//! Written from the specification without code of the server, so that an error on either side is detected. The driver
//! obeys the specification by default; a hostile driver is built with [`Queue::put_descriptor`] and its like.

mod front_end;
mod memory;
mod queue;

pub use front_end::{FrontEnd, Inflight, feature, message, protocol};
pub use memory::Memory;
pub use queue::{Completion, Queue, Request, descriptor};
