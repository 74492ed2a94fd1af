//! `hotset snapshot …`: snapshots of volumes on pools.

use std::path::Path;

use clap::Subcommand;
use messages::{Answer, Request};

use super::confirm::is_confirmed;
use super::daemon::{send_request, unexpected};
use terminal::render::snapshot::table;
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Take a snapshot of a volume while it serves: all data that was acknowledged before
    Create(Named),
    /// List the snapshots of a volume
    List {
        /// The volume
        volume: String,
    },
    /// Return a volume to a snapshot; data written since is lost, except in other snapshots
    Rollback {
        #[command(flatten)]
        snapshot: Named,
        /// Disconnect the clients of the volume
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Create a volume in the same pool with the content of a snapshot; it shares all slices
    Clone {
        #[command(flatten)]
        snapshot: Named,
        /// Name of the new volume; serve it with `hotset volume add NEW_VOLUME --backing pool://POOL`
        new_volume: String,
    },
    /// Delete a snapshot
    Delete {
        #[command(flatten)]
        snapshot: Named,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// A snapshot of a volume.
#[derive(clap::Args)]
pub struct Named {
    /// The volume
    volume: String,
    /// Name of the snapshot
    name: String,
}

/// Runs a subcommand.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let mut next_step = None;
    let request = match action {
        Action::Create(Named { volume, name }) => Request::SnapshotCreate { name: volume, snapshot: name },
        Action::List { volume } => Request::SnapshotList { name: volume },
        Action::Rollback { snapshot: Named { volume, name }, force, yes } => {
            let lost = format!("All data written to volume {volume} since snapshot {name} will be lost.");
            confirm(yes, &lost, &format!("Roll back volume {volume}?"))?;
            Request::SnapshotRollback { name: volume, snapshot: name, force }
        }
        Action::Clone { snapshot: Named { volume, name }, new_volume } => {
            next_step = Some(format!(
                "volume {new_volume} was created; `hotset volume add {new_volume} --backing pool://POOL` serves it"
            ));
            Request::SnapshotClone { name: volume, snapshot: name, new_volume }
        }
        Action::Delete { snapshot: Named { volume, name }, yes } => {
            let lost = format!("Snapshot {name} of volume {volume} will be destroyed.");
            confirm(yes, &lost, &format!("Delete snapshot {name}?"))?;
            Request::SnapshotDelete { name: volume, snapshot: name }
        }
    };
    let Answer::Snapshots(report) = send_request(socket, &request)? else { return Err(unexpected()) };
    match json {
        true => print_json(&*report)?,
        false => {
            terminal::render::print(&table(&report, Style::of_stdout()));
            next_step.iter().for_each(|text| println!("{text}"));
        }
    }
    Ok(())
}

fn confirm(yes: bool, loss: &str, question: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    println!("{loss}");
    if is_confirmed(question)? { Ok(()) } else { Err(Failure::failed("nothing was changed")) }
}
