//! `hotset events`: past events with their actors, and new events as they are recorded.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use control::{Client, ClientError};
use messages::report::{EventKind, EventReport, EventsPage};
use messages::{Answer, ErrorKind, Request, unix_time};

use super::daemon::{connect, unexpected};
use config::control_socket;
use terminal::render::events;
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Interval of polling for new events.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum of events in one request while following.
const FOLLOW_EVENTS_MAX: u32 = 1_000;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Follow new events, across restarts of the daemon; with --json one object per line
    #[arg(long, short)]
    follow: bool,
    /// Events since this time: -1h, 2026-11-22T05:51:03Z or seconds since 1970
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    since: Option<String>,
    /// Events before this time, in the same format
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, conflicts_with = "follow")]
    until: Option<String>,
    /// Events of this volume or device
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Events of this kind: change, state, policy, limit, device, alert or daemon
    #[arg(long)]
    kind: Option<EventKind>,
    /// Maximum number of events; the newest are shown
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

/// Prints events, the oldest first. As JSON it prints a page, the newest first, unless events are followed.
pub fn run(socket: Option<&Path>, options: Options, json: bool) -> Result<(), Failure> {
    let now = unix_time::now().as_secs();
    let moment =
        |text: Option<String>| text.map(|text| unix_time::parse(&text, now)).transpose().map_err(Failure::usage);
    let (since, until) = (moment(options.since)?, moment(options.until)?);
    let Options { subject, kind, limit, follow, .. } = options;
    let fetch = |client: &mut Client, limit, after: Option<u64>| -> Result<EventsPage, ClientError> {
        let (since_unix_seconds, until_unix_seconds) = if after.is_none() { (since, until) } else { (None, None) };
        let (before, subject) = (None, subject.clone());
        let request = Request::Events { limit, before, after, since_unix_seconds, until_unix_seconds, subject, kind };
        match client.request(&request, |_| ())? {
            Answer::Events(page) => Ok(page),
            _ => Err(messages::Failure::new(ErrorKind::Failed, unexpected().message).into()),
        }
    };
    let failed = |error: ClientError| Failure::failed(error.to_string());
    let mut client = connect(socket)?;
    let first = fetch(&mut client, limit, None).map_err(failed)?;
    if json && !follow {
        return print_json(&first);
    }
    let mut last_number = show(&first, json)?;
    if !follow {
        return Ok(());
    }
    let (socket, mut client, mut is_unreachable) = (control_socket(socket), Some(client), false);
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let connected = match client.take() {
            Some(client) => Ok(client),
            None => Client::connect(&socket),
        };
        let page = connected.and_then(|mut client| Ok((fetch(&mut client, FOLLOW_EVENTS_MAX, last_number)?, client)));
        match page {
            Ok((page, connected)) => {
                last_number = show(&page, json)?.or(last_number);
                (client, is_unreachable) = (Some(connected), false);
            }
            Err(error) if !std::mem::replace(&mut is_unreachable, true) => {
                eprintln!("hotset: daemon unreachable ({error}); retrying")
            }
            Err(_) => {}
        }
    }
}

/// Prints a page, the oldest first, and returns the number of the newest.
fn show(page: &EventsPage, json: bool) -> Result<Option<u64>, Failure> {
    let line = |event: &EventReport| match json {
        true => serde_json::to_string(event).map_err(|error| Failure::failed(error.to_string())),
        false => Ok(events::line(event, Style::of_stdout()).replace('\n', " ")),
    };
    for event in page.events.iter().rev() {
        terminal::render::print(&(line(event)? + "\n"));
    }
    std::io::stdout().flush().map_err(|error| Failure::failed(error.to_string()))?;
    Ok(page.events.first().map(|event| event.number))
}
