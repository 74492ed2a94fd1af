//! `hotset status`: the daemon on one screen.

use std::path::Path;

use control::Client;
use messages::{Answer, Request, StatusReport};

use super::daemon::{connect, send_request_on, unexpected};
use terminal::render::screen;
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Queries the status on a connection.
pub fn fetch(client: &mut Client) -> Result<StatusReport, Failure> {
    match send_request_on(client, &Request::Status {})? {
        Answer::Status(status) => Ok(*status),
        _ => Err(unexpected()),
    }
}

/// Says on standard error that the daemon is starting: it may not list all volumes yet, nor the flash devices.
pub fn note_start(socket: Option<&Path>) {
    // The list itself reports an error of the connection.
    if connect(socket).and_then(|mut client| fetch(&mut client)).is_ok_and(|status| status.starting) {
        eprintln!("note: the daemon is starting; flash devices and volumes that it has not opened yet are not listed");
    }
}

/// Prints the status once.
pub fn run(socket: Option<&Path>, json: bool) -> Result<(), Failure> {
    let status = fetch(&mut connect(socket)?)?;
    if json {
        print_json(&status)
    } else {
        terminal::render::print(&screen::status(&status, None, Style::of_stdout()));
        Ok(())
    }
}
