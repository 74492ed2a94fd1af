//! The data path: requests of clients for a volume's blocks.

mod allocation;
mod flush;
mod read;
mod throttle;
pub mod write;
mod zero;
