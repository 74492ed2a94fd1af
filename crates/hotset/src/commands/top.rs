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

/// Shows the status on the terminal until the user quits. Without a terminal, with `json` or with `times`, it prints
/// one sample after the other, `pause` apart; each has the rates since the sample before, the first one, too.
pub fn run(named: Option<&Path>, json: bool, pause: Duration, times: Option<u64>) -> Result<(), Failure> {
    let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if has_terminal && !json && times.is_none() {
        return terminal::top::run(control_socket(named), pause);
    }
    let mut client = connect(named)?;
    let mut remaining = times.unwrap_or(u64::MAX);
    let mut before = None;
    if !json && remaining > 0 {
        before = Some(fetch(&mut client)?);
        std::thread::sleep(pause);
    }
    while remaining > 0 {
        let now = fetch(&mut client)?;
        if json {
            print_json(&now)?;
        } else {
            print!("{}", screen::status(&now, before.as_ref(), Style::of_stdout()));
            std::io::stdout().flush().map_err(|error| Failure::failed(error.to_string()))?;
        }
        before = Some(now);
        remaining -= 1;
        if remaining > 0 {
            std::thread::sleep(pause);
        }
    }
    Ok(())
}
