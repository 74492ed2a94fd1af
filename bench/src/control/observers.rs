//! Observers of a daemon: followers of the event stream that read without rendering, and a scraper.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::this_thread_cpu_us;

/// Followers of the stream.
pub const FOLLOWERS: usize = 20;
/// Volumes that each follower subscribes to.
pub const VOLUMES_PER_FOLLOWER: usize = 12;
/// Pause between two scrapes; the first comes after half of it.
pub const SCRAPE_PAUSE: Duration = Duration::from_secs(5);

/// Measurements of the observers, and their own CPU time.
#[derive(Default)]
pub struct Observers {
    /// Duration of each scrape.
    pub scrapes_ms: Vec<f64>,
    /// Size of the last scrape in bytes.
    pub scraped_bytes: usize,
    /// Bytes received over the stream.
    pub streamed_bytes: usize,
    cpu_us: f64,
    observed_us: f64,
}

impl Observers {
    /// Runs `run` while followers read the stream and a scraper scrapes. Each follower subscribes to
    /// [`VOLUMES_PER_FOLLOWER`] of the volumes `names`.
    pub fn observe<T>(
        &mut self,
        address: &str,
        names: &[String],
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let (is_over, began) = (&AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let follower = |names: &[String]| {
                let path = format!("/api/v1/stream?volumes={}", names.join(","));
                scope.spawn(move || follow(address, &path, is_over))
            };
            let followers: Vec<_> = names.chunks(VOLUMES_PER_FOLLOWER).take(FOLLOWERS).map(follower).collect();
            let scraper = scope.spawn(|| scrape(address, is_over));
            let result = run();
            is_over.store(true, Ordering::Relaxed);
            let panicked = |_| io::Error::other("the observers panicked");
            for follower in followers {
                let (bytes, cpu_us) = follower.join().map_err(panicked)??;
                self.streamed_bytes += bytes;
                self.cpu_us += cpu_us;
            }
            let (scrapes_ms, bytes, cpu_us) = scraper.join().map_err(panicked)??;
            self.scrapes_ms.extend(scrapes_ms);
            self.scraped_bytes = bytes;
            self.cpu_us += cpu_us;
            self.observed_us += began.elapsed().as_secs_f64() * 1e6;
            result
        })
    }

    /// CPU time of the observers themselves, as a fraction of a core.
    pub fn cpu_fraction(&self) -> f64 {
        self.cpu_us / self.observed_us
    }
}

/// Reads the stream until `is_over`; returns the received bytes and the CPU time.
fn follow(address: &str, path: &str, is_over: &AtomicBool) -> io::Result<(usize, f64)> {
    let (mut stream, mut received) = (http_get(address, path)?, 0);
    let mut buffer = vec![0; 1 << 16];
    while !is_over.load(Ordering::Relaxed) {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::other("a follower was disconnected")),
            bytes => received += bytes,
        }
    }
    Ok((received, this_thread_cpu_us()))
}

/// Scrapes until `is_over`; returns the duration of each scrape, the bytes of the last one, and the CPU time.
fn scrape(address: &str, is_over: &AtomicBool) -> io::Result<(Vec<f64>, usize, f64)> {
    let (mut scrapes_ms, mut bytes, mut due) = (Vec::new(), 0, Instant::now() + SCRAPE_PAUSE / 2);
    while !is_over.load(Ordering::Relaxed) {
        if Instant::now() < due {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        due += SCRAPE_PAUSE;
        let began = Instant::now();
        bytes = http_get(address, "/metrics")?.read_to_end(&mut Vec::new())?;
        scrapes_ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok((scrapes_ms, bytes, this_thread_cpu_us()))
}

/// Sends an HTTP request and returns the response body for reading.
fn http_get(address: &str, path: &str) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if line.contains(" 200 ") { Ok(stream) } else { Err(io::Error::other(format!("{path}: {line}"))) }
}
