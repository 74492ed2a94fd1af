//! Terminal output: reports as text, the live view of `hotset top`, and the end of a command.

pub mod failure;
pub mod render;
pub mod top;

pub use failure::{EXIT_DONE, EXIT_FAILED, EXIT_USAGE, Failure, print_json};
