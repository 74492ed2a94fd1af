//! Named workloads of published benchmarks and typical users, scaled to the size of a volume.

use seam::Nanos;

use super::vdi::Desktops;
use super::{AccessKind, Job, Pattern, Skew, Spec, Step, tile};

/// A named workload.
pub struct NamedWorkload {
    /// The name.
    pub name: &'static str,
    /// One-line description.
    pub title: &'static str,
    /// Builds the steps for a volume of the given bytes.
    pub build: fn(u64) -> Vec<Step>,
}

/// All workloads, in the order of listings.
pub const ALL: &[NamedWorkload] = &[
    NamedWorkload {
        name: "database",
        title: "IOMeter Database: 8 KiB, 67 % reads, all random",
        build: |size| iometer(size, &[(100, 8 << 10)], 67, 100),
    },
    NamedWorkload {
        name: "file-server",
        title: "IOMeter File server: 512 bytes to 64 KiB, 80 % reads, all random",
        build: |size| iometer(size, FILE_SERVER, 80, 100),
    },
    NamedWorkload {
        name: "web-server",
        title: "IOMeter Web server: 512 bytes to 512 KiB, reads, all random",
        build: |size| iometer(size, WEB_SERVER, 100, 100),
    },
    NamedWorkload {
        name: "workstation",
        title: "IOMeter Workstation: 8 KiB, 80 % reads, 80 % random",
        build: |size| iometer(size, &[(100, 8 << 10)], 80, 80),
    },
    NamedWorkload {
        name: "exchange",
        title: "Exchange: 4 KiB, 67 % reads, all random",
        build: |size| iometer(size, &[(100, 4 << 10)], 67, 100),
    },
    NamedWorkload {
        name: "streaming",
        title: "Streaming: 64 KiB, 98 % reads, one after the other",
        build: |size| iometer(size, &[(100, 64 << 10)], 98, 0),
    },
    NamedWorkload {
        name: "vdi-steady",
        title: "linked-clone desktops at work: 1.34 reads of 14 KiB and 7.58 writes of 12 KiB per second each",
        build: |size| single_step(Desktops::fitted(size).steady(1.0, Nanos::ZERO)),
    },
    NamedWorkload {
        name: "vdi-boot-storm",
        title: "the same desktops, all starting: 80 requests per second each, nine in ten of them reads",
        build: |size| single_step(Desktops::fitted(size).boot_storm()),
    },
    NamedWorkload {
        name: "vdi-logon-storm",
        title: "the same desktops, one logging on every 1.7 s, each at 2.16 times its rate",
        build: |size| single_step(Desktops::fitted(size).steady(2.16, Nanos::from_millis(1_667))),
    },
    NamedWorkload {
        name: "consolidation",
        title: "a tile of servers: mail, OLTP, web, deployment; 24 % reads",
        build: |size| single_step(tile::tile(0, size)),
    },
    NamedWorkload {
        name: "crystaldiskmark",
        title: "CrystalDiskMark: 1 MiB in order and 4 KiB at random, reads and then writes, 5 s each",
        build: crystaldiskmark,
    },
    NamedWorkload {
        name: "atto",
        title: "ATTO: 512 bytes to 8 MiB in order, writes and reads, 4 at a time, 2 s each",
        build: atto,
    },
    NamedWorkload {
        name: "hot-cold",
        title: "8 KiB, 70 % reads, nine in ten to a tenth of the volume that moves on",
        build: hot_cold,
    },
];

const FILE_SERVER: &[(u32, u32)] =
    &[(10, 512), (5, 1 << 10), (5, 2 << 10), (60, 4 << 10), (2, 8 << 10), (4, 16 << 10), (4, 32 << 10), (10, 64 << 10)];
const WEB_SERVER: &[(u32, u32)] = &[
    (22, 512),
    (15, 1 << 10),
    (8, 2 << 10),
    (23, 4 << 10),
    (15, 8 << 10),
    (2, 16 << 10),
    (6, 32 << 10),
    (7, 64 << 10),
    (1, 128 << 10),
    (1, 512 << 10),
];
/// Requests in flight where the pattern does not specify them.
const DEPTH: u32 = 16;
/// Size of the test file of disk benchmarks.
const TEST_FILE_BYTES: u64 = 1 << 30;

/// The workload called `name` for a volume of `size_bytes`.
pub fn find(name: &str, size_bytes: u64) -> Option<Spec> {
    let named = ALL.iter().find(|named| named.name == name)?;
    Some(Spec { name: named.name.to_owned(), steps: (named.build)(size_bytes) })
}

fn single_step(jobs: Vec<Job>) -> Vec<Step> {
    Spec::single("all", jobs).steps
}

fn iometer(size_bytes: u64, sizes: &[(u32, u32)], read_percent: u32, random_percent: u32) -> Vec<Step> {
    let kind = |&(weight, bytes): &(u32, u32)| AccessKind { weight, bytes, read_percent, random_percent };
    let mix: Vec<AccessKind> = sizes.iter().map(kind).collect();
    let align_bytes = mix.iter().map(|kind| kind.bytes).min().unwrap_or(512).min(4096);
    let pattern = Pattern { mix, align_bytes, ..Pattern::random(size_bytes, 4096, 0) };
    single_step(vec![Job::closed_loop("all", pattern, DEPTH)])
}

