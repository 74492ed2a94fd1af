//! `hotset report`: the benefit of the cache over a time, on one self-contained page.

use std::path::{Path, PathBuf};

use clap::Args;
use control::Client;
use lab::report::{Findings, Gain, VolumeGain, page};
use messages::report::{EventKind, HistoryReport};
use messages::{Answer, Request, StatusReport, moment};

use super::daemon::{ask_on, connect, unexpected};
use terminal::{Failure, print_json};

/// Series that are read from the history.
const SERIES: [&str; 12] = [
    "reads",
    "writes",
    "read_bytes",
    "write_bytes",
    "memory_hits",
    "prefetched_hits",
    "flash_hits",
    "backing_reads",
    "backing_writes",
    "backing_read_bytes",
    "backing_write_bytes",
    "read_latency",
];
/// Volumes that are examined at most.
const VOLUMES_MAX: usize = 1_000;
/// Volumes on the page: the ones with the most reads.
const VOLUMES_SHOWN: usize = 50;
/// Alerts on the page: the newest.
const ALERTS_SHOWN: u32 = 100;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Begin: -7d, 2026-11-22T05:51:03Z or seconds since 1970
    #[arg(long, value_name = "WHEN", default_value = "-1d", allow_hyphen_values = true)]
    from: String,
    /// End, in the same format; default: now
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    to: Option<String>,
    /// HTML file to write; an existing file is overwritten
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
}

/// Reads the history, and writes the page.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    let now = moment::since_1970().as_secs();
    let moment = |text: &str| moment::parse(text, now).map_err(Failure::usage);
    let from = moment(&options.from)?;
    // The present second counts as past. The end is fixed here, so that the volumes add up to the whole.
    let to = options.to.as_deref().map_or(Ok(now + 1), moment)?;
    let found = find(&mut connect(socket)?, from, to)?;
    let file = options.out.display().to_string();
    std::fs::write(&options.out, page::write(&found)).map_err(|error| {
        Failure::failed(format!("{file} cannot be written: {error}; name a file in a folder that you may write to"))
    })?;
    if json {
        return print_json(&found.gain);
    }
    println!("{file}: {}", page::sentence(&found.gain));
    Ok(())
}

fn find(client: &mut Client, from: u64, to: u64) -> Result<Findings, Failure> {
    let Answer::Status(status) = ask_on(client, &Request::Status {})? else { return Err(unexpected()) };
    let history = past(client, None, from, to)?;
    let gain = Gain::of(&history);
    if gain.covered_seconds == 0 {
        return Err(Failure::failed(
            "the history knows nothing of that time; give a --from and a --to in which the daemon ran, and see that \
             [history] size is not 0",
        ));
    }
    let StatusReport { version, volumes: known, .. } = *status;
    let mut volumes = Vec::new();
    for volume in known.iter().take(VOLUMES_MAX) {
        let history = past(client, Some(&volume.name), from, to)?;
        volumes.push(VolumeGain { volume: volume.name.clone(), gain: Gain::of(&history) });
    }
    let (volumes_examined, volumes_not_examined) = (volumes.len(), known.len() - volumes.len());
    volumes.sort_by_key(|volume| std::cmp::Reverse(volume.gain.reads));
    volumes.truncate(VOLUMES_SHOWN);
    let request = Request::Events {
        limit: ALERTS_SHOWN,
        before: None,
        after: None,
        since_unix_seconds: Some(from),
        until_unix_seconds: Some(to),
        subject: None,
        kind: Some(EventKind::Alert),
    };
    let Answer::Events(alerts) = ask_on(client, &request)? else { return Err(unexpected()) };
    Ok(Findings { version, history, gain, volumes, volumes_examined, volumes_not_examined, alerts })
}

/// The history of a volume, or of all volumes together, in the same steps.
fn past(client: &mut Client, volume: Option<&str>, from: u64, to: u64) -> Result<HistoryReport, Failure> {
    let request = Request::History {
        volume: volume.map(str::to_owned),
        datastore: None,
        from_unix_seconds: Some(from),
        to_unix_seconds: Some(to),
        step_seconds: None,
        series: SERIES.map(str::to_owned).to_vec(),
    };
    let Answer::History(history) = ask_on(client, &request)? else { return Err(unexpected()) };
    Ok(*history)
}
