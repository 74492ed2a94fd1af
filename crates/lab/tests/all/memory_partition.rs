//! Partitioning of memory between volumes. Partitioned by miss-ratio curves, memory serves about as many hits as the
//! best fixed partition, and hardly ever fewer than unpartitioned memory. Quotas hold.

use engine::{ByteOffset, CoreSpec, MemoryQuota, Volume, VolumeSpec, WriteFlags};
use lab::fixture::{Fixture, SameTag, Target, out_of_order_disk};
use lab::random::Random;
use seam::Nanos;
use seam::sim::{SimSeam, StoredContent, WorldSpec};

const BLOCK_BYTES: u64 = 4_096;
const MEMORY_BLOCKS: u64 = 4_096;
/// Requests of both volumes for the warm-up, and as many for the measurement.
const REQUESTS: usize = 200_000;
/// Requests taken from each trace.
const TRACE_REQUESTS: usize = 100_000;
const REPARTITION_INTERVAL: Nanos = Nanos::from_millis(500);

/// Reads: volume, first byte, length.
type Reads = Vec<(usize, u64, u64)>;

/// Read pattern of a volume.
#[derive(Clone, Copy)]
enum Load {
    /// Uniformly random within this many blocks.
    Random(u64),
    /// A loop over this many blocks.
    Loop(u64),
}

/// Draws `count` reads in rounds; each round has the given number of reads of each load.
fn rounds(seed: u64, count: usize, loads: [(u64, Load); 2]) -> Reads {
    let (mut random, mut positions, mut reads) = (Random::new(seed, 0), [0, 0], Vec::new());
    while reads.len() < count {
        for (volume, (times, load)) in loads.into_iter().enumerate() {
            for _ in 0..times {
                let block = match load {
                    Load::Random(blocks) => random.below(blocks),
                    Load::Loop(blocks) => positions[volume] % blocks,
                };
                positions[volume] += 1;
                reads.push((volume, block * BLOCK_BYTES, BLOCK_BYTES));
            }
        }
    }
    reads
}

const TRACES: [&str; 6] = [
    "arc-P2.lis.zst",
    "arc-P3.lis.zst",
    "arc-P6.lis.zst",
    "cloudphysics-vm.vscsi",
    "cloudphysics-w106.u32le.xz",
    "tpcc-small.mqsim",
];

struct TwoVolumes {
    fixture: Fixture,
    volumes: [Volume<SimSeam>; 2],
}

fn two_volumes(
    blocks: u64,
    repartition_interval: Nanos,
    edit: impl Fn(usize, &mut VolumeSpec),
    sizes: [u64; 2],
) -> TwoVolumes {
    let world = WorldSpec {
        blocks: blocks as usize,
        content: StoredContent::MetadataOnly,
        time_max: Nanos::from_secs(1 << 30),
        ..WorldSpec::new(1)
    };
    let fixture = Fixture::new(world, CoreSpec { readahead_max_bytes: 0, repartition_interval, ..CoreSpec::default() });
    let volumes = [0, 1].map(|number| {
        let name = ["one", "other"][number];
        fixture.add_disk(name, out_of_order_disk(sizes[number]));
        fixture.attach(name, |spec| edit(number, spec)).expect("volume names are unique")
    });
    TwoVolumes { fixture, volumes }
}

impl TwoVolumes {
    fn run_reads(&self, reads: &[(usize, u64, u64)]) {
        for (volume, at, len) in reads {
            let target = Target::Volume(self.volumes[*volume].clone());
            self.fixture
                .world
                .block_on(target.read(&self.fixture.seam, *at, *len as usize))
                .expect("a disk without faults does not fail");
        }
    }

    fn hits(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.stats().memory_hits).sum()
    }

    fn memory_blocks(&self) -> [u64; 2] {
        self.volumes.each_ref().map(|volume| volume.stats().memory_bytes / BLOCK_BYTES)
    }
}

fn quota(min: u64, max: Option<u64>) -> MemoryQuota {
    MemoryQuota { min_bytes: min * BLOCK_BYTES, max_bytes: max.map(|blocks| blocks * BLOCK_BYTES) }
}

