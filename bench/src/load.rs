//! Many clients of many volumes: each has a connection to each of its volumes, and asks one after the other.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nbd_protocol::{Command, Request};

use crate::nbd::connect;

/// Bytes of a request.
const LEN: usize = 4096;
/// Bytes of a simple reply's head.
const REPLY_BYTES: usize = 16;
/// Of so many requests one is a write.
const WRITE_ONE_OF: u64 = 4;

/// What a run has shown.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Requests a second.
    pub iops: f64,
    /// 99 of 100 took at most this from when they were due, in microseconds.
    pub p99_us: f64,
}

/// All clients.
pub struct Load {
    clients: Vec<Client>,
    /// Bytes of each volume that are asked for.
    bytes: u64,
}

struct Client {
    volumes: Vec<UnixStream>,
    /// Requests so far, by which the next volume and place are chosen.
    asked: u64,
}

impl Load {
    /// `clients` clients that share these volumes, each of which has `bytes`.
    pub fn connect(socket: &Path, volumes: &[String], clients: usize, bytes: u64) -> io::Result<Load> {
        let mut load = Load { clients: Vec::new(), bytes };
        for part in volumes.chunks(volumes.len().div_ceil(clients)) {
            let volumes = part.iter().map(|volume| connect(socket, volume)).collect::<io::Result<Vec<_>>>()?;
            load.clients.push(Client { volumes, asked: 0 });
        }
        Ok(load)
    }

    /// Asks for `time`, as fast as answers come or `rate` times a second: then each request has its moment, and is late from there on.
    pub fn run(&mut self, time: Duration, rate: Option<f64>) -> io::Result<Seen> {
        let (bytes, count) = (self.bytes, self.clients.len() as f64);
        let pause = rate.map(|rate| Duration::from_secs_f64(count / rate));
        let began = Instant::now();
        let asked: io::Result<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            // Each has moments of its own: all at once would be bursts.
            let first = |number: usize| began + pause.unwrap_or_default().mul_f64(number as f64 / count);
            let run = |(number, client)| scope.spawn(move || Client::run(client, first(number), time, pause, bytes));
            let threads: Vec<_> = self.clients.iter_mut().enumerate().map(run).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| io::Error::other("a client panicked"))?)
                .collect()
        });
        let took = began.elapsed().as_secs_f64();
        let mut all = asked?.concat();
        all.sort_unstable();
        let p99 = all.get(all.len() * 99 / 100).copied().ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Seen { iops: all.len() as f64 / took, p99_us: f64::from(p99) })
    }
}

impl Client {
    /// Microseconds of each request.
    fn run(&mut self, began: Instant, time: Duration, pause: Option<Duration>, bytes: u64) -> io::Result<Vec<u32>> {
        let (mut took, mut due) = (Vec::new(), began);
        while began.elapsed() < time {
            match pause {
                Some(pause) => {
                    due += pause;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                None => due = Instant::now(),
            }
            self.ask(bytes)?;
            took.push(u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        Ok(took)
    }

    fn ask(&mut self, bytes: u64) -> io::Result<()> {
        self.asked += 1;
        let (volumes, blocks) = (self.volumes.len() as u64, bytes / LEN as u64);
        // Each time around another block of each volume; a factor without a common divisor with 2 scatters them.
        let (volume, block) =
            (self.asked % volumes, (self.asked / volumes).wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks);
        let stream = &mut self.volumes[volume as usize];
        let is_write = self.asked.is_multiple_of(WRITE_ONE_OF);
        let command = if is_write { Command::Write } else { Command::Read };
        let request = Request { flags: 0, command, cookie: self.asked, offset: block * LEN as u64, len: LEN as u32 };
        let mut out = request.encode().to_vec();
        if is_write {
            out.resize(out.len() + LEN, 1);
        }
        stream.write_all(&out)?;
        let mut reply = [0; REPLY_BYTES + LEN];
        let reply = &mut reply[..if is_write { REPLY_BYTES } else { REPLY_BYTES + LEN }];
        stream.read_exact(reply)?;
        let is_good = reply[4..8] == [0; 4] && reply[8..16] == self.asked.to_be_bytes();
        if is_good { Ok(()) } else { Err(io::Error::other("a request failed")) }
    }
}
