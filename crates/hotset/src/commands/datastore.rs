//! `hotset datastore …`: congestion of datastores, and each volume's usage.

use std::path::Path;

use clap::Subcommand;
use messages::{Answer, Request};

use super::daemon::{send_request, unexpected};
use terminal::render::datastore::{page, table};
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List datastores, and flash: latency, threshold, congestion
    List,
    /// Show a datastore: entitlement, usage and wait times of its volumes, and congestion episodes
    Show {
        /// The datastore, or `(flash)`
        name: String,
    },
}

/// Queries the daemon and prints its answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let Answer::Datastores(datastores) = send_request(socket, &Request::DatastoreList {})? else {
        return Err(unexpected());
    };
    let style = Style::of_stdout();
    match action {
        Action::List if json => print_json(&datastores)?,
        Action::List => terminal::render::print(&table(&datastores, style)),
        Action::Show { name } => {
            let unknown = || format!("unknown datastore \"{name}\"; `hotset datastore list` shows all");
            let matching = datastores.iter().find(|datastore| datastore.name == name);
            let datastore = matching.ok_or_else(|| Failure::failed(unknown()))?;
            if json {
                return print_json(datastore);
            }
            terminal::render::print(&page(datastore, style));
        }
    }
    Ok(())
}