fn hot_cold(size_bytes: u64) -> Vec<Step> {
    let skew = Skew::HotCold { hot_percent: 10, accesses_percent: 90 };
    let pattern = Pattern::random(size_bytes, 8 << 10, 70).with_skew(skew);
    let drift_bytes = (size_bytes / 10_000).next_multiple_of(4096);
    single_step(vec![Job::closed_loop("all", Pattern { drift_bytes, ..pattern }, DEPTH)])
}

/// A step of `seconds` with one job.
fn timed_step(name: String, seconds: u64, pattern: Pattern, depth: u32) -> Step {
    Step { jobs: vec![Job::closed_loop(&name, pattern, depth)], name, time: Some(Nanos::from_secs(seconds)) }
}

fn crystaldiskmark(size_bytes: u64) -> Vec<Step> {
    let file_bytes = size_bytes.min(TEST_FILE_BYTES);
    let tests = [
        ("SEQ1M Q8T1", 1 << 20, 0, 8),
        ("SEQ1M Q1T1", 1 << 20, 0, 1),
        ("RND4K Q32T1", 4096, 100, 32),
        ("RND4K Q1T1", 4096, 100, 1),
    ];
    let steps = [("read", 100), ("write", 0)].into_iter().flat_map(|(direction, read_percent)| {
        tests.map(|(name, bytes, random_percent, depth)| {
            let mut pattern = Pattern::random(file_bytes, bytes, read_percent);
            pattern.mix[0].random_percent = random_percent;
            timed_step(format!("{name} {direction}"), 5, pattern, depth)
        })
    });
    steps.collect()
}

fn atto(size_bytes: u64) -> Vec<Step> {
    let file_bytes = size_bytes.min(256 << 20);
    let sizes = (9..=23).map(|power| 1_u32 << power).filter(|bytes| u64::from(*bytes) <= file_bytes);
    let steps = sizes.flat_map(|bytes| {
        [("write", 0), ("read", 100)].map(|(direction, read_percent)| {
            let pattern = Pattern::random(file_bytes, bytes, read_percent).with_skew(Skew::Sequential);
            let name = if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes >> 10) };
            timed_step(format!("{name} {direction}"), 2, pattern, 4)
        })
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Stream;

    #[test]
    fn named_workloads_fit_small_and_large_volumes() {
        for size in [64 << 20, 1 << 30, 500 << 30] {
            for named in ALL {
                let spec = find(named.name, size).expect("a listed workload can be found");
                spec.check(size, 512).unwrap_or_else(|error| panic!("{} on {size} bytes: {error}", named.name));
                assert!(!spec.steps.is_empty() && spec.steps.iter().all(|step| !step.jobs.is_empty()));
            }
        }
        assert!(find("nothing", 1 << 30).is_none());
    }

    /// Read fraction and mean request size of a workload's first job.
    fn drawn_mix(name: &str) -> (f64, f64) {
        let spec = find(name, 10 << 30).expect("a listed workload can be found");
        let (mut reads, mut bytes) = (0.0, 0.0);
        let job = &spec.steps[0].jobs[0];
        let mut stream = Stream::new(job.pattern.clone(), 1, 0);
        for _ in 0..20_000 {
            let access = stream.draw();
            reads += f64::from(u8::from(!access.write)) / 20_000.0;
            bytes += f64::from(access.len) / 20_000.0;
        }
        (reads, bytes)
    }

    #[test]
    fn named_patterns_have_the_published_mix_and_sizes() {
        for (name, reads, bytes) in [
            ("database", 0.67, 8_192.0),
            ("file-server", 0.8, 11_418.0),
            ("web-server", 1.0, 15_626.0),
            ("workstation", 0.8, 8_192.0),
            ("exchange", 0.67, 4_096.0),
            ("streaming", 0.98, 65_536.0),
            ("hot-cold", 0.7, 8_192.0),
        ] {
            let (drawn_reads, drawn_bytes) = drawn_mix(name);
            assert!((drawn_reads - reads).abs() < 0.015, "{name}: {drawn_reads} reads");
            assert!((drawn_bytes / bytes - 1.0).abs() < 0.08, "{name}: {drawn_bytes} bytes a request");
        }
    }

    #[test]
    fn tile_reads_24_percent() {
        let (mut reads, mut accesses) = (0.0, 0.0);
        for job in tile::tile(0, 10 << 30) {
            let crate::workload::Pace::Think(think) = job.pace else { panic!("a tile's clients think") };
            let rate = f64::from(job.depth) / think.as_secs_f64();
            let weights: u32 = job.pattern.mix.iter().map(|kind| kind.weight).sum();
            for kind in &job.pattern.mix {
                let rate = rate * f64::from(kind.weight) / f64::from(weights);
                accesses += rate;
                reads += rate * f64::from(kind.read_percent) / 100.0;
            }
        }
        assert!((reads / accesses - 0.24).abs() < 0.01, "{} of a tile's requests are reads", reads / accesses);
    }
}
