//! `hotset flash …`: the flash log and its devices.

use std::path::Path;

use clap::Subcommand;
use control::{Answer, Request};

use super::daemon::{ask, unexpected};
use crate::cli::{Failure, print_json};
use crate::render::screen;
use crate::render::style::Style;

/// What may be done with the flash log.
#[derive(Subcommand)]
pub enum Action {
    /// List its devices: in service or why not, room, which volumes have data there that is not on their backings
    List,
}

/// Asks the daemon and prints what it answers.
pub fn run(socket: Option<&Path>, action: &Action, json: bool) -> Result<(), Failure> {
    let Action::List = action;
    let report = match ask(socket, &Request::FlashList {})? {
        Answer::Flash(report) => *report,
        _ => return Err(unexpected()),
    };
    if json {
        return print_json(&report);
    }
    let style = Style::of_stdout();
    print!("{}", screen::flash(&report, style));
    if !report.volumes.is_empty() {
        println!("         holds data of {}", report.volumes.join(", "));
    }
    report.alerts.iter().for_each(|alert| println!("         {}", style.warn(alert)));
    Ok(())
}
