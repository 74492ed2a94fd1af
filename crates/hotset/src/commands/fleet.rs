//! `hotset fleet …`: the ownership of volumes that several hosts have in their configuration.

use std::io::IsTerminal;
use std::path::Path;

use clap::Subcommand;
use messages::report::FleetVolumeReport;
use messages::{Answer, Request};

use super::confirm::is_confirmed;
use super::daemon::{send_request, unexpected};
use terminal::render::fleet::{hosts_table, table};
use terminal::render::screen;
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Show each volume on shared storage with its owner, its policy, and the host of undestaged data
    Status,
    /// Show all hosts of the fleet, and the volumes of each: the others are asked
    Hosts,
    /// Destage a volume, release its image for another host, and stop serving it; on standby the owner is asked
    Move {
        /// The volume
        name: String,
        /// The host that may claim the image, by its name in `hotset fleet status` there; default: any host on standby
        #[arg(long, value_name = "HOST")]
        to: Option<String>,
    },
    /// Move all volumes on shared storage away from this host
    Drain,
    /// Take a volume on standby over from its owner. The cluster blocks the owner's client: its clients get errors
    TakeOver {
        /// The volume
        #[arg(required_unless_present = "host")]
        name: Option<String>,
        /// Take over all volumes on standby that this host owns, or of which it has undestaged data
        #[arg(long, value_name = "HOST", conflicts_with_all = ["name", "from", "give_up"])]
        host: Option<String>,
        /// Take it over from this host only; refused if another one is the owner by now
        #[arg(long, value_name = "HOST")]
        from: Option<String>,
        /// Give up the undestaged data of another host, by its name in the refusal
        #[arg(long, value_name = "DATA")]
        give_up: Option<String>,
        /// The owner's host is known to be off, by a fencing device or its power button: do not wait 26 s for its lease
        #[arg(long)]
        fenced: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// Sends the request and prints the answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::Status => {
            let volumes = status(socket)?;
            if json {
                return print_json(&volumes);
            }
            terminal::render::print(&table(&volumes, Style::of_stdout()));
            return Ok(());
        }
        Action::Hosts => {
            let Answer::FleetHosts(hosts) = send_request(socket, &Request::FleetHosts {})? else {
                return Err(unexpected());
            };
            if json {
                return print_json(&hosts);
            }
            terminal::render::print(&hosts_table(&hosts, Style::of_stdout()));
            return Ok(());
        }
        Action::Move { name, to } => Request::FleetMove { name, to },
        Action::Drain => Request::FleetDrain {},
        Action::TakeOver { name, host, from, give_up, fenced, yes } => {
            let is_asked = !yes && !json && std::io::stdin().is_terminal();
            match (name, host) {
                (Some(name), _) => {
                    let from = if is_asked { Some(confirmed_owner(socket, &name, from)?) } else { from };
                    Request::FleetTakeOver { name, from, give_up, fenced }
                }
                (None, host) => {
                    let host = host.unwrap_or_default();
                    if is_asked {
                        confirm_host(socket, &host)?;
                    }
                    Request::FleetTakeOverHost { host, fenced }
                }
            }
        }
    };
    match send_request(socket, &request)? {
        Answer::Volume(volume) if json => print_json(&volume),
        Answer::Said(said) if json => print_json(&said),
        Answer::Volume(volume) => {
            terminal::render::print(&screen::volumes(std::slice::from_ref(&volume), None, Style::of_stdout()));
            Ok(())
        }
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{}", messages::plain(line)));
            Ok(())
        }
        _ => Err(unexpected()),
    }
}

fn status(socket: Option<&Path>) -> Result<Vec<FleetVolumeReport>, Failure> {
    let Answer::Volumes(volumes) = send_request(socket, &Request::VolumeList {})? else { return Err(unexpected()) };
    Ok(FleetVolumeReport::of(&volumes))
}

/// Asks whether all volumes of a host are to be taken over.
fn confirm_host(socket: Option<&Path>, host: &str) -> Result<(), Failure> {
    let volumes = status(socket)?;
    let of_host: Vec<_> = volumes.iter().filter(|volume| volume.fleet.is_left_by(host)).collect();
    let open = of_host.iter().filter(|volume| volume.fleet.owner_has_image_open == Some(true)).count();
    let log = match of_host.iter().any(|volume| volume.fleet.undestaged_host.is_some()) {
        true => " If the host is alive, it loses its flash log: flushes of all its write-back volumes fail.",
        false => "",
    };
    let question = format!(
        "take {} volumes over from host {host}? {open} of their images are open, probably by the owner, whose clients \
         will get errors.{log}",
        of_host.len()
    );
    match is_confirmed(&messages::plain(&question))? {
        true => Ok(()),
        false => Err(Failure::failed("nothing was changed")),
    }
}

/// The owner that the user has seen and wants to take the volume over from.
fn confirmed_owner(socket: Option<&Path>, name: &str, from: Option<String>) -> Result<String, Failure> {
    let volumes = status(socket)?;
    let unknown = || Failure::failed(format!("volume {name} is not on shared storage; see `hotset fleet status`"));
    let volume = volumes.iter().find(|volume| volume.volume == *name).ok_or_else(unknown)?;
    let owner = from.unwrap_or_else(|| volume.fleet.owner.clone());
    let is_open = match volume.fleet.owner_has_image_open {
        Some(true) => "a client, probably the owner, has the image open, and its clients will get errors",
        _ => "no client has its image open",
    };
    let question = format!("take volume {name} over from host {owner}? {is_open}.");
    match is_confirmed(&messages::plain(&question))? {
        true => Ok(owner),
        false => Err(Failure::failed("nothing was changed")),
    }
}