/// Hits of both volumes in the second half of the reads.
fn hits(blocks: u64, reads: &Reads, repartition_interval: Nanos, quotas: [MemoryQuota; 2]) -> u64 {
    let end = |volume| reads.iter().filter(|read| read.0 == volume).map(|read| read.1 + read.2).max().unwrap_or(0);
    let sizes = [end(0), end(1)].map(|bytes| bytes.next_multiple_of(1 << 20));
    let pair = two_volumes(blocks, repartition_interval, |number, spec| spec.memory = quotas[number], sizes);
    let (warm_up, counted) = reads.split_at(reads.len() / 2);
    pair.run_reads(warm_up);
    let before = pair.hits();
    pair.run_reads(counted);
    pair.hits() - before
}

/// Hits with partitioned memory and with unpartitioned memory.
fn hits_with_and_without(name: &str, blocks: u64, reads: &Reads) -> (u64, u64) {
    let [with, without] =
        [REPARTITION_INTERVAL, Nanos::ZERO].map(|interval| hits(blocks, reads, interval, Default::default()));
    let ratio = |hits: u64| hits as f64 / (reads.len() / 2) as f64;
    println!("{name}: {:.4} of reads hit, {:.4} without a partition", ratio(with), ratio(without));
    (with, without)
}

#[test]
fn partition_by_curves_matches_best_fixed_and_beats_none() {
    let reads = rounds(1, 2 * REQUESTS, [(1, Load::Random(3_000)), (4, Load::Random(60_000))]);
    let best = (1..8).map(|eighths| {
        let first_blocks = MEMORY_BLOCKS * eighths / 8;
        let quotas = [quota(0, Some(first_blocks)), quota(0, Some(MEMORY_BLOCKS - first_blocks))];
        hits(MEMORY_BLOCKS, &reads, Nanos::ZERO, quotas)
    });
    let best = best.max().expect("seven partitions were measured");
    let (with, without) = hits_with_and_without("a small hot set and a flat load", MEMORY_BLOCKS, &reads);
    println!("best fixed partition: {best} hits, partitioned by curves: {with}");
    assert!(with * 100 >= best * 98, "{with} hits, the best fixed partition has {best}");
    assert!(with * 100 >= without * 105, "{with} hits, {without} without a partition");
}

#[test]
fn partitioning_without_benefit_costs_few_hits() {
    let with_roles_exchanged = |loads: [(u64, Load); 2]| {
        let mut reads = rounds(2, REQUESTS, loads);
        reads.extend(rounds(3, REQUESTS, [loads[1], loads[0]]));
        reads
    };
    let (hot, flat) = ((1, Load::Random(3_000)), (4, Load::Random(60_000)));
    let equal_rates = |first, second| rounds(2, 2 * REQUESTS, [(1, first), (1, second)]);
    let pairs = [
        ("a hot set and a scan", equal_rates(Load::Random(3_000), Load::Loop(60_000))),
        ("two alike", equal_rates(Load::Random(6_000), Load::Random(6_000))),
        ("a loop and a hot set, which do not fit together", equal_rates(Load::Loop(3_000), Load::Random(3_000))),
        ("two loops, of which one fits", equal_rates(Load::Loop(3_000), Load::Loop(6_000))),
        ("two that exchange roles", with_roles_exchanged([hot, flat])),
    ];
    for (name, reads) in &pairs {
        let (with, without) = hits_with_and_without(name, MEMORY_BLOCKS, reads);
        assert!(with + REQUESTS as u64 / 100 >= without, "{name}: {with} hits, {without} without a partition");
    }
}

