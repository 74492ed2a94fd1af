//! The load: reads and writes of 8 KiB, most of them to a small hot set, a part of which moves after a while. The
//! content of every read is checked.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nbd_protocol::Command;
use seam::Nanos;

use super::client::Client;
use super::tally::Meter;

/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 8 << 10;
/// Requests in flight.
pub const DEPTH: usize = 16;
/// Bytes of the hot set.
pub const HOT_BYTES: u64 = 64 << 20;
/// Requests to the hot set, in percent.
pub const HOT_PERCENT: u64 = 99;
/// Requests to the hot set that go to one in [`HOTTEST_PART`] of its blocks, in percent.
pub const HOTTEST_PERCENT: u64 = 80;
/// See [`HOTTEST_PERCENT`].
pub const HOTTEST_PART: u64 = 4;
/// Requests that read, in percent.
pub const READ_PERCENT: u64 = 80;
/// Stretches of the hot set, spread over the volume.
pub const HOT_STRETCHES: u64 = 8;

/// Orders to running clients.
#[derive(Default)]
pub struct Orders {
    /// End the load.
    pub stop: AtomicBool,
    /// Number of stretches of the hot set that have moved.
    pub moved: AtomicU64,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Flight {
    block: u64,
    read: bool,
    began: Instant,
}

/// A running client.
struct Worker<'a> {
    client: Client,
    meter: &'a Meter,
    orders: &'a Orders,
    random: u64,
    blocks: u64,
    flights: Vec<Option<Flight>>,
    /// Version written last to each block; absent or 0: never written.
    versions: BTreeMap<u64, u64>,
    data: Vec<u8>,
}

/// Runs the load on `export` until `orders.stop`. Fails if the connection breaks or a read returns wrong data.
pub fn run(socket: &Path, export: &str, seed: u64, meter: &Meter, orders: &Orders) -> io::Result<()> {
    let client = Client::connect(socket, export)?;
    let blocks = client.size_bytes / REQUEST_BYTES;
    let data = vec![0; REQUEST_BYTES as usize];
    let (flights, versions) = (vec![None; DEPTH], BTreeMap::new());
    let mut worker = Worker { client, meter, orders, random: seed, blocks, flights, versions, data };
    for slot in 0..DEPTH {
        worker.issue(slot);
    }
    let mut left = DEPTH;
    while left > 0 {
        if !worker.client.has_reply() {
            worker.client.send()?;
        }
        let slot = worker.complete()?;
        if orders.stop.load(Ordering::Relaxed) {
            left -= 1;
        } else {
            worker.issue(slot);
        }
    }
    Ok(())
}

impl Worker<'_> {
    /// A random number below `bound` (xorshift64*, whose spread is even enough).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    fn draw_block(&mut self) -> u64 {
        if self.below(100) >= HOT_PERCENT {
            return self.below(self.blocks);
        }
        let hot = HOT_BYTES / REQUEST_BYTES / HOT_STRETCHES;
        let (stretch, apart) = (self.below(HOT_STRETCHES), self.blocks / HOT_STRETCHES);
        let has_moved = stretch < self.orders.moved.load(Ordering::Relaxed);
        // A part of the hot set is hotter than the rest, as in real workloads.
        let hot = if self.below(100) < HOTTEST_PERCENT { hot / HOTTEST_PART } else { hot };
        stretch * apart + if has_moved { apart / 2 } else { 0 } + self.below(hot)
    }

    fn issue(&mut self, slot: usize) {
        let mut block = self.draw_block();
        // Concurrent requests to one block have no defined result, so its reads could not be checked.
        while self.flights.iter().flatten().any(|flight| flight.block == block) {
            block = self.draw_block();
        }
        let read = self.below(100) < READ_PERCENT;
        let (cookie, offset, len) = (slot as u64, block * REQUEST_BYTES, REQUEST_BYTES as u32);
        if read {
            self.client.queue(Command::Read, cookie, offset, len, &[]);
        } else {
            let version = self.versions.entry(block).or_default();
            *version += 1;
            stamp(&mut self.data, block, *version);
            self.client.queue(Command::Write, cookie, offset, len, &self.data);
        }
        self.flights[slot] = Some(Flight { block, read, began: Instant::now() });
    }

    /// Receives one reply and returns the slot that it frees.
    fn complete(&mut self) -> io::Result<usize> {
        let slot = self.client.reply()? as usize;
        let flight = self.flights.get_mut(slot).and_then(Option::take);
        let Flight { block, read, began } = flight.ok_or_else(|| io::Error::other("a reply to no request"))?;
        if read {
            self.client.data(&mut self.data)?;
        }
        let latency = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.note(!read, Nanos(latency));
        if read {
            let version = self.versions.get(&block).copied().unwrap_or(0);
            if !is_stamped(&self.data, block, version) {
                return Err(io::Error::other(format!("block {block} differs from the last write")));
            }
        }
        Ok(slot)
    }
}

/// Fills `data` with the content of a version of a block.
fn stamp(data: &mut [u8], block: u64, version: u64) {
    for sector in data.chunks_exact_mut(512) {
        sector[..8].copy_from_slice(&block.to_le_bytes());
        sector[8..16].copy_from_slice(&version.to_le_bytes());
    }
}

/// True if every sector of `data` has this version; version 0 is zeroes.
fn is_stamped(data: &[u8], block: u64, version: u64) -> bool {
    let (block, version) = if version == 0 { ([0; 8], [0; 8]) } else { (block.to_le_bytes(), version.to_le_bytes()) };
    data.chunks_exact(512).all(|sector| sector[..8] == block && sector[8..16] == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_version_and_torn_block_are_detected() {
        let mut data = vec![0; REQUEST_BYTES as usize];
        assert!(is_stamped(&data, 7, 0));
        stamp(&mut data, 7, 3);
        assert!(is_stamped(&data, 7, 3));
        assert!(!is_stamped(&data, 7, 2) && !is_stamped(&data, 8, 3) && !is_stamped(&data, 7, 0));
        data[4096 + 8] ^= 1;
        assert!(!is_stamped(&data, 7, 3));
    }
}
