//! The load: reads and writes of 8 KiB, most of them to a small hot set, a part of which moves after a while. The
//! content of every read is checked.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nbd_protocol::Command;
use seam::{Nanos, SECTOR_BYTES};

use super::client::Client;
use super::client_counters::Meter;

/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 8 << 10;
/// Requests in flight.
pub const DEPTH: usize = 16;
/// Bytes of the hot set.
pub const HOT_BYTES: u64 = 64 << 20;
/// Requests to the hot set, in percent.
pub const HOT_PERCENT: u64 = 99;
/// Requests to the hot set that go to 1/[`HOTTEST_FRACTION`] of its blocks, in percent.
pub const HOTTEST_PERCENT: u64 = 80;
/// See [`HOTTEST_PERCENT`].
pub const HOTTEST_FRACTION: u64 = 4;
/// Requests that read, in percent.
pub const READ_PERCENT: u64 = 80;
/// Extents of the hot set, spread over the volume.
pub const HOT_EXTENTS: u64 = 8;

/// Shared flags that control the running clients.
#[derive(Default)]
pub struct WorkloadControl {
    /// Set to end the load.
    pub stop: AtomicBool,
    /// Number of extents of the hot set that have moved.
    pub moved_extents: AtomicU64,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct InFlight {
    block: u64,
    read: bool,
    start: Instant,
}

/// A running client.
struct Worker<'a> {
    client: Client,
    meter: &'a Meter,
    load_control: &'a WorkloadControl,
    random: u64,
    blocks: u64,
    in_flight: Vec<Option<InFlight>>,
    /// Number of writes to each block, which is also the version of its content.
    versions: BTreeMap<u64, u64>,
    data: Vec<u8>,
}

/// Runs the load on `export` until `load_control.stop`. Fails if the connection breaks or a read returns wrong data.
pub fn run(socket: &Path, export: &str, seed: u64, meter: &Meter, load_control: &WorkloadControl) -> io::Result<()> {
    let client = Client::connect(socket, export)?;
    let blocks = client.size_bytes / REQUEST_BYTES;
    let data = vec![0; REQUEST_BYTES as usize];
    let (in_flight, versions) = (vec![None; DEPTH], BTreeMap::new());
    let mut worker = Worker { client, meter, load_control, random: seed, blocks, in_flight, versions, data };
    for slot in 0..DEPTH {
        worker.issue(slot);
    }
    let mut outstanding = DEPTH;
    while outstanding > 0 {
        if !worker.client.has_reply() {
            worker.client.send()?;
        }
        let slot = worker.complete()?;
        if load_control.stop.load(Ordering::Relaxed) {
            outstanding -= 1;
        } else {
            worker.issue(slot);
        }
    }
    Ok(())
}

impl Worker<'_> {
    /// A random number below `bound` (xorshift64*, whose spread is even enough).
    fn random_below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    fn draw_block(&mut self) -> u64 {
        if self.random_below(100) >= HOT_PERCENT {
            return self.random_below(self.blocks);
        }
        let hot_blocks = HOT_BYTES / REQUEST_BYTES / HOT_EXTENTS;
        let (extent, extent_spacing) = (self.random_below(HOT_EXTENTS), self.blocks / HOT_EXTENTS);
        let is_moved = extent < self.load_control.moved_extents.load(Ordering::Relaxed);
        // A fraction of the hot set is hotter than the rest, as in real workloads.
        let hot_blocks =
            if self.random_below(100) < HOTTEST_PERCENT { hot_blocks / HOTTEST_FRACTION } else { hot_blocks };
        extent * extent_spacing + if is_moved { extent_spacing / 2 } else { 0 } + self.random_below(hot_blocks)
    }

    fn issue(&mut self, slot: usize) {
        let mut block = self.draw_block();
        // Concurrent requests to one block have no defined result, so its reads could not be checked.
        while self.in_flight.iter().flatten().any(|request| request.block == block) {
            block = self.draw_block();
        }
        let read = self.random_below(100) < READ_PERCENT;
        let (cookie, offset, len) = (slot as u64, block * REQUEST_BYTES, REQUEST_BYTES as u32);
        if read {
            self.client.queue(Command::Read, cookie, offset, len, &[]);
        } else {
            let version = self.versions.entry(block).or_default();
            *version += 1;
            stamp(&mut self.data, block, *version);
            self.client.queue(Command::Write, cookie, offset, len, &self.data);
        }
        self.in_flight[slot] = Some(InFlight { block, read, start: Instant::now() });
    }

    /// Receives one reply and returns the slot that it frees.
    fn complete(&mut self) -> io::Result<usize> {
        let slot = self.client.receive_reply()? as usize;
        let request = self.in_flight.get_mut(slot).and_then(Option::take);
        let InFlight { block, read, start } =
            request.ok_or_else(|| io::Error::other("the server sent a reply with an unknown cookie"))?;
        if read {
            self.client.receive_data(&mut self.data)?;
        }
        let latency = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.record(!read, Nanos(latency));
        if read {
            let version = self.versions.get(&block).copied().unwrap_or(0);
            if !has_stamp(&self.data, block, version) {
                return Err(io::Error::other(format!("block {block} does not contain the last written data")));
            }
        }
        Ok(slot)
    }
}

/// Fills `data` with the content of a version of a block.
fn stamp(data: &mut [u8], block: u64, version: u64) {
    for sector in data.chunks_exact_mut(SECTOR_BYTES) {
        sector[..8].copy_from_slice(&block.to_le_bytes());
        sector[8..16].copy_from_slice(&version.to_le_bytes());
    }
}

/// True if every sector of `data` has this version; version 0 is zeroes.
fn has_stamp(data: &[u8], block: u64, version: u64) -> bool {
    let (block, version) = if version == 0 { ([0; 8], [0; 8]) } else { (block.to_le_bytes(), version.to_le_bytes()) };
    data.chunks_exact(SECTOR_BYTES).all(|sector| sector[..8] == block && sector[8..16] == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_version_and_torn_block_are_detected() {
        let mut data = vec![0; REQUEST_BYTES as usize];
        assert!(has_stamp(&data, 7, 0));
        stamp(&mut data, 7, 3);
        assert!(has_stamp(&data, 7, 3));
        assert!(!has_stamp(&data, 7, 2) && !has_stamp(&data, 8, 3) && !has_stamp(&data, 7, 0));
        data[4096 + 8] ^= 1;
        assert!(!has_stamp(&data, 7, 3));
    }
}
