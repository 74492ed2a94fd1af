//! `hotset datastore …`: whether datastores are congested, and who has what of them.

use std::path::Path;

use clap::Subcommand;
use control::{Answer, Request};

use super::daemon::{ask, unexpected};
use terminal::render::datastore::{page, table};
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// What may be looked at.
#[derive(Subcommand)]
pub enum Action {
    /// List them, and flash: latency, threshold, whether shares count now
    List,
    /// Show one: what its volumes are entitled to and what they use, who waits, and when it was congested
    Show {
        /// The datastore, or `(flash)`
        name: String,
    },
}

/// Asks the daemon and prints what it answers.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let Answer::Datastores(datastores) = ask(socket, &Request::DatastoreList {})? else { return Err(unexpected()) };
    let style = Style::of_stdout();
    match action {
        Action::List if json => print_json(&datastores)?,
        Action::List => terminal::render::print(&table(&datastores, style)),
        Action::Show { name } => {
            let none = || format!("there is no datastore named \"{name}\"; `hotset datastore list` shows them");
            let found = datastores.iter().find(|datastore| datastore.name == name);
            let datastore = found.ok_or_else(|| Failure::failed(none()))?;
            if json {
                return print_json(datastore);
            }
            terminal::render::print(&page(datastore, style));
        }
    }
    Ok(())
}
