//! fio as several concurrent clients with a log line per request, for properties that must hold in every time window.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::tool::tool_within;

/// Seconds that fio may take to start and to end, in addition to its jobs.
const EXTRA_SECONDS: u64 = 60;

/// One client of fio.
pub struct Job {
    name: String,
    uri: String,
    options: String,
    from_s: u64,
    seconds: u64,
}

impl Job {
    /// A client of `uri` that starts at `from_s` and runs for `seconds`; `options` are fio's own, split at spaces.
    pub fn new(name: &str, uri: String, options: &str, from_s: u64, seconds: u64) -> Job {
        Job { name: name.to_owned(), uri, options: options.to_owned(), from_s, seconds }
    }

    fn end_s(&self) -> u64 {
        self.from_s + self.seconds
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Completion time in milliseconds since the start of the first job.
    pub at_ms: u64,
    /// Latency in microseconds.
    pub latency_us: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The requests of one client in the order of completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(pub Vec<CompletedRequest>);

/// Runs all jobs concurrently to their end; returns their logs by name.
pub fn run(folder: &Path, jobs: &[Job]) -> BTreeMap<String, Log> {
    let mut text = "[global]\nioengine=nbd\nthread=1\ntime_based=1\nnorandommap=1\nrandrepeat=0\ndisable_slat=1\n\
                    disable_clat=1\nlog_unix_epoch=1\n"
        .to_owned();
    for Job { name, uri, options, from_s, seconds } in jobs {
        let options = options.replace(' ', "\n");
        text +=
            &format!("[{name}]\nuri={uri}\nwrite_lat_log={name}\nstartdelay={from_s}\nruntime={seconds}\n{options}\n");
    }
    let file = folder.join("load.fio");
    fs::write(&file, text).expect("the folder can be written");
    let seconds = jobs.iter().map(Job::end_s).max().unwrap_or(0) + EXTRA_SECONDS;
    tool_within(seconds, "fio").arg(&file).within(folder).ok();
    let logs: Vec<Log> = (1..).zip(jobs).map(|(number, job)| Log::read(folder, job, number)).collect();
    // fio logs absolute times. The first completion of a job without delay approximates the start.
    let start_ms = |(log, job): (&Log, &Job)| Some(log.0.first()?.at_ms - job.from_s * 1000);
    let start_ms = logs.iter().zip(jobs).filter_map(start_ms).min().unwrap_or(0);
    let since_start = |log: Log| {
        Log(log.0.into_iter().map(|request| CompletedRequest { at_ms: request.at_ms - start_ms, ..request }).collect())
    };
    jobs.iter().map(|job| job.name.clone()).zip(logs.into_iter().map(since_start)).collect()
}

impl Log {
    /// Reads a log, which fio numbers by job. Requests outstanding at the end of a job's time are logged together when
    /// the last of them ends, so they are dropped.
    fn read(folder: &Path, job: &Job, number: usize) -> Log {
        let path = folder.join(format!("{}_lat.{number}.log", job.name));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut requests: Vec<CompletedRequest> = text.lines().map(parse).collect();
        requests.sort_by_key(|request| request.at_ms);
        let start_ms = requests.iter().map(|request| request.at_ms - request.latency_us / 1000).min();
        let start_ms = start_ms.unwrap_or_else(|| panic!("{} completed no request", job.name));
        requests.retain(|request| request.at_ms < start_ms + job.seconds * 1000);
        Log(requests)
    }

    /// Requests completed within these milliseconds.
    pub fn between(&self, from_ms: u64, to_ms: u64) -> &[CompletedRequest] {
        let position = |ms: u64| self.0.partition_point(|request| request.at_ms < ms);
        &self.0[position(from_ms)..position(to_ms.max(from_ms))]
    }

    /// Requests per second within these milliseconds.
    pub fn rate(&self, from_ms: u64, to_ms: u64) -> f64 {
        self.between(from_ms, to_ms).len() as f64 * 1e3 / (to_ms - from_ms) as f64
    }

    /// Quantile of the latency in microseconds (0.5 is the median), over the requests completed within these
    /// milliseconds.
    pub fn quantile_us(&self, from_ms: u64, to_ms: u64, quantile: f64) -> u64 {
        let mut latencies: Vec<u64> = self.between(from_ms, to_ms).iter().map(|request| request.latency_us).collect();
        assert!(!latencies.is_empty(), "nothing ended between {from_ms} and {to_ms} ms");
        latencies.sort_unstable();
        latencies[((latencies.len() - 1) as f64 * quantile).round() as usize]
    }

    /// Completion time of the last request.
    pub fn end_ms(&self) -> u64 {
        self.0.last().map_or(0, |request| request.at_ms)
    }

    /// Largest excess over `per_second` in any time window, with each request counted by `amount`.
    pub fn excess(&self, per_second: u64, amount: fn(&CompletedRequest) -> u64) -> u64 {
        let (mut level, mut level_max, mut last_ms) = (0, 0, 0);
        for request in &self.0 {
            // In thousandths, so that milliseconds divide evenly.
            level = u64::saturating_sub(level, per_second * (request.at_ms - last_ms)) + amount(request) * 1000;
            (level_max, last_ms) = (level_max.max(level), request.at_ms);
        }
        level_max / 1000
    }

    /// Largest excess over `per_second` in any interval that begins when the first request was sent, with each request
    /// counted by `amount`. A delay between the daemon and fio makes it smaller, never larger.
    pub fn excess_since_start(&self, per_second: u64, amount: fn(&CompletedRequest) -> u64) -> u64 {
        let sent_us = |request: &CompletedRequest| request.at_ms as i64 * 1000 - request.latency_us as i64;
        let start_us = self.0.iter().map(sent_us).min().unwrap_or(0);
        let (mut total, mut excess) = (0, 0);
        for request in &self.0 {
            total += amount(request);
            // fio's milliseconds are rounded down.
            let elapsed_us = ((request.at_ms as i64 + 1) * 1000 - start_us) as u64;
            excess = excess.max(total.saturating_sub(per_second * elapsed_us / 1_000_000));
        }
        excess
    }
}

/// Parses a line of fio's log: milliseconds, latency in nanoseconds, direction, bytes, and unused fields.
fn parse(line: &str) -> CompletedRequest {
    let numbers: Vec<u64> = line.split(',').map_while(|field| field.trim().parse().ok()).collect();
    let [at_ms, latency_ns, _, bytes, ..] = numbers[..] else { panic!("not a line of fio's log: {line}") };
    CompletedRequest { at_ms, latency_us: latency_ns / 1000, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(at_ms: impl IntoIterator<Item = u64>) -> Log {
        Log(at_ms.into_iter().map(|at_ms| CompletedRequest { at_ms, latency_us: at_ms, bytes: 4096 }).collect())
    }

    #[test]
    fn fio_log_line_is_parsed() {
        let request = CompletedRequest { at_ms: 1_795_426_913_818, latency_us: 1_249, bytes: 4096 };
        assert_eq!(parse("1795426913818, 1249813, 0, 4096, 0"), request);
    }

    #[test]
    fn window_holds_the_requests_completed_in_it() {
        let log = log((0..1000).map(|number| number * 2));
        assert_eq!((log.between(100, 200).len(), log.rate(100, 200)), (50, 500.0));
        assert_eq!(log.quantile_us(0, 2000, 0.99), 1978);
    }

    #[test]
    fn excess_over_a_rate_is_found_in_any_window() {
        let has_data = |request: &CompletedRequest| u64::from(request.bytes > 0);
        assert_eq!(log((0..5000).map(|number| number * 2)).excess(500, has_data), 1);
        // All requests of a second arrive at its start; then a rate 2 % too high.
        assert_eq!(log((0..5000).map(|number| number / 500 * 1000)).excess(500, has_data), 500);
        assert!(log((0..5100).map(|number| number * 100 / 51)).excess(500, has_data) >= 100);
    }

    #[test]
    fn excess_since_the_start_is_independent_of_delays() {
        let request_count = |_: &CompletedRequest| 1;
        let log = |at_ms: Vec<u64>| {
            Log(at_ms.iter().map(|at_ms| CompletedRequest { at_ms: *at_ms, latency_us: 0, bytes: 1 }).collect())
        };
        // All requests of a second arrive at its end.
        assert_eq!(
            log((0..5000).map(|number| (number / 500 + 1) * 1000).collect()).excess_since_start(500, request_count),
            500
        );
        // The first request was sent a second before: the delayed ones are within the rate.
        let mut delayed = log((0..5000).map(|number| (number / 500 + 1) * 1000).collect());
        delayed.0[0].latency_us = 1_000_000;
        assert_eq!(delayed.excess_since_start(500, request_count), 0);
        assert!(log((0..5100).map(|number| number * 100 / 51).collect()).excess_since_start(50, request_count) >= 100);
    }
}
