//! What a terminal shows: reports as text, the live view of `hotset top`, lines of a log, and how a command ends.

pub mod failure;
pub mod log;
pub mod render;
pub mod top;

pub use failure::{EXIT_DONE, EXIT_FAILED, EXIT_USAGE, Failure, print_json};
