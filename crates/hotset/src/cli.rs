//! The command line: one enum, from which help, man pages and completions are generated.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands;
use crate::commands::torture::parse_seeds;
use crate::commands::volume::Action;
use demo::{DEFAULT_SECONDS, OutputMode};
use terminal::{EXIT_DONE, Failure};
use units::parse_time;

/// Storage cache daemon: caches the hot set of slow storage in memory and on flash
#[derive(Parser)]
#[command(name = "hotset", version, propagate_version = true)]
pub struct Cli {
    /// Control socket of the daemon; default: $HOTSET_SOCKET, else the one in /etc/hotset/hotset.toml
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    Serve {
        /// The configuration file
        #[arg(long, short, default_value = "/etc/hotset/hotset.toml")]
        config: PathBuf,
    },
    /// Stop the daemon cleanly; returns when it has stopped
    Stop {
        /// Destage all dirty data first: the backings are complete afterwards. Without it, dirty data of write-back
        /// volumes stays in the flash log for the next start; without [flash] it is always destaged
        #[arg(long)]
        destage: bool,
    },
    /// Check a configuration file: every error at once, with line and remedy
    CheckConfig {
        /// The file to check
        #[arg(required_unless_present = "config")]
        file: Option<PathBuf>,
        /// The file to check, as an option like that of `serve`
        #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
        /// Accept missing backings and flash devices; the daemon waits for them
        #[arg(long)]
        any_devices: bool,
    },
    /// Examine this machine and propose a configuration, with reasons; disks with data are skipped unless they are
    /// named
    Init(commands::init::Options),
    /// Demonstrate the cache: a simulated disk array under the same load with and without the cache
    Demo {
        /// Run a scenario of the lab (`hotset lab list`) with sizes and times scaled down
        #[arg(long, value_name = "NAME")]
        scenario: Option<String>,
        /// Print only the summary
        #[arg(long)]
        headless: bool,
        /// Duration of the load in seconds; default: 30, or 180 for a scenario
        #[arg(long, value_parser = clap::value_parser!(u64).range(2..=3600))]
        seconds: Option<u64>,
    },
    /// Show the daemon on one screen: volumes, memory, hit ratios, latencies, alerts
    Status,
    /// Show the status live: interactive on a terminal, otherwise one sample after the other
    Top {
        /// Interval between samples
        #[arg(long, default_value = "1s", value_parser = parse_time)]
        every: Duration,
        /// Print this many samples and exit, also on a terminal (no interactive screen)
        #[arg(long)]
        times: Option<u64>,
    },
    /// Show events, with their actors
    Events(commands::events::Options),
    /// Manage alerts, and test how they are delivered
    Alerts {
        #[command(subcommand)]
        action: commands::alerts::Action,
    },
    /// Manage the flash devices
    Flash {
        #[command(subcommand)]
        action: commands::flash::Action,
    },
    /// Several hosts with volumes on the same storage: show owners, move volumes, take them over
    Fleet {
        #[command(subcommand)]
        action: commands::fleet::Action,
    },
    /// Show datastores: congestion, and the usage of each volume
    Datastore {
        #[command(subcommand)]
        action: commands::datastore::Action,
    },
    /// Create and check pools, and show their tiers and volumes
    Pool {
        #[command(subcommand)]
        action: commands::pool::Action,
    },
    /// Snapshots of volumes on pools: create, list, roll back, clone, delete
    Snapshot {
        #[command(subcommand)]
        action: commands::snapshot::Action,
    },
    /// List or cancel long operations
    Job {
        #[command(subcommand)]
        action: commands::job::Action,
    },
    /// Manage access to the HTTP interface
    Token {
        #[command(subcommand)]
        action: commands::token::Action,
    },
    /// Manage volumes
    Volume {
        #[command(subcommand)]
        action: Action,
    },
    /// Attach a volume to this machine as block device /dev/hotset/NAME, now and at every boot
    Attach(commands::attach::Options),
    /// Detach the block device of a volume; the daemon continues to serve the volume
    Detach(commands::attach::Detach),
    /// Record, examine and convert block traces
    Trace {
        #[command(subcommand)]
        action: commands::trace::Action,
    },
    /// Write an HTML page about the benefit of the cache over a time range, from the history
    Report(commands::report::Options),
    /// Collect diagnostics for support into one archive, without secrets; works without a running daemon
    Support(commands::support::Options),
    /// Maintain the state directory while the daemon is stopped
    State {
        #[command(subcommand)]
        action: commands::state::Action,
    },
    /// List volumes with dirty data outside their backings, with or without a running daemon; fails if there are any
    Undestaged(commands::undestaged::Options),
    /// Recommend sizes of memory and flash for a volume or a block trace, and of the tiers of a pool
    Advise(commands::advise::Options),
    /// Simulate caches of given sizes with a block trace, latencies with --array, and a tiered pool with --pool
    Simulate(commands::simulate::Options),
    /// Test the engine in a simulated world full of faults, against its guarantees
    Torture {
        /// Seeds to run, end exclusive; default: 0..1000, or as many as fit into --minutes
        #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
        seeds: Option<Range<u64>>,
        /// Stop after this number of minutes, even if seeds remain
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
        minutes: Option<u64>,
        /// Replace, lose and restore devices, records and backings in every run instead of every eighth run
        #[arg(long)]
        administrator: bool,
    },
    /// Reproduce published tests in virtual time
    Lab {
        #[command(subcommand)]
        action: commands::lab::Action,
    },
    /// Run workloads on live volumes
    Workload {
        #[command(subcommand)]
        action: commands::workload::Action,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man pages
    Man {
        /// Write one page per command into this directory instead; it is created if it is missing
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
}

impl Cli {
    fn run(self) -> Result<(), Failure> {
        let (socket, json) = (self.socket.as_deref(), self.json);
        match self.command {
            Command::Serve { config } => daemon::run(&config),
            Command::Stop { destage } => commands::stop::run(socket, destage, json),
            Command::CheckConfig { file, config, any_devices } => {
                let file = file.or(config).expect("the parser requires one of them");
                commands::check_config::run(&file, any_devices, json)
            }
            Command::Init(options) => commands::init::run(options, json),
            Command::Demo { .. } if socket.is_some() => {
                Err(Failure::usage("the demo starts its own daemons: omit --socket"))
            }
            Command::Demo { scenario, headless, seconds } => {
                let show = OutputMode::new(headless, json);
                match scenario.map(|name| commands::lab::find(&name)).transpose()? {
                    Some(scenario) => demo::run_scenario(scenario, seconds, show),
                    None => demo::run(seconds.unwrap_or(DEFAULT_SECONDS), show),
                }
            }
            Command::Status => commands::status::run(socket, json),
            Command::Top { every, times } => commands::top::run(socket, json, every, times),
            Command::Events(options) => commands::events::run(socket, options, json),
            Command::Alerts { action } => commands::alerts::run(socket, action, json),
            Command::Flash { action } => commands::flash::run(socket, &action, json),
            Command::Fleet { action } => commands::fleet::run(socket, action, json),
            Command::Datastore { action } => commands::datastore::run(socket, action, json),
            Command::Pool { action } => commands::pool::run(socket, action, json),
            Command::Snapshot { action } => commands::snapshot::run(socket, action, json),
            Command::Job { action } => commands::job::run(socket, action, json),
            Command::Token { action } => commands::token::run(socket, action, json),
            Command::Volume { action } => commands::volume::run(socket, action, json),
            Command::Attach(options) => commands::attach::attach(socket, &options, json),
            Command::Detach(options) => commands::attach::detach(socket, &options, json),
            Command::Trace { action } => commands::trace::run(socket, action, json),
            Command::Report(options) => commands::report::run(socket, &options, json),
            Command::State { action } => commands::state::run(action, json),
            Command::Undestaged(options) => commands::undestaged::run(socket, &options, json),
            Command::Support(options) => commands::support::run(socket, &options, json),
            Command::Advise(options) => commands::advise::run(socket, &options, json),
            Command::Simulate(options) => commands::simulate::run(&options, json),
            Command::Workload { action } => commands::workload::run(action, json),
            Command::Lab { action } => commands::lab::run(action, json),
            Command::Torture { seeds, minutes, administrator } => {
                commands::torture::run(seeds, minutes, administrator, json)
            }
            Command::Completions { shell } => commands::shell::completions(Cli::command(), shell),
            Command::Man { out } => commands::shell::manual(Cli::command(), out.as_deref()),
        }
    }
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    exit_quietly_on_closed_stdout();
    match Cli::parse().run() {
        Ok(()) => ExitCode::from(EXIT_DONE),
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("hotset: {}", messages::plain_lines(&failure.message));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Ends the process quietly when the reader of its output has closed the pipe (`hotset man | head`).
fn exit_quietly_on_closed_stdout() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_broken_pipe = |text: &str| text.starts_with("failed printing to stdout") && text.contains("Broken pipe");
        if panic.payload_as_str().is_some_and(is_broken_pipe) {
            std::process::exit(EXIT_DONE.into());
        }
        default_hook(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn file_to_check_is_an_argument_or_an_option() {
        let checked = |arguments: &[&str]| {
            let cli = Cli::try_parse_from(["hotset", "check-config"].iter().chain(arguments)).ok()?;
            let Command::CheckConfig { file, config, .. } = cli.command else { return None };
            file.or(config)
        };
        for arguments in [&["a.toml"] as &[&str], &["--config", "a.toml"], &["-c", "a.toml", "--any-devices"]] {
            assert_eq!(checked(arguments), Some(PathBuf::from("a.toml")), "{arguments:?}");
        }
        assert_eq!(checked(&[]), None);
        assert_eq!(checked(&["a.toml", "--config", "b.toml"]), None);
    }

    #[test]
    fn help_of_stop_says_where_dirty_data_stays() {
        let mut cli = Cli::command();
        let help = cli.find_subcommand_mut("stop").expect("a command").render_long_help().to_string();
        let help: Vec<&str> = help.split_whitespace().collect();
        assert!(help.join(" ").contains("stays in the flash log for the next start"), "{help:?}");
    }
}
