//! `hotset status`: the daemon on one screen.

use std::path::Path;

use control::{Answer, Client, Request, StatusReport};

use super::daemon::{ask_on, connect, unexpected};
use crate::cli::{Failure, print_json};
use crate::render::screen;
use crate::render::style::Style;

/// Asks for the status on a connection.
pub fn fetch(client: &mut Client) -> Result<StatusReport, Failure> {
    match ask_on(client, &Request::Status {})? {
        Answer::Status(status) => Ok(*status),
        _ => Err(unexpected()),
    }
}

/// Prints it once.
pub fn run(socket: Option<&Path>, json: bool) -> Result<(), Failure> {
    let status = fetch(&mut connect(socket)?)?;
    if json {
        print_json(&status)
    } else {
        crate::render::print(&screen::status(&status, None, Style::of_stdout()));
        Ok(())
    }
}
