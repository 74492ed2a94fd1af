//! The command line: one enum that help, man pages and completions are made from.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands;

/// Done.
pub const EXIT_DONE: u8 = 0;
/// The command failed.
pub const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub const EXIT_USAGE: u8 = 2;

/// Keeps the hot set of slow storage on memory, and serves it to clients.
#[derive(Parser)]
#[command(name = "hotset", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    Serve {
        /// The configuration file
        #[arg(long, short, default_value = "/etc/hotset/hotset.toml")]
        config: PathBuf,
    },
    /// Check a configuration file: every error at once, with line and remedy
    CheckConfig {
        /// The file to check
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// What went wrong, and what the process ends with.
#[derive(Debug)]
pub struct Failure {
    /// For people, without a trailing newline.
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

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve { config } => crate::serve::run(&config),
        Command::CheckConfig { file, json } => commands::check_config::run(&file, json),
    };
    match result {
        Ok(()) => ExitCode::from(EXIT_DONE),
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("hotset: {}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}
