//! Many clients of many volumes: each client has a connection to each of its volumes and sends one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nbd_protocol::{Command, Request};

use crate::nbd::connect;

/// Bytes per request.
const REQUEST_BYTES: usize = 4096;
/// Bytes of a simple reply's header.
const REPLY_BYTES: usize = 16;
/// One in this many requests is a write.
const REQUESTS_PER_WRITE: u64 = 4;

/// Figures of a run.
#[derive(Clone, Copy, Debug)]
pub struct LoadFigures {
    /// Requests per second.
    pub iops: f64,
    /// 99th percentile of the latency in microseconds, counted from when a request was due.
    pub p99_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
}

/// A set of connected clients.
pub struct Load {
    clients: Vec<Client>,
    /// Bytes of each volume in use.
    bytes: u64,
}

struct Client {
    volumes: Vec<UnixStream>,
    /// Number of requests so far, which determines the next volume and block.
    requests: u64,
}

impl Load {
    /// Connects `clients` clients, which divide these volumes of `bytes` each among themselves.
    pub fn connect(socket: &Path, volumes: &[String], clients: usize, bytes: u64) -> io::Result<Load> {
        let mut load = Load { clients: Vec::new(), bytes };
        for client_volumes in volumes.chunks(volumes.len().div_ceil(clients)) {
            let volumes =
                client_volumes.iter().map(|volume| connect(socket, volume)).collect::<io::Result<Vec<_>>>()?;
            load.clients.push(Client { volumes, requests: 0 });
        }
        Ok(load)
    }

    /// Sends requests for `time`, at full speed or at `rate` per second. With a rate the latency of each request counts
    /// from its due time.
    pub fn run(&mut self, time: Duration, rate: Option<f64>) -> io::Result<LoadFigures> {
        let (bytes, count) = (self.bytes, self.clients.len() as f64);
        let pause = rate.map(|rate| Duration::from_secs_f64(count / rate));
        let began = Instant::now();
        let latencies: io::Result<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            // Start times are staggered, because simultaneous starts would form bursts.
            let start_of = |number: usize| began + pause.unwrap_or_default().mul_f64(number as f64 / count);
            let run = |(number, client)| scope.spawn(move || Client::run(client, start_of(number), time, pause, bytes));
            let threads: Vec<_> = self.clients.iter_mut().enumerate().map(run).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| io::Error::other("a client panicked"))?)
                .collect()
        });
        let seconds = began.elapsed().as_secs_f64();
        let mut sorted = latencies?.concat();
        sorted.sort_unstable();
        let p99 = sorted.get(sorted.len() * 99 / 100).copied().ok_or(io::ErrorKind::UnexpectedEof)?;
        let max_us = sorted.last().copied().map_or(0.0, f64::from);
        Ok(LoadFigures { iops: sorted.len() as f64 / seconds, p99_us: f64::from(p99), max_us })
    }
}

impl Client {
    /// Sends requests from `started` for `time`; returns the latency of each request in microseconds.
    fn run(&mut self, started: Instant, time: Duration, pause: Option<Duration>, bytes: u64) -> io::Result<Vec<u32>> {
        let (mut latencies, mut due) = (Vec::new(), started);
        while started.elapsed() < time {
            match pause {
                Some(pause) => {
                    due += pause;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                None => due = Instant::now(),
            }
            self.request(bytes)?;
            latencies.push(u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        Ok(latencies)
    }

    /// Sends one request and receives its reply.
    fn request(&mut self, bytes: u64) -> io::Result<()> {
        self.requests += 1;
        let (volumes, blocks) = (self.volumes.len() as u64, bytes / REQUEST_BYTES as u64);
        // Each round uses another block of each volume; an odd factor scatters the blocks.
        let (volume, block) =
            (self.requests % volumes, (self.requests / volumes).wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks);
        let stream = &mut self.volumes[volume as usize];
        let is_write = self.requests.is_multiple_of(REQUESTS_PER_WRITE);
        let command = if is_write { Command::Write } else { Command::Read };
        let request = Request {
            flags: 0,
            command,
            cookie: self.requests,
            offset: block * REQUEST_BYTES as u64,
            len: REQUEST_BYTES as u32,
        };
        let mut out = request.encode().to_vec();
        if is_write {
            out.resize(out.len() + REQUEST_BYTES, 1);
        }
        stream.write_all(&out)?;
        let mut reply = [0; REPLY_BYTES + REQUEST_BYTES];
        let reply = &mut reply[..if is_write { REPLY_BYTES } else { REPLY_BYTES + REQUEST_BYTES }];
        stream.read_exact(reply)?;
        // The error and the cookie of a simple reply.
        let is_good = reply[4..8] == [0; 4] && reply[8..16] == self.requests.to_be_bytes();
        if is_good { Ok(()) } else { Err(io::Error::other("a request failed")) }
    }
}
