//! Heat: the demand that each slice of a pool puts on its device below the caches.
//!
//! Heat is kept as *demand* (random reads, random writes, bytes), independent of the device class: the planner prices
//! the same slice on every class and so compares a slice on flash with one on disks. Each part decays with two
//! half-lives, one hour and one day. A slice takes 8 bytes ([`HeatWord`]).

mod demand;
mod log_code;
mod stream;
mod table;
mod word;

pub use demand::{Demand, PER_ACCESS, RequestDemand};
pub use stream::StreamDetector;
pub use table::{ENCODED_BYTES, HeatTable, HeatTableError};
pub use word::{HeatWord, SWEEP_PERIOD};
