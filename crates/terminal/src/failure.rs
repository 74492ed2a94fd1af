//! The end of a command: exit codes, errors, and results as JSON.

use serde::Serialize;

/// The command succeeded.
pub const EXIT_DONE: u8 = 0;
/// The command failed.
pub const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub const EXIT_USAGE: u8 = 2;

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The message, without a trailing newline.
    pub message: String,
    /// [`EXIT_FAILED`] or [`EXIT_USAGE`].
    pub code: u8,
}

impl Failure {
    /// The command failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: EXIT_FAILED }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: EXIT_USAGE }
    }
}

/// Prints a result as JSON.
pub fn print_json(result: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(result).map_err(|error| Failure::failed(error.to_string()))?;
    println!("{text}");
    Ok(())
}
