//! A client with random reads, writes and flushes, which records for each sector which writes are flushed.

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
/// Blocks at the start of a connection's range that take half of its requests, to provoke overwrites.
const HOT_BLOCKS: u64 = 32;

/// Parameters of a writer.
pub struct Writer<'a> {
    /// Endpoint of the server.
    pub endpoint: &'a Endpoint,
    /// Name of the volume.
    pub export: &'a str,
    /// Number of connections. Each writes its own range of the volume, and a flush on any of them covers all.
    pub connections: u64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Sets a writer's `stop` when dropped, so that the writer also ends when the test fails.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request in flight, in sectors.
enum InFlight {
    Write { first: u64, count: u64, sequence: u64, durable: bool },
    Read { first: u64, count: u64 },
    Flush(FlushMark),
}

impl Writer<'_> {
    /// Writes until `stop` is set or the server has ended. Returns the faults that reads detected.
    pub fn run(&self, history: &Mutex<WriteHistory>, stop: &AtomicBool) -> Vec<Fault> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|connection| scope.spawn(move || self.run_connection(connection, history, stop)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a writer's thread does not panic")).collect()
        })
    }

    fn run_connection(&self, connection: u64, history: &Mutex<WriteHistory>, stop: &AtomicBool) -> Vec<Fault> {
        let mut faults = Vec::new();
        // A broken connection means that the server crashed.
        let _: io::Result<()> = Client::connect(self.endpoint, self.export).and_then(|client| {
            let block_count = history.lock().expect("no writer panicked").len() / BLOCK_SECTORS / self.connections;
            let random = Random::new(self.seed ^ (connection << 56));
            let first_block = connection * block_count;
            let in_flight = BTreeMap::new();
            let mut writer = ConnectionWriter { client, history, random, first_block, block_count, in_flight };
            while !stop.load(Ordering::Relaxed) {
                while writer.in_flight.len() < DEPTH {
                    writer.submit()?;
                }
                faults.extend(writer.complete()?);
            }
            while !writer.in_flight.is_empty() {
                faults.extend(writer.complete()?);
            }
            writer.client.send(Op::Disconnect, 0, 0, 0, &[]).map(drop)
        });
        faults
    }
}

/// One connection and the blocks that it writes.
struct ConnectionWriter<'a> {
    client: Client,
    history: &'a Mutex<WriteHistory>,
    random: Random,
    /// The connection's own blocks of the volume.
    first_block: u64,
    block_count: u64,
    /// Requests in flight by cookie.
    in_flight: BTreeMap<u64, InFlight>,
}

impl ConnectionWriter<'_> {
    /// Submits a random request.
    fn submit(&mut self) -> io::Result<()> {
        let draw = self.random.below(100);
        if draw < 3 {
            return self.submit_flush();
        }
        let Some((first, count)) = self.draw_range() else {
            // All drawn ranges are busy: send a flush instead.
            return self.submit_flush();
        };
        if draw < 15 {
            let cookie = self.client.send(Op::Read, 0, first * SECTOR as u64, count as usize * SECTOR, &[])?;
            self.in_flight.insert(cookie, InFlight::Read { first, count });
            return Ok(());
        }
        let durable = self.random.chance(5);
        let flags = if durable { FUA } else { 0 };
        let zeroes = draw < 20;
        let sequence = self.history.lock().expect("no writer panicked").send(first, count, zeroes);
        let len = count as usize * SECTOR;
        let cookie = if zeroes {
            self.client.send(Op::WriteZeroes, flags, first * SECTOR as u64, len, &[])?
        } else {
            let mut data = vec![0; len];
            for (sector, bytes) in (first..).zip(data.chunks_mut(SECTOR)) {
                pattern::fill(sector, sequence, bytes);
            }
            self.client.send(Op::Write, flags, first * SECTOR as u64, len, &data)?
        };
        self.in_flight.insert(cookie, InFlight::Write { first, count, sequence, durable });
        Ok(())
    }

    fn submit_flush(&mut self) -> io::Result<()> {
        let mark = self.history.lock().expect("no writer panicked").begin_flush();
        let cookie = self.client.send(Op::Flush, 0, 0, 0, &[])?;
        self.in_flight.insert(cookie, InFlight::Flush(mark));
        Ok(())
    }

    /// Draws sectors that no request in flight touches: whole blocks, or some sectors of a block that is written by
    /// sector. Returns the first sector and their number.
    fn draw_range(&mut self) -> Option<(u64, u64)> {
        (0..16).find_map(|_| {
            let span = if self.random.chance(50) { HOT_BLOCKS.min(self.block_count) } else { self.block_count };
            let block = self.random.below(span);
            let (first, count) = if is_whole_block(self.first_block + block) {
                let drawn_blocks = if self.random.chance(70) { 1 } else { 1 + self.random.below(BLOCKS_MAX) };
                let end = (block + drawn_blocks).min(self.block_count);
                let blocks = (block..end).take_while(|&block| is_whole_block(self.first_block + block)).count() as u64;
                ((self.first_block + block) * BLOCK_SECTORS, blocks * BLOCK_SECTORS)
            } else {
                let start = self.random.below(BLOCK_SECTORS);
                let count = 1 + self.random.below(BLOCK_SECTORS - start);
                ((self.first_block + block) * BLOCK_SECTORS + start, count)
            };
            let busy = self.in_flight.values().any(|other| match *other {
                InFlight::Write { first: other_first, count: other_count, .. }
                | InFlight::Read { first: other_first, count: other_count } => {
                    other_first < first + count && first < other_first + other_count
                }
                InFlight::Flush(_) => false,
            });
            (!busy).then_some((first, count))
        })
    }

    /// Waits for the next reply and records it; returns the faults that a read detected.
    fn complete(&mut self) -> io::Result<Vec<Fault>> {
        let reply = self.client.receive()?;
        let mut history = self.history.lock().expect("no writer panicked");
        let request = self.in_flight.remove(&reply.cookie).expect("the client knows its cookies");
        if reply.error != 0 {
            let (first, count, operation) = match request {
                InFlight::Write { first, count, sequence, .. } => {
                    history.fail(first, count, sequence);
                    (first, count, "a write")
                }
                InFlight::Read { first, count } => (first, count, "a read"),
                InFlight::Flush(_) => (0, 0, "a flush"),
            };
            println!("{operation} of {count} sectors at {first} failed with error {}", reply.error);
            return Ok(Vec::new());
        }
        match request {
            InFlight::Write { first, count, sequence, durable } => {
                history.acknowledge(first, count, sequence, durable);
            }
            InFlight::Read { first, .. } => return Ok(history.check_read(first, &reply.data)),
            InFlight::Flush(mark) => history.end_flush(mark),
        }
        Ok(Vec::new())
    }
}