#[test]
fn partition_by_curves_raises_hits_of_trace_pairs() {
    let Some(directory) = std::env::var_os("HOTSET_TRACES").map(std::path::PathBuf::from) else {
        println!("not measured: HOTSET_TRACES is not set to the directory of the traces");
        return;
    };
    let requests = |name: &str| -> Vec<(u64, u64)> {
        #[expect(clippy::disallowed_types, reason = "the test reads its input")]
        let file = std::fs::File::open(directory.join(name)).expect("the directory contains every trace");
        let requests = trace::open(name, Box::new(file), None).expect("the trace format is known");
        let transfers = requests.map(|request| request.expect("the trace is intact")).filter(|request| request.len > 0);
        // Several devices are concatenated; offsets past the simulated disk's size wrap around.
        let wrapped = |at: u64, device: u32| (at + u64::from(device) * (1 << 34)) % (1 << 38);
        transfers.take(TRACE_REQUESTS).map(|request| (wrapped(request.at, request.device), request.len)).collect()
    };
    let traces: Vec<_> = TRACES.iter().map(|name| (name, requests(name))).collect();
    let mut gains = Vec::new();
    for (index, (name, requests)) in traces.iter().enumerate() {
        for (other_name, other) in &traces[index + 1..] {
            let interleaved =
                requests.iter().zip(other).flat_map(|(left, right)| [(0, left.0, left.1), (1, right.0, right.1)]);
            let reads: Reads = interleaved.collect();
            for blocks in [2_048, 16_384] {
                let (with, without) =
                    hits_with_and_without(&format!("{name} and {other_name}, {blocks} blocks"), blocks, &reads);
                gains.push((with as f64 - without as f64) / (reads.len() / 2) as f64);
            }
        }
    }
    let (mean, worst) = (gains.iter().sum::<f64>() / gains.len() as f64, gains.iter().copied().fold(1.0, f64::min));
    println!("{} rows: {mean:+.4} on average, {worst:+.4} at worst", gains.len());
    assert!(mean >= 0.0 && worst >= -0.01, "{mean:+.4} on average, {worst:+.4} at worst");
}

#[test]
fn memory_minimum_and_maximum_override_the_curves() {
    let quotas = [quota(0, Some(500)), quota(1_000, None)];
    let pair =
        two_volumes(MEMORY_BLOCKS, REPARTITION_INTERVAL, |number, spec| spec.memory = quotas[number], [1 << 28; 2]);
    // The curves alone would give the second volume little and the first one 3,000 blocks.
    let reads = rounds(1, REQUESTS, [(1, Load::Random(3_000)), (4, Load::Random(60_000))]);
    for chunk in reads.chunks(1_000) {
        pair.run_reads(chunk);
        assert!(pair.memory_blocks()[0] <= 500, "{:?}", pair.memory_blocks());
    }
    assert!(pair.memory_blocks()[1] >= 1_000, "{:?}", pair.memory_blocks());
    pair.volumes[0].set_memory_quota(MemoryQuota::default());
    for chunk in reads.chunks(1_000) {
        pair.run_reads(chunk);
        assert!(pair.memory_blocks()[1] >= 1_000, "{:?}", pair.memory_blocks());
    }
    assert!(pair.memory_blocks()[0] > 2_000, "{:?}", pair.memory_blocks());
    pair.volumes[0].set_memory_quota(quota(0, Some(300)));
    pair.run_reads(&reads[..20_000]);
    assert!(pair.memory_blocks()[0] <= 300, "{:?}", pair.memory_blocks());
}

#[test]
fn dirty_data_survives_partitioning_and_a_maximum_throttles_writers() {
    let quotas = [quota(0, Some(256)), quota(4_000, None)];
    let pair =
        two_volumes(MEMORY_BLOCKS, REPARTITION_INTERVAL, |number, spec| spec.memory = quotas[number], [1 << 28; 2]);
    let volume = &pair.volumes[0];
    let mut random = Random::new(1, 0);
    for round in 0..20_000 {
        let at = random.below(60_000) * BLOCK_BYTES;
        let mut tag = SameTag(round);
        let written = volume.write(ByteOffset(at), BLOCK_BYTES as usize, WriteFlags::default(), &mut tag);
        pair.fixture.world.block_on(written).expect("a disk without faults does not fail");
        let stats = volume.stats();
        assert!(stats.memory_bytes <= 256 * BLOCK_BYTES, "{} blocks of 256", stats.memory_bytes / BLOCK_BYTES);
    }
    pair.fixture.world.block_on(volume.flush()).expect("a disk without faults does not fail");
    assert_eq!(volume.stats().dirty_bytes, 0);
}
