//! `hotset report`: the benefit of the cache over a time range, on one self-contained page.

use std::path::{Path, PathBuf};

use clap::Args;
use control::Client;
use lab::report::{Gain, ReportData, VolumeGain, page};
use messages::report::{EventKind, HistoryReport};
use messages::{Answer, Request, StatusReport, unix_time};

use super::daemon::{connect, send_request_on, unexpected};
use terminal::{Failure, print_json};

/// Series that are read from the history.
const SERIES: [&str; 19] = [
    "reads",
    "writes",
    "read_bytes",
    "write_bytes",
    "memory_hits",
    "prefetched_hits",
    "flash_hits",
    "partial_hits",
    "misses",
    "memory_source_bytes",
    "prefetched_source_bytes",
    "flash_source_bytes",
    "backing_source_bytes",
    "read_held_us",
    "backing_reads",
    "backing_writes",
    "backing_read_bytes",
    "backing_write_bytes",
    "read_latency",
];
/// Maximum number of volumes that are examined.
const VOLUMES_MAX: usize = 1_000;
/// Maximum number of volumes on the page: the volumes with the most reads.
const VOLUMES_SHOWN: usize = 50;
/// The machine's host name. The control socket leads to a daemon of this machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Maximum number of alerts on the page: the newest.
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
    let now = unix_time::now().as_secs();
    let moment = |text: &str| unix_time::parse(text, now).map_err(Failure::usage);
    let from = moment(&options.from)?;
    // The current second is included. The end is fixed here, so that the volumes add up to the total.
    let to = options.to.as_deref().map_or(Ok(now + 1), moment)?;
    let data = collect(&mut connect(socket)?, from, to)?;
    let file = options.out.display().to_string();
    std::fs::write(&options.out, page::write(&data)).map_err(|error| {
        Failure::failed(format!("{file} cannot be written: {error}; choose a file in a writable directory"))
    })?;
    if json {
        return print_json(&data.gain);
    }
    println!("{file}: {}", page::summary(&data.gain));
    Ok(())
}

fn collect(client: &mut Client, from: u64, to: u64) -> Result<ReportData, Failure> {
    let requested = (from, to);
    let Answer::Status(status) = send_request_on(client, &Request::Status {})? else { return Err(unexpected()) };
    let history = fetch_history(client, None, from, to)?;
    // The second query covers only the time with data, so that its steps are as fine as possible.
    let (from, to) = history.covered_range().unwrap_or((from, to));
    let history = fetch_history(client, None, from, to)?;
    let gain = Gain::of(&history);
    if gain.covered_seconds == 0 {
        return Err(Failure::failed(
            "the history has no data for this time range; choose --from and --to while the daemon ran, and check that \
             [history] size is not 0",
        ));
    }
    let StatusReport { version, volumes: known, .. } = *status;
    let mut volumes = Vec::new();
    for volume in known.iter().take(VOLUMES_MAX) {
        let history = fetch_history(client, Some(&volume.name), from, to)?;
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
    let Answer::Events(alerts) = send_request_on(client, &request)? else { return Err(unexpected()) };
    let host = std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
    Ok(ReportData { host, requested, version, history, gain, volumes, volumes_examined, volumes_not_examined, alerts })
}

/// The history of a volume, or of all volumes together, in the same steps.
fn fetch_history(client: &mut Client, volume: Option<&str>, from: u64, to: u64) -> Result<HistoryReport, Failure> {
    let request = Request::History {
        volume: volume.map(str::to_owned),
        datastore: None,
        pool: None,
        from_unix_seconds: Some(from),
        to_unix_seconds: Some(to),
        step_seconds: None,
        series: SERIES.map(str::to_owned).to_vec(),
    };
    let Answer::History(history) = send_request_on(client, &request)? else { return Err(unexpected()) };
    Ok(*history)
}
