//! `hotset demo --scenario`: a published test of the lab in real time, with bytes and time scaled down, beside the same
//! arrays without the cache. At the end it compares the results with the published figures.
//!
//! Each side is a daemon of its own with clients of its own, so that the sides share neither memory nor flash, and each
//! has its web console.

mod clients;
mod daemon_config;
mod intro;
mod observer;
mod scale;
mod summary;

use std::time::Duration;

use lab::scenario::Scenario;

use self::clients::Clients;
use self::daemon_config::configuration;
use self::observer::{Observer, Side};
use self::scale::Scale;
use self::summary::Summary;
use super::demo_daemon::DemoDaemon;
use super::live::Terminal;
use super::{OutputMode, screen};
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Default length of a demo in seconds.
const DEFAULT_SECONDS: u64 = 180;
/// Time-out for outstanding requests at the end.
const FINAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the demo of `scenario`.
pub fn run(scenario: &'static Scenario, seconds: Option<u64>, show: OutputMode) -> Result<(), Failure> {
    if scenario.demo.is_none() {
        let text = format!(
            "scenario {0} compares volumes of one daemon and has no live demo; run `hotset lab run {0}`",
            scenario.name
        );
        return Err(Failure::failed(text));
    }
    let style = Style::of_stdout();
    let _log = crate::log_warnings()?;
    let scale = Scale::of(scenario.demo(), seconds.unwrap_or(DEFAULT_SECONDS));
    let setup = (scenario.demo().setup)(scale.byte_divisor);
    let daemon = |plan| DemoDaemon::start(|folder| configuration(folder, plan));
    let daemons = [daemon(&setup.with)?, daemon(&setup.without)?];
    let [mut with, mut without] = [daemons[0].control()?, daemons[1].control()?];
    let reports = [with.status()?, without.status()?];
    let names = [if setup.without.cached { "without flash" } else { "without cache" }, "with hotset"];
    if show != OutputMode::Json {
        println!("{}", screen::page(&with.link()?).trim_end());
        println!("{}  (the same {})\n", without.link()?.link, names[0]);
        println!("{}", intro::intro(scenario, &setup, &scale, names[0], style));
    }
    let start = |daemon, plan| Clients::start(daemon, plan, &setup, &scale);
    let clients = [start(&daemons[0], &setup.with)?, start(&daemons[1], &setup.without)?];
    let mut sides = [Side::new(with, clients[0].meter.clone()), Side::new(without, clients[1].meter.clone())];
    let terminal = Terminal::new(show, style);
    let results = Observer::new(&setup, &scale, names, &mut sides, terminal).observe(&clients)?;
    let summary = Summary::of(scenario, &scale, reports, &results);
    match show {
        OutputMode::Json => print_json(&summary)?,
        OutputMode::Live | OutputMode::Summary => print!("{}", summary.text(names, style)),
    }
    if results.cut_short {
        // A client has failed and reports its error, or the daemons were stopped from outside. No data has
        // to be preserved.
        daemons.into_iter().try_for_each(DemoDaemon::abandon)?;
        return clients.into_iter().filter(Clients::have_ended).try_for_each(Clients::join);
    }
    stop(daemons, clients, sides)?;
    match summary.errors {
        0 => Ok(()),
        errors => Err(Failure::failed(format!("{errors} requests failed"))),
    }
}

/// Stops clients and daemons. Dirty data is discarded, because destaging to temporary arrays would only cost time.
fn stop(daemons: [DemoDaemon; 2], clients: [Clients; 2], sides: [Side; 2]) -> Result<(), Failure> {
    clients.iter().for_each(Clients::stop);
    clients.iter().for_each(|client| client.wait(FINAL_TIMEOUT));
    for side in sides {
        side.discard();
    }
    for daemon in daemons {
        daemon.stop()?;
    }
    clients.into_iter().try_for_each(Clients::join)
}
