//! `hotset volume …`: one control message per subcommand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use messages::{Answer, Request};

use super::daemon::{send_request, unexpected};
use super::history::History;
use super::status::note_start;
use terminal::render::style::Style;
use terminal::render::{history, screen, volume};
use terminal::{Failure, print_json};
use units::parse_size;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List all volumes
    List,
    /// Show details of a volume
    Show {
        /// The volume
        name: String,
    },
    /// Change settings; they survive restarts and stay in effect until the key changes in the file
    Set {
        /// The volume
        name: String,
        /// Settings to change, for example policy=write-through
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<(String, String)>,
    },
    /// Destage all dirty data and flush the backing; the backing is complete afterwards
    Flush {
        /// The volume
        name: String,
    },
    /// Bypass the cache; dirty data is still destaged
    Pause {
        /// The volume
        name: String,
    },
    /// Serve hits, but cache nothing new
    Freeze {
        /// The volume
        name: String,
    },
    /// Resume caching after pause or freeze
    Resume {
        /// The volume
        name: String,
    },
    /// Pin pages to flash: promote them in the background and never evict them
    Pin {
        /// The volume
        name: String,
        /// Byte range, for example "1 GiB..3 GiB" or "..512 MiB"; default: the whole volume
        #[arg(value_parser = parse_range)]
        range: Option<Span>,
    },
    /// Unpin pages; they can be evicted again
    Unpin {
        /// The volume
        name: String,
        /// Byte range, for example "1 GiB..3 GiB"; default: the whole volume
        #[arg(value_parser = parse_range)]
        range: Option<Span>,
    },
    /// Show history: of one volume, or of all volumes together
    History(History),
    /// Show the slowest requests of the last hour, each with its slowest step
    Slow {
        /// The volume
        name: String,
    },
    /// Drop all cached data in memory and on flash after another program changed the backing; refused while there is
    /// dirty data
    Invalidate {
        /// The volume
        name: String,
        /// Discard dirty data; repeat the volume's name to confirm
        #[arg(long, value_name = "NAME")]
        discard_dirty: Option<String>,
    },
    /// Resize a volume to the current size of its backing, or to SIZE if the backing can be resized
    Resize {
        /// The volume
        name: String,
        /// The new size, for example "200 GiB"
        #[arg(value_parser = parse_size)]
        size: Option<u64>,
        /// Discard dirty data beyond the new end
        #[arg(long)]
        discard_dirty: bool,
    },
    /// Add a volume; it survives restarts
    Add {
        /// Its name
        name: String,
        /// Its backing: a path or a URI, as in the configuration
        #[arg(long)]
        backing: String,
        /// Its size, only for a backing without a size of its own
        #[arg(long, value_parser = parse_size)]
        size: Option<u64>,
        /// Its policy
        #[arg(long)]
        policy: Option<String>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// Tiers of a new volume on a pool: auto, start-high, highest, lowest or the name of a tier
        #[arg(long, value_name = "POLICY")]
        tier_policy: Option<String>,
        /// Allocation of a new volume on a pool: at its first writes, or all at once
        #[arg(long, value_parser = ["thin", "thick"])]
        provisioning: Option<String>,
    },
    /// Destage a volume, flush its backing and remove the volume
    Remove {
        /// The volume
        name: String,
        /// Discard the dirty data of a volume that is not served, by the volume ID in the error message
        #[arg(long, value_name = "DATA")]
        give_up: Option<String>,
    },
    /// Accept a replaced or changed backing as it is now
    Adopt {
        /// The volume
        name: String,
        /// Discard the dirty data that would be lost, by the name in the refusal
        #[arg(long, value_name = "DATA", conflicts_with = "discard_dirty")]
        give_up: Option<String>,
        /// Discard dirty data beyond the end of a backing that has shrunk, and keep the rest
        #[arg(long)]
        discard_dirty: bool,
    },
}

/// A range of bytes of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    from_bytes: u64,
    /// `None`: the volume's end.
    to_bytes: Option<u64>,
}

