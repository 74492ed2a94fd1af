//! A consolidation tile: the requests of eight virtual machines on one host for mail, OLTP, web, and the deployment of
//! one machine after another.
//!
//! Published figures of such a tile: 272 GB, of which 24 to 25 GB are hot; 24 % reads. The distribution over the
//! streams is an assumption: clients think between requests, as users do, so faster storage gets more work. The think
//! time and the number of clients follow from the published results of disks alone and of the gain by flash:
//!
//! - Flash gained 26 % with one tile. A client that thinks for Z and waits for R makes 1 / (Z + R) requests per second.
//!   With disks alone a request of the modelled tile waits 1.4 ms on average, because writes end in memory; with flash
//!   it waits about 0.25 ms. 1.26 = (Z + 1.4 ms) / (Z + 0.25 ms) gives Z = 4.2 ms.
//! - Twenty disks carried two tiles and not three, eleven disks none. With ten clients per tile, the slowest stream
//!   gets 72 % of what it would do at zero latency with two tiles on twenty disks, 55 % with three, and 61 % with one
//!   tile on eleven disks. So a tile counts as carried from 70 % on.

use seam::Nanos;

use super::{AccessKind, Job, Pace, Pattern, Skew};

/// Size of a tile in bytes.
pub const TILE_BYTES: u64 = 272_000_000_000;
/// Size of a stream's hot region in percent of its region.
const HOT_PERCENT: u32 = 9;
/// Percentage of each stream's requests to its hot region.
const HOT_ACCESSES_PERCENT: u32 = 97;

/// Think time of the clients of virtual machines.
const THINK: Nanos = Nanos::from_micros(4_200);

/// A stream of a tile: name, size in percent of the tile, kinds of access, clients, think time between two requests of
/// a client.
type StreamSpec = (&'static str, u64, &'static [AccessKind], u32, Nanos);

const fn access_kind(weight: u32, bytes: u32, read_percent: u32, random_percent: u32) -> AccessKind {
    AccessKind { weight, bytes, read_percent, random_percent }
}

/// The streams in the order of their regions on a tile. Deployment writes a machine from end to end; 24 % of all
/// requests are reads.
pub const STREAMS: [StreamSpec; 4] = [
    ("mail", 40, &[access_kind(70, 8 << 10, 26, 100), access_kind(30, 16 << 10, 26, 100)], 5, THINK),
    ("oltp", 25, &[access_kind(100, 8 << 10, 25, 100)], 3, THINK),
    ("web", 20, &[access_kind(60, 4 << 10, 24, 100), access_kind(40, 16 << 10, 24, 100)], 2, THINK),
    ("deploy", 15, &[access_kind(1, 64 << 10, 0, 0)], 1, Nanos::from_millis(10)),
];

/// Region of a stream on a tile of `bytes`.
pub fn span(stream: usize, bytes: u64) -> std::ops::Range<u64> {
    let end_of = |count: usize| bytes / 100 * STREAMS[..count].iter().map(|(_, percent, ..)| percent).sum::<u64>();
    let align = |at: u64| at / (1 << 20) * (1 << 20);
    align(end_of(stream))..align(end_of(stream + 1))
}

/// The job of one stream of a tile in a region, with its thinking clients.
pub fn job(stream: usize, start_bytes: u64, region_bytes: u64) -> Job {
    let (name, _, mix, clients, think) = STREAMS[stream];
    let skew = Skew::HotCold { hot_percent: HOT_PERCENT, accesses_percent: HOT_ACCESSES_PERCENT };
    let pattern = Pattern { mix: mix.to_vec(), ..Pattern::random(region_bytes, 4096, 0) };
    Job::closed_loop(name, pattern.with_skew(skew).at(start_bytes), clients).paced(Pace::Think(think))
}

/// The jobs of a whole tile of `bytes`.
pub fn tile(start_bytes: u64, bytes: u64) -> Vec<Job> {
    let jobs = (0..STREAMS.len()).map(|stream| {
        let span = span(stream, bytes);
        job(stream, start_bytes + span.start, span.end - span.start)
    });
    jobs.collect()
}
