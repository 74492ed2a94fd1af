//! One file per command.

pub mod advise;
pub mod alerts;
pub mod attach;
pub mod check_config;
mod daemon;
pub mod datastore;
pub mod events;
pub mod flash;
mod flash_offline;
mod history;
pub mod init;
pub mod job;
pub mod lab;
pub mod report;
pub mod shell;
pub mod simulate;
pub mod state;
pub mod status;
pub mod stop;
pub mod support;
pub mod token;
pub mod top;
pub mod torture;
pub mod trace;
pub mod undestaged;
pub mod volume;
pub mod workload;

use std::io::Write;

use terminal::Failure;

/// Asks for confirmation on the terminal.
fn is_confirmed(question: &str) -> Result<bool, Failure> {
    print!("{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    read.map_err(|error| Failure::failed(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
