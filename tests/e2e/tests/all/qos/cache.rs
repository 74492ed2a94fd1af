//! The cache: one that streams through it or writes as fast as it can takes nothing from others that they would miss.

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::load::{Job, Log, run};
use e2e::site::Site;

use super::{figure, seconds, shelf};

const STEADY: [&str; 3] = ["one", "two", "three"];
/// The part of each of them that it asks for most.
const HOT_BYTES: u64 = 8 << 20;
/// Of [`super::GIB_OF_A_VOLUME`] that part in percent, as fio wants it: nearly all in the first eight MiB, the rest anywhere.
const ASKS: &str = "rw=randread bs=4k iodepth=4 rate_iops=250 size=400m random_distribution=zoned:92/2:8/98";
/// More than four times the memory, and nothing twice.
const STREAM: &str = "rw=read bs=256k iodepth=8 size=100g";
/// Four times the memory, again and again.
const CIRCLE: &str = "rw=read bs=256k iodepth=8 size=256m";
const WRITES: &str = "rw=randwrite bs=64k iodepth=32 size=1g";

/// What the steady ones had together: part of their reads that were hits, and the slowest hundredth.
#[derive(Clone, Copy, Debug)]
struct Seen {
    hit_ratio: f64,
    p99_us: u64,
}

fn hits_and_reads(daemon: &Daemon) -> (u64, u64) {
    let sum = |name| STEADY.iter().map(|volume| figure(daemon, volume, name)).sum();
    (sum("memory_hits"), sum("reads"))
}

fn steady(site: &Site, daemon: &Daemon, neighbour: Option<&str>, time: u64) -> Seen {
    let mut jobs: Vec<Job> = STEADY.iter().map(|name| Job::new(name, site.uri(name), ASKS, 0, time)).collect();
    jobs.extend(neighbour.map(|options| Job::new("neighbour", site.uri("neighbour"), options, 0, time)));
    let (hits, reads) = hits_and_reads(daemon);
    let logs = run(site.folder.path(), &jobs);
    let (hits, reads) = {
        let now = hits_and_reads(daemon);
        (now.0 - hits, now.1 - reads)
    };
    let all = Log(STEADY.iter().flat_map(|name| logs[*name].0.iter().copied()).collect());
    let mut all = all;
    all.0.sort_by_key(|done| done.at_ms);
    Seen { hit_ratio: hits as f64 / reads as f64, p99_us: all.quantile_us(0, all.end_ms() + 1, 0.99) }
}

/// Three who are steady alone, then beside a neighbour who does `options`.
fn beside(datastore: Option<&str>, options: &str, time: u64) -> [Seen; 2] {
    let volumes: Vec<(&str, &str)> = STEADY.iter().chain(&["neighbour"]).map(|name| (*name, "")).collect();
    let site = shelf("64 MiB", datastore, &volumes);
    let daemon = site.start();
    for name in STEADY {
        let mut client = Client::connect(&site.endpoint(), name).expect("it is served");
        for _ in 0..2 {
            (0..HOT_BYTES >> 20).for_each(|mib| drop(client.read(mib << 20, 1 << 20).expect("it reads")));
        }
    }
    steady(&site, &daemon, None, 2);
    let seen = [None, Some(options)].map(|neighbour| steady(&site, &daemon, neighbour, time));
    daemon.stop();
    seen
}

fn hold(options: &str, time: u64) {
    let both = std::thread::scope(|scope| {
        let without = scope.spawn(|| beside(None, options, time));
        let with = beside(Some("congestion_threshold = \"auto\""), options, time);
        [with, without.join().expect("it is only looked at")]
    });
    for (name, [alone, beside]) in ["with", "without"].iter().zip(both) {
        println!(
            "{name} QoS, beside {options}: hit ratio {:.3}, alone {:.3}; p99 {} us, alone {} us",
            beside.hit_ratio, alone.hit_ratio, beside.p99_us, alone.p99_us
        );
    }
    let [alone, beside] = both[0];
    assert!(beside.hit_ratio >= alone.hit_ratio - 0.02, "hit ratio {alone:?} alone, {beside:?} beside it");
    assert!(beside.p99_us * 2 <= alone.p99_us * 3, "p99 {alone:?} alone, {beside:?} beside it");
}

#[test]
fn who_streams_through_the_cache_takes_nobodys_hot_set() {
    hold(STREAM, seconds(8));
}

#[test]
fn who_reads_four_times_the_cache_again_and_again_takes_nobodys_hot_set() {
    hold(CIRCLE, seconds(8));
}

#[test]
fn who_writes_as_fast_as_it_can_takes_nobodys_hot_set() {
    hold(WRITES, seconds(8));
}