fn parse_range(text: &str) -> Result<Span, String> {
    let wrong = || format!("\"{text}\" is not a range; write it like \"1 GiB..3 GiB\", \"..512 MiB\" or \"1 GiB..\"");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let size = |text: &str| match text.trim() {
        "" => Ok(None),
        text => parse_size(text).map(Some),
    };
    let (from_bytes, to_bytes) = (size(from)?.unwrap_or(0), size(to)?);
    if to_bytes.is_some_and(|to| to <= from_bytes) { Err(wrong()) } else { Ok(Span { from_bytes, to_bytes }) }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("\"{text}\" has no \"=\"; write KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// The absolute path, because the daemon has another working directory.
fn absolute(backing: String) -> Result<String, Failure> {
    if backing.contains("://") || backing.starts_with("rbd:") {
        return Ok(backing);
    }
    let path: PathBuf = std::path::absolute(&backing).map_err(|error| Failure::usage(format!("{backing}: {error}")))?;
    Ok(path.to_string_lossy().into_owned())
}

impl Action {
    fn request(self) -> Result<Request, Failure> {
        Ok(match self {
            Action::List => Request::VolumeList {},
            Action::Show { name } => Request::VolumeShow { name },
            Action::Set { name, settings } => {
                let count = settings.len();
                let settings: BTreeMap<_, _> = settings.into_iter().collect();
                if settings.len() < count {
                    return Err(Failure::usage("a setting is specified twice"));
                }
                Request::VolumeSet { name, settings }
            }
            Action::Flush { name } => Request::VolumeFlush { name, in_background: false },
            Action::Pause { name } => Request::VolumePause { name },
            Action::Freeze { name } => Request::VolumeFreeze { name },
            Action::Resume { name } => Request::VolumeResume { name },
            Action::Pin { name, range } => {
                let Span { from_bytes, to_bytes } = range.unwrap_or_default();
                Request::VolumePin { name, from_bytes, to_bytes }
            }
            Action::Unpin { name, range } => {
                let Span { from_bytes, to_bytes } = range.unwrap_or_default();
                Request::VolumeUnpin { name, from_bytes, to_bytes }
            }
            Action::History(history) => history.request()?,
            Action::Slow { name } => Request::VolumeSlow { name },
            Action::Invalidate { name, discard_dirty } => {
                if discard_dirty.as_ref().is_some_and(|again| *again != name) {
                    return Err(Failure::usage(format!(
                        "--discard-dirty requires the volume's name as confirmation: {name}"
                    )));
                }
                Request::VolumeInvalidate { name, discard_dirty: discard_dirty.is_some() }
            }
            Action::Resize { name, size, discard_dirty } => {
                Request::VolumeResize { name, size_bytes: size, discard_dirty }
            }
            Action::Add { name, backing, size, policy, read_only, tier_policy, provisioning } => Request::VolumeAdd {
                name,
                backing: absolute(backing)?,
                size_bytes: size,
                policy,
                read_only,
                tier_policy,
                provisioning,
            },
            Action::Remove { name, give_up } => Request::VolumeRemove { name, give_up },
            Action::Adopt { name, give_up, discard_dirty } => Request::VolumeAdopt { name, give_up, discard_dirty },
        })
    }
}

/// Sends the request and prints the answer: a page for `show`, a line for a change.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let is_detailed = matches!(action, Action::Show { .. });
    let csv = matches!(&action, Action::History(history) if history.csv);
    if matches!(action, Action::List) {
        note_start(socket);
    }
    let answer = send_request(socket, &action.request()?)?;
    let style = Style::of_stdout();
    match answer {
        Answer::Volumes(volumes) if json => print_json(&volumes),
        Answer::Volume(volume) if json => print_json(&volume),
        Answer::Said(said) if json => print_json(&said),
        Answer::History(history) if csv => {
            terminal::render::print(&history.to_csv());
            Ok(())
        }
        Answer::History(history) if json => print_json(&history),
        Answer::History(history) => {
            terminal::render::print(&history::table(&history, style));
            Ok(())
        }
        Answer::Slow(slow) if json => print_json(&slow),
        Answer::Slow(slow) => {
            terminal::render::print(&volume::slow(&slow, style));
            Ok(())
        }
        Answer::Volumes(volumes) => {
            terminal::render::print(&screen::volumes(&volumes, None, style));
            Ok(())
        }
        Answer::Volume(volume) if is_detailed => {
            terminal::render::print(&volume::page(&volume, style));
            Ok(())
        }
        Answer::Volume(volume) => {
            terminal::render::print(&screen::volumes(std::slice::from_ref(&volume), None, style));
            Ok(())
        }
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{}", messages::plain(line)));
            Ok(())
        }
        _ => Err(unexpected()),
    }
}
