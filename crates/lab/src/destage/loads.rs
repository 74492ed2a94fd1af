//! Request streams of the comparison: two patterns at a fixed mean rate, and traces.

use std::collections::BTreeMap;

use seam::Nanos;
use trace::Op;

use super::BLOCK_BYTES;
use crate::random::Random;
use crate::workload::{Pattern, Skew, Stream, vdi};

const GIB: u64 = 1 << 30;

/// A request of a client, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Arrival time.
    pub time: Nanos,
    /// True for a write.
    pub is_write: bool,
    /// First block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Requests with the volume and the cache that they are for.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name of the load.
    pub(crate) name: String,
    /// The requests, by arrival time.
    pub(crate) requests: Vec<Request>,
    /// Blocks of the volume.
    pub(crate) volume_blocks: u64,
    /// Blocks of the cache.
    pub(crate) cache_blocks: u64,
}

impl Load {
    /// Desktops: 85 % writes of 12 KiB, nine in ten to a tenth of 4 GiB, and a cache of 256 MiB; 400 requests per
    /// second.
    pub fn desktops(seed: u64, time: Nanos) -> Load {
        let pattern = Pattern::reads_and_writes(4 * GIB, vdi::READ_BYTES, vdi::WRITE_BYTES, 15);
        let pattern = Pattern { align_bytes: BLOCK_BYTES as u32, ..pattern };
        let skewed = pattern.with_skew(Skew::HotCold { hot_percent: 10, accesses_percent: 90 });
        Load::of_pattern("desktops", &skewed, 400.0, 256 << 20, seed, time)
    }

    /// A database: 70 % reads, 8 KiB, uniform over 2 GiB, and a cache of 256 MiB; 300 requests per second.
    pub fn database(seed: u64, time: Nanos) -> Load {
        let pattern = Pattern { align_bytes: 8192, ..Pattern::random(2 * GIB, 8192, 70) };
        Load::of_pattern("database", &pattern, 300.0, 256 << 20, seed, time)
    }

    fn of_pattern(name: &str, pattern: &Pattern, rate: f64, cache_bytes: u64, seed: u64, time: Nanos) -> Load {
        let (mut stream, mut gaps) = (Stream::new(pattern.clone(), seed, 0), Random::new(seed, 1));
        let (mut requests, mut at) = (Vec::new(), 0.0);
        while at < time.as_secs_f64() {
            let access = stream.draw();
            let arrival = Nanos((at * 1e9) as u64);
            requests.push(Request::new(arrival, access.write, access.at, u64::from(access.len)));
            at -= (1.0 - gaps.fraction()).ln() / rate;
        }
        let volume_blocks = pattern.region_bytes / BLOCK_BYTES;
        Load { name: name.to_owned(), requests, volume_blocks, cache_blocks: cache_bytes / BLOCK_BYTES }
    }

    /// A trace, its disks one after the other. The error names what the trace lacks: arrival times, reads or writes.
    pub fn of_trace(name: &str, trace: &[trace::Request], cache_bytes: u64) -> Result<Load, &'static str> {
        let transfers = || trace.iter().filter(|request| matches!(request.op, Op::Read | Op::Write));
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for request in transfers() {
            let end = (request.at + request.len).div_ceil(BLOCK_BYTES);
            let known = ends.entry(request.device).or_default();
            *known = end.max(*known);
        }
        let mut volume_blocks = 0;
        let starts: BTreeMap<u32, u64> = ends
            .iter()
            .map(|(device, blocks)| {
                volume_blocks += blocks;
                (*device, volume_blocks - blocks)
            })
            .collect();
        let request = |request: &trace::Request| {
            let at = starts[&request.device] * BLOCK_BYTES + request.at;
            Some(Request::new(Nanos(request.time_ns?), request.op == Op::Write, at, request.len))
        };
        let mut requests: Vec<Request> = transfers().map(request).collect::<Option<_>>().ok_or("arrival times")?;
        requests.sort_by_key(|request| request.time);
        let has = |is_write| requests.iter().any(|request| request.is_write == is_write);
        if !has(false) {
            return Err("reads");
        }
        if !has(true) {
            return Err("writes");
        }
        Ok(Load { name: name.to_owned(), requests, volume_blocks, cache_blocks: cache_bytes / BLOCK_BYTES })
    }
}

impl Request {
    /// The blocks that `len` bytes from `at` touch.
    fn new(time: Nanos, is_write: bool, at: u64, len: u64) -> Request {
        let first = at / BLOCK_BYTES;
        Request { time, is_write, first, blocks: (at + len).div_ceil(BLOCK_BYTES) - first }
    }
}
