//! `hotset trace record`: fetches a live volume's requests from the daemon and writes them to a file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use control::Client;
use messages::report::{TraceOpened, Traced};
use messages::{Answer, Request};
use serde::Serialize;
use trace::{Anonymiser, Format, Header, Op, TraceError, Writer};

use crate::commands::daemon::{connect, send_request_on, unexpected};
use terminal::{Failure, print_json};
use units::{show_count, show_counted};

use super::convert::{new_file, random_key};

/// Polling interval of an idle recording. At 100,000 requests/s it fills 10 % of the daemon's buffer.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of fetches after the end of the recording.
const FINAL_FETCHES_MAX: usize = 16;

/// Counts of a recording.
#[derive(Serialize)]
struct Report {
    volume: String,
    requests: u64,
    /// Requests lost because the daemon's buffer was full.
    lost: u64,
    seconds: f64,
}

/// A flag that SIGINT and SIGTERM set.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Arc::new(AtomicBool::new(false));
    let signalled = Arc::clone(&stop);
    let failed = |error: std::io::Error| Failure::failed(format!("cannot handle signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    // The thread ends with the process.
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        signalled.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

/// A recording in progress.
struct Recorder<'a> {
    client: &'a mut Client,
    volume: &'a str,
    recorder: u64,
    anonymiser: Option<Anonymiser>,
    writer: Writer,
    requests: u64,
    lost: u64,
}

impl Recorder<'_> {
    /// Fetches and writes the buffered requests; returns true if more are ready.
    fn fetch(&mut self) -> Result<bool, Failure> {
        let request = Request::TraceTake { name: self.volume.to_owned(), recorder: self.recorder };
        let Answer::Traced(traced) = send_request_on(self.client, &request)? else { return Err(unexpected()) };
        self.write(&traced).map_err(|error| Failure::failed(error.to_string()))?;
        Ok(traced.more)
    }

    fn write(&mut self, traced: &Traced) -> Result<(), TraceError> {
        for &(time_ns, op, at, len) in &traced.requests {
            let op = [Op::Read, Op::Write, Op::Discard, Op::Flush][usize::from(op) % 4];
            let request = trace::Request { time_ns: Some(time_ns), op, at, len, device: 0 };
            match self.anonymiser {
                Some(anonymiser) => anonymiser.apply(request).try_for_each(|piece| self.writer.put(&piece))?,
                None => self.writer.put(&request)?,
            }
        }
        self.requests += traced.requests.len() as u64;
        self.lost += traced.lost;
        self.writer.record_dropped(traced.lost)
    }

    /// Fetches until time is up or a signal arrives, and then the requests that are still buffered.
    fn run(&mut self, deadline: Option<Instant>, stop: &AtomicBool) -> Result<(), Failure> {
        while !stop.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            if !self.fetch()? {
                std::thread::sleep(deadline.map_or(POLL_INTERVAL, |deadline| {
                    deadline.saturating_duration_since(Instant::now()).min(POLL_INTERVAL)
                }));
            }
        }
        // Limited to twice the daemon's buffer, because busy clients refill it continuously.
        for _ in 0..FINAL_FETCHES_MAX {
            if !self.fetch()? {
                break;
            }
        }
        Ok(())
    }
}

/// Records until `seconds` have passed or a signal arrives. After an error the requests recorded before are kept.
pub fn run(
    socket: Option<&Path>,
    volume: &str,
    out: &Path,
    seconds: Option<u64>,
    anonymise: bool,
    json: bool,
) -> Result<(), Failure> {
    let stop = stop_flag()?;
    let key = if anonymise { Some(random_key()?) } else { None };
    let name = out.display().to_string();
    let mut client = connect(socket)?;
    let (file, format) = (new_file(out)?, Format::of_name(&name).unwrap_or(Format::Hotset));
    // The name selects the compression. Hotset's own format is compressed with zstd unless the name selects another.
    let compression_name = if format == Format::Hotset && !name.ends_with(".gz") && !name.ends_with(".xz") {
        "recorded.zst"
    } else {
        &name
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let header = Header { start_unix_ns: now, anonymised: anonymise };
    let write_error = |error: TraceError| Failure::failed(error.to_string());
    let handle = file.reopen().map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    let writer = trace::create(compression_name, Box::new(handle), format, header).map_err(write_error)?;
    let opened = send_request_on(&mut client, &Request::TraceOpen { name: volume.to_owned() })?;
    let Answer::TraceOpened(TraceOpened { recorder, size_bytes }) = opened else { return Err(unexpected()) };
    let started_at = Instant::now();
    let anonymiser = key.map(|key| Anonymiser::new(key, size_bytes));
    let mut recording = Recorder { client: &mut client, volume, recorder, anonymiser, writer, requests: 0, lost: 0 };
    let result = recording.run(seconds.map(|seconds| started_at + Duration::from_secs(seconds)), &stop);
    let Recorder { writer, requests, lost, .. } = recording;
    writer.finish().map_err(write_error)?;
    file.persist(out).map_err(|error| Failure::failed(format!("{name}: {}", error.error)))?;
    let report = Report { volume: volume.to_owned(), requests, lost, seconds: started_at.elapsed().as_secs_f64() };
    if let Err(failure) = result {
        let message = format!("{}; {name} has {}", failure.message, show_counted(requests, "earlier request"));
        return Err(Failure { message, code: failure.code });
    }
    let closed = send_request_on(&mut client, &Request::TraceClose { name: volume.to_owned(), recorder });
    if json {
        print_json(&report)?;
    } else {
        let requests = show_counted(requests, "request");
        println!("{requests} in {:.1} s, {} lost", report.seconds, show_count(lost));
    }
    closed.map(drop)
}
