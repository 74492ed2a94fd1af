//! A consolidation tile: what eight virtual machines on one host ask: mail, OLTP, web, and one machine after the other being deployed.
//!
//! Published of such a tile: 272 GB, 24 to 25 GB of them hot, 24 % reads. How the streams share that is assumed: clients think
//! between requests, as users do, so a faster storage gets more work. How long they think, and how many they are, follows from what
//! was published of disks alone and of what flash gained:
//!
//! - Flash brought 26 % at one tile. A client that thinks for Z and waits for R makes 1 / (Z + R) requests a second. Of disks alone 24 % of them, the
//!   reads, take some 8.5 ms (1/150 s and a little waiting), and writes end in memory: R is 2 ms, with flash next to nothing, and
//!   1.26 = (Z + 2 ms) / Z for Z = 8 ms.
//! - Twenty disks carried two tiles and not three. Sixteen of them have mail, OLTP and web, at 282 accesses a second with a queue 4,500 in all. With 20 clients,
//!   2,500 requests a second if they took no time, two tiles at 70 % of that ask for 3,500 and three for 5,250.

use seam::Nanos;

use super::{Job, Pace, Part, Pattern, Skew};

/// Bytes of a tile.
pub const TILE_BYTES: u64 = 272_000_000_000;
/// Of which are hot.
const HOT_PERCENT: u32 = 9;
/// Of each stream's requests that go to its hot part.
const HOT_ACCESSES_PERCENT: u32 = 97;

/// What a stream of a tile asks: name, part of the tile, kinds of request, clients, pause between two of a client's requests.
type Line = (&'static str, u64, &'static [Part], u32, Nanos);

const fn part(weight: u32, bytes: u32, read_percent: u32, random_percent: u32) -> Part {
    Part { weight, bytes, read_percent, random_percent }
}

/// The streams in the order in which they lie on a tile. Deployment writes a machine from end to end; together 24 % are reads.
pub const STREAMS: [Line; 4] = [
    ("mail", 40, &[part(70, 8 << 10, 26, 100), part(30, 16 << 10, 26, 100)], 10, Nanos::from_millis(8)),
    ("oltp", 25, &[part(100, 8 << 10, 25, 100)], 6, Nanos::from_millis(8)),
    ("web", 20, &[part(60, 4 << 10, 24, 100), part(40, 16 << 10, 24, 100)], 4, Nanos::from_millis(8)),
    ("deploy", 15, &[part(1, 64 << 10, 0, 0)], 1, Nanos::from_millis(10)),
];

/// Where on a tile of `bytes` a stream begins and ends.
pub fn span(stream: usize, bytes: u64) -> std::ops::Range<u64> {
    let upto = |count: usize| bytes / 100 * STREAMS[..count].iter().map(|line| line.1).sum::<u64>();
    let align = |at: u64| at / (1 << 20) * (1 << 20);
    align(upto(stream))..align(upto(stream + 1))
}

/// One stream of a tile in a region, with its share of thinking clients.
pub fn job(stream: usize, start_bytes: u64, region_bytes: u64) -> Job {
    let (name, _, mix, clients, think) = STREAMS[stream];
    let skew = Skew::HotCold { hot_percent: HOT_PERCENT, accesses_percent: HOT_ACCESSES_PERCENT };
    let pattern = Pattern { mix: mix.to_vec(), ..Pattern::random(region_bytes, 4096, 0) };
    Job::eager(name, pattern.with_skew(skew).at(start_bytes), clients).paced(Pace::Think(think))
}

/// A whole tile of `bytes`.
pub fn tile(start_bytes: u64, bytes: u64) -> Vec<Job> {
    let jobs = (0..STREAMS.len()).map(|stream| {
        let span = span(stream, bytes);
        job(stream, start_bytes + span.start, span.end - span.start)
    });
    jobs.collect()
}
