//! Memory between volumes: divided by their curves it serves about as much as the best division that somebody could have set, hardly ever less than
//! without one, and what a volume was promised or denied holds.

use engine::{CoreSpec, MemoryShare, Volume, VolumeSpec, WriteFlags};
use lab::random::Random;
use lab::rig::{Rig, Same, Target, lively_disk};
use seam::Nanos;
use seam::sim::{Content, SimSeam, WorldSpec};

const BLOCK: u64 = 4_096;
/// Blocks of memory.
const MEMORY: u64 = 4_096;
/// Requests of both volumes that warm up, and as many that count.
const REQUESTS: usize = 200_000;
/// Requests of each trace.
const TRACED: usize = 100_000;
const DIVIDE_EVERY: Nanos = Nanos::from_millis(500);

/// Reads: of which volume, and what.
type Reads = Vec<(usize, u64, u64)>;

/// What a volume is read for.
#[derive(Clone, Copy)]
enum Load {
    /// At random within so many blocks.
    Random(u64),
    /// So many blocks one after the other, again and again.
    Loop(u64),
}

/// So many rounds; in each, of each load so many blocks.
fn rounds(seed: u64, count: usize, loads: [(u64, Load); 2]) -> Reads {
    let (mut random, mut at, mut reads) = (Random::new(seed, 0), [0, 0], Vec::new());
    while reads.len() < count {
        for (volume, (times, load)) in loads.into_iter().enumerate() {
            for _ in 0..times {
                let block = match load {
                    Load::Random(of) => random.below(of),
                    Load::Loop(of) => at[volume] % of,
                };
                at[volume] += 1;
                reads.push((volume, block * BLOCK, BLOCK));
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

struct Life {
    rig: Rig,
    volumes: [Volume<SimSeam>; 2],
}

fn life(blocks: u64, divide_every: Nanos, edit: impl Fn(usize, &mut VolumeSpec), sizes: [u64; 2]) -> Life {
    let world = WorldSpec {
        blocks: blocks as usize,
        keep: Content::None,
        time_max: Nanos::from_secs(1 << 30),
        ..WorldSpec::new(1)
    };
    let rig = Rig::new(world, CoreSpec { readahead_max_bytes: 0, divide_every, ..CoreSpec::default() });
    let volumes = [0, 1].map(|number| {
        let name = ["one", "other"][number];
        rig.add_disk(name, lively_disk(sizes[number]));
        rig.attach(name, |spec| edit(number, spec)).expect("names differ")
    });
    Life { rig, volumes }
}

impl Life {
    fn play(&self, reads: &[(usize, u64, u64)]) {
        for (volume, at, len) in reads {
            let target = Target::Volume(self.volumes[*volume].clone());
            self.rig.world.block_on(target.read(&self.rig.seam, *at, *len as usize)).expect("a disk without faults");
        }
    }

    fn hits(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.stats().memory_hits).sum()
    }

    fn held(&self) -> [u64; 2] {
        self.volumes.each_ref().map(|volume| volume.stats().memory_bytes / BLOCK)
    }
}

fn share(min: u64, max: Option<u64>) -> MemoryShare {
    MemoryShare { min_bytes: min * BLOCK, max_bytes: max.map(|blocks| blocks * BLOCK) }
}

/// Hits of both in the second half.
fn hits(blocks: u64, reads: &Reads, divide_every: Nanos, shares: [MemoryShare; 2]) -> u64 {
    let end = |volume| reads.iter().filter(|read| read.0 == volume).map(|read| read.1 + read.2).max().unwrap_or(0);
    let sizes = [end(0), end(1)].map(|bytes| bytes.next_multiple_of(1 << 20));
    let life = life(blocks, divide_every, |number, spec| spec.memory = shares[number], sizes);
    let (warm_up, counted) = reads.split_at(reads.len() / 2);
    life.play(warm_up);
    let before = life.hits();
    life.play(counted);
    life.hits() - before
}

/// With the division, and without.
fn both(name: &str, blocks: u64, reads: &Reads) -> (u64, u64) {
    let [with, without] = [DIVIDE_EVERY, Nanos::ZERO].map(|every| hits(blocks, reads, every, Default::default()));
    let ratio = |hits: u64| hits as f64 / (reads.len() / 2) as f64;
    println!("{name}: {:.4} of reads hit, {:.4} without a division", ratio(with), ratio(without));
    (with, without)
}

#[test]
fn memory_divided_by_curves_serves_as_much_as_the_best_fixed_division_and_more_than_none() {
    let reads = rounds(1, 2 * REQUESTS, [(1, Load::Random(3_000)), (4, Load::Random(60_000))]);
    let best = (1..8).map(|part| {
        let one = MEMORY * part / 8;
        let shares = [share(0, Some(one)), share(0, Some(MEMORY - one))];
        hits(MEMORY, &reads, Nanos::ZERO, shares)
    });
    let best = best.max().expect("seven were tried");
    let (with, without) = both("a small hot set and a flat load", MEMORY, &reads);
    println!("best fixed division: {best} hits, divided by curves: {with}");
    assert!(with * 100 >= best * 98, "{with} hits, the best fixed division has {best}");
    assert!(with * 100 >= without * 105, "{with} hits, {without} without a division");
}

#[test]
fn a_division_that_brings_nothing_costs_nothing() {
    let swapped = |loads: [(u64, Load); 2]| {
        let mut reads = rounds(2, REQUESTS, loads);
        reads.extend(rounds(3, REQUESTS, [loads[1], loads[0]]));
        reads
    };
    let (hot, flat) = ((1, Load::Random(3_000)), (4, Load::Random(60_000)));
    let two = |one, other| rounds(2, 2 * REQUESTS, [(1, one), (1, other)]);
    let pairs = [
        ("a hot set and a scan", two(Load::Random(3_000), Load::Loop(60_000))),
        ("two alike", two(Load::Random(6_000), Load::Random(6_000))),
        ("a loop and a hot set, which do not fit together", two(Load::Loop(3_000), Load::Random(3_000))),
        ("two loops, of which one fits", two(Load::Loop(3_000), Load::Loop(6_000))),
        ("two that take each other's place", swapped([hot, flat])),
    ];
    for (name, reads) in &pairs {
        let (with, without) = both(name, MEMORY, reads);
        assert!(with + REQUESTS as u64 / 100 >= without, "{name}: {with} hits, {without} without a division");
    }
}

#[test]
fn traces_that_share_memory_are_served_better_for_its_division_and_hardly_ever_worse() {
    let Some(folder) = std::env::var_os("HOTSET_TRACES").map(std::path::PathBuf::from) else {
        println!("not measured: HOTSET_TRACES does not say where the traces are");
        return;
    };
    let requests = |name: &str| -> Vec<(u64, u64)> {
        #[expect(clippy::disallowed_types, reason = "a test reads its input")]
        let file = std::fs::File::open(folder.join(name)).expect("one of the traces");
        let all = trace::open(name, Box::new(file), None).expect("a known format");
        let one = all.map(|request| request.expect("a sound trace")).filter(|request| request.len > 0);
        // Several devices lie one behind the other; what reaches too far for a simulated disk is folded.
        let at = |at: u64, device: u32| (at + u64::from(device) * (1 << 34)) % (1 << 38);
        one.take(TRACED).map(|request| (at(request.at, request.device), request.len)).collect()
    };
    let traces: Vec<_> = TRACES.iter().map(|name| (name, requests(name))).collect();
    let mut gains = Vec::new();
    for (at, (name, one)) in traces.iter().enumerate() {
        for (other_name, other) in &traces[at + 1..] {
            let both_of = one.iter().zip(other).flat_map(|(one, other)| [(0, one.0, one.1), (1, other.0, other.1)]);
            let reads: Reads = both_of.collect();
            for blocks in [2_048, 16_384] {
                let (with, without) = both(&format!("{name} and {other_name}, {blocks} blocks"), blocks, &reads);
                gains.push((with as f64 - without as f64) / (reads.len() / 2) as f64);
            }
        }
    }
    let (mean, worst) = (gains.iter().sum::<f64>() / gains.len() as f64, gains.iter().copied().fold(1.0, f64::min));
    println!("{} rows: {mean:+.4} on average, {worst:+.4} at worst", gains.len());
    assert!(mean >= 0.0 && worst >= -0.01, "{mean:+.4} on average, {worst:+.4} at worst");
}

#[test]
fn a_minimum_and_a_maximum_of_memory_hold_whatever_the_curves_say() {
    let shares = [share(0, Some(500)), share(1_000, None)];
    let life = life(MEMORY, DIVIDE_EVERY, |number, spec| spec.memory = shares[number], [1 << 28; 2]);
    // The curves would give the second one little and the first one 3,000.
    let reads = rounds(1, REQUESTS, [(1, Load::Random(3_000)), (4, Load::Random(60_000))]);
    for some in reads.chunks(1_000) {
        life.play(some);
        assert!(life.held()[0] <= 500, "{:?}", life.held());
    }
    assert!(life.held()[1] >= 1_000, "{:?}", life.held());
    life.volumes[0].set_memory_share(MemoryShare::default());
    for some in reads.chunks(1_000) {
        life.play(some);
        assert!(life.held()[1] >= 1_000, "{:?}", life.held());
    }
    assert!(life.held()[0] > 2_000, "{:?}", life.held());
    life.volumes[0].set_memory_share(share(0, Some(300)));
    life.play(&reads[..20_000]);
    assert!(life.held()[0] <= 300, "{:?}", life.held());
}

#[test]
fn what_is_dirty_stays_whatever_the_division_wants_and_a_maximum_slows_writers_down() {
    let shares = [share(0, Some(256)), share(4_000, None)];
    let life = life(MEMORY, DIVIDE_EVERY, |number, spec| spec.memory = shares[number], [1 << 28; 2]);
    let volume = &life.volumes[0];
    let mut random = Random::new(1, 0);
    for round in 0..20_000 {
        let at = random.below(60_000) * BLOCK;
        let mut tag = Same(round);
        let written = volume.write(at, BLOCK as usize, WriteFlags::default(), &mut tag);
        life.rig.world.block_on(written).expect("a disk without faults");
        let stats = volume.stats();
        assert!(stats.memory_bytes <= 256 * BLOCK, "{} blocks of 256", stats.memory_bytes / BLOCK);
    }
    life.rig.world.block_on(volume.flush()).expect("a disk without faults");
    assert_eq!(volume.stats().dirty_bytes, 0);
}
