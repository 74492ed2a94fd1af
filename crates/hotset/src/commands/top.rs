//! `hotset top`: the status, live.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use super::daemon::connect;
use super::status::fetch;
use crate::cli::{Failure, print_json};
use crate::render::screen;
use crate::render::style::Style;

/// Prints the status every `pause` until interrupted, or `times` times.
pub fn run(socket: Option<&Path>, json: bool, pause: Duration, times: Option<u64>) -> Result<(), Failure> {
    let mut client = connect(socket)?;
    let mut before = None;
    let mut left = times.unwrap_or(u64::MAX);
    while left > 0 {
        let now = fetch(&mut client)?;
        if json {
            print_json(&now)?;
        } else {
            let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
            print!("{clear}{}", screen::status(&now, before.as_ref(), Style::of_stdout()));
            std::io::stdout().flush().map_err(|error| Failure::failed(error.to_string()))?;
        }
        before = Some(now);
        left -= 1;
        if left > 0 {
            std::thread::sleep(pause);
        }
    }
    Ok(())
}
