//! `hotset top`: the status, live.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use super::daemon::connect;
use super::status::fetch;
use config::control_socket;
use terminal::render::screen;
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Shows the status on the terminal until the user quits. Without a terminal, with `json` or with `times`, it prints a
/// sample after each `interval`. A text sample has the rates since the previous sample; an unprinted sample precedes
/// the first.
pub fn run(socket: Option<&Path>, json: bool, interval: Duration, times: Option<u64>) -> Result<(), Failure> {
    let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if has_terminal && !json && times.is_none() {
        return terminal::top::run(control_socket(socket), interval);
    }
    let mut client = connect(socket)?;
    let mut remaining = times.unwrap_or(u64::MAX);
    let mut previous = None;
    if !json && remaining > 0 {
        previous = Some(fetch(&mut client)?);
        std::thread::sleep(interval);
    }
    while remaining > 0 {
        let status = fetch(&mut client)?;
        if json {
            print_json(&status)?;
        } else {
            print!("{}", screen::status(&status, previous.as_ref(), Style::of_stdout()));
            std::io::stdout().flush().map_err(|error| Failure::failed(error.to_string()))?;
        }
        previous = Some(status);
        remaining -= 1;
        if remaining > 0 {
            std::thread::sleep(interval);
        }
    }
    Ok(())
}
