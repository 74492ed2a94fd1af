//! `hotset stop`: the daemon's clean stop, waited for.

use std::path::Path;

use control::{Answer, Request};

use super::daemon::{ask, unexpected};
use crate::cli::{Failure, print_json};

/// Asks for it and waits until the backings are complete.
pub fn run(socket: Option<&Path>, destage: bool, json: bool) -> Result<(), Failure> {
    match ask(socket, &Request::Stop { destage })? {
        Answer::Said(said) if json => print_json(&said),
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        _ => Err(unexpected()),
    }
}
