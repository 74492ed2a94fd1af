//! A client that writes at random and records for each sector which writes are flushed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::{Client, Endpoint, FUA, Op};
use crate::pattern::{self, SECTOR};
use crate::random::Random;
use crate::write_history::{BLOCK_SECTORS, Fault, FlushMark, WriteHistory, is_whole_block};

/// Requests in flight per connection.
const DEPTH: usize = 16;
/// Largest request in blocks.
const BLOCKS_MAX: u64 = 8;
/// Blocks at the start of a connection's part that take half of its requests, to provoke overwrites.
const HOT_BLOCKS: u64 = 32;

/// Parameters of a writer.
pub struct Writer<'a> {
    /// Endpoint of the server.
    pub endpoint: &'a Endpoint,
    /// Name of the volume.
    pub export: &'a str,
    /// Connections; each writes its own part of the volume, and a flush on any of them covers all.
    pub connections: u64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Sets a writer's `stop` when dropped, so that the writer also ends when the test fails.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

enum InFlight {
    Write { at: u64, count: u64, sequence: u64, durable: bool },
    Read { at: u64, count: u64 },
    Flush(FlushMark),
}

impl Writer<'_> {
    /// Writes until `stop` is set or the server has ended. Returns the faults that reads detected.
    pub fn run(&self, history: &Mutex<WriteHistory>, stop: &AtomicBool) -> Vec<Fault> {
        std::thread::scope(|scope| {
            let parts: Vec<_> =
                (0..self.connections).map(|part| scope.spawn(move || self.part(part, history, stop))).collect();
            parts.into_iter().flat_map(|part| part.join().expect("a writer's thread does not panic")).collect()
        })
    }

    fn part(&self, part: u64, history: &Mutex<WriteHistory>, stop: &AtomicBool) -> Vec<Fault> {
        let mut faults = Vec::new();
        // A broken connection means that the server crashed.
        let _: io::Result<()> = Client::connect(self.endpoint, self.export).and_then(|client| {
            let blocks = history.lock().expect("no writer panicked").len() / BLOCK_SECTORS / self.connections;
            let random = Random::new(self.seed ^ (part << 56));
            let mut part = Part { client, history, random, first: part * blocks, blocks, in_flight: BTreeMap::new() };
            while !stop.load(Ordering::Relaxed) {
                while part.in_flight.len() < DEPTH {
                    part.submit()?;
                }
                faults.extend(part.complete()?);
            }
            while !part.in_flight.is_empty() {
                faults.extend(part.complete()?);
            }
            part.client.send(Op::Disconnect, 0, 0, 0, &[]).map(drop)
        });
        faults
    }
}

struct Part<'a> {
    client: Client,
    history: &'a Mutex<WriteHistory>,
    random: Random,
    first: u64,
    blocks: u64,
    in_flight: BTreeMap<u64, InFlight>,
}

impl Part<'_> {
    fn submit(&mut self) -> io::Result<()> {
        let draw = self.random.below(100);
        if draw < 3 {
            let mark = self.history.lock().expect("no writer panicked").begin_flush();
            let cookie = self.client.send(Op::Flush, 0, 0, 0, &[])?;
            self.in_flight.insert(cookie, InFlight::Flush(mark));
            return Ok(());
        }
        let Some((at, count)) = self.range() else {
            // All drawn ranges are busy: send a flush instead.
            return self.flush_instead();
        };
        if draw < 15 {
            let cookie = self.client.send(Op::Read, 0, at * SECTOR as u64, count as usize * SECTOR, &[])?;
            self.in_flight.insert(cookie, InFlight::Read { at, count });
            return Ok(());
        }
        let durable = self.random.chance(5);
        let flags = if durable { FUA } else { 0 };
        let zeroes = draw < 20;
        let sequence = self.history.lock().expect("no writer panicked").send(at, count, zeroes);
        let len = count as usize * SECTOR;
        let cookie = if zeroes {
            self.client.send(Op::WriteZeroes, flags, at * SECTOR as u64, len, &[])?
        } else {
            let mut data = vec![0; len];
            for (sector, bytes) in (at..).zip(data.chunks_mut(SECTOR)) {
                pattern::fill(sector, sequence, bytes);
            }
            self.client.send(Op::Write, flags, at * SECTOR as u64, len, &data)?
        };
        self.in_flight.insert(cookie, InFlight::Write { at, count, sequence, durable });
        Ok(())
    }

    fn flush_instead(&mut self) -> io::Result<()> {
        let mark = self.history.lock().expect("no writer panicked").begin_flush();
        let cookie = self.client.send(Op::Flush, 0, 0, 0, &[])?;
        self.in_flight.insert(cookie, InFlight::Flush(mark));
        Ok(())
    }

    /// Draws sectors that no request in flight touches: whole blocks, or some sectors of a block that is written in
    /// parts.
    fn range(&mut self) -> Option<(u64, u64)> {
        (0..16).find_map(|_| {
            let span = if self.random.chance(50) { HOT_BLOCKS.min(self.blocks) } else { self.blocks };
            let block = self.random.below(span);
            let (at, count) = if is_whole_block(self.first + block) {
                let block_count = if self.random.chance(70) { 1 } else { 1 + self.random.below(BLOCKS_MAX) };
                let end = (block + block_count).min(self.blocks);
                let whole = (block..end).take_while(|&block| is_whole_block(self.first + block)).count() as u64;
                ((self.first + block) * BLOCK_SECTORS, whole * BLOCK_SECTORS)
            } else {
                let start = self.random.below(BLOCK_SECTORS);
                let count = 1 + self.random.below(BLOCK_SECTORS - start);
                ((self.first + block) * BLOCK_SECTORS + start, count)
            };
            let busy = self.in_flight.values().any(|other| match *other {
                InFlight::Write { at: from, count: len, .. } | InFlight::Read { at: from, count: len } => {
                    from < at + count && at < from + len
                }
                InFlight::Flush(_) => false,
            });
            (!busy).then_some((at, count))
        })
    }

    fn complete(&mut self) -> io::Result<Vec<Fault>> {
        let reply = self.client.receive()?;
        let mut history = self.history.lock().expect("no writer panicked");
        let request = self.in_flight.remove(&reply.cookie).expect("the client knows its cookies");
        if reply.error != 0 {
            let (at, count, operation) = match request {
                InFlight::Write { at, count, sequence, .. } => {
                    history.fail(at, count, sequence);
                    (at, count, "a write")
                }
                InFlight::Read { at, count } => (at, count, "a read"),
                InFlight::Flush(_) => (0, 0, "a flush"),
            };
            println!("{operation} of {count} sectors at {at} failed with error {}", reply.error);
            return Ok(Vec::new());
        }
        match request {
            InFlight::Write { at, count, sequence, durable } => history.acknowledge(at, count, sequence, durable),
            InFlight::Read { at, .. } => return Ok(history.check_read(at, &reply.data)),
            InFlight::Flush(mark) => history.end_flush(mark),
        }
        Ok(Vec::new())
    }
}
