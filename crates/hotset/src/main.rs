//! The `hotset` command: the command line, and a thin file for each command. The work is done in the other crates.

mod cli;
mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
