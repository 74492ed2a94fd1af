//! The bound on memory, compared with the kernel's count of resident memory. Code is not counted: that of a build for
//! tests is several times as long as that of a release.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::client::{Client, Endpoint, FUA, Op};
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::sizes::size;

const MIB: u64 = 1 << 20;
/// `[memory] size`.
const CONFIGURED_MIB: u64 = 64;
/// Allowance for stacks, connections, the index and the ring.
const OVERHEAD_MIB: u64 = 32;
/// Size of the volume in multiples of the memory.
const VOLUME_TO_MEMORY_RATIO: u64 = 10;
const CLIENTS: u64 = 64;
/// Largest number of requests that a client keeps in flight.
const DEPTH: usize = 8;
/// Longest request in bytes.
const LEN_MAX: u64 = 32 << 20;
/// Requests longer than this have the connection to themselves. Shorter ones in flight together fit a socket's buffer.
const EXCLUSIVE_BYTES: u64 = 16 << 10;
/// Longest read that the daemon answers with a simple reply.
const READ_MAX: u64 = 4 << 20;
/// Requests after which a client reconnects.
const REQUESTS_PER_CONNECTION: u64 = 20_000;

/// Number of requests by default.
const DEFAULT_REQUESTS: u64 = 40_000;
/// Bound on the daemon's resident memory.
const BOUND_KIB: u64 = (CONFIGURED_MIB + OVERHEAD_MIB) * 1024;

/// Total number of requests: `HOTSET_MEMORY_REQUESTS`, or [`DEFAULT_REQUESTS`]. An hour at 2,000 a second is 7,200,000.
fn requests() -> u64 {
    size("HOTSET_MEMORY_REQUESTS", DEFAULT_REQUESTS)
}

/// A line of the daemon's `/proc/PID/status`, in KiB.
fn status_kib(daemon: &Daemon, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("the daemon runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel reports the value");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// Small requests most of the time, as disks see them; sometimes a large one, once in ten thousand a huge one.
fn draw_len(random: &mut Random) -> u64 {
    let sectors = match random.below(10_000) {
        0 => 1 + random.below(LEN_MAX / 512),
        1..100 => 1 + random.below(2048),
        100..3000 => 1 + random.below(64),
        _ => 8,
    };
    512 * sectors
}

/// One client: random requests at random offsets until `remaining` is used up. Returns the number of bytes moved.
fn run_client(endpoint: &Endpoint, volume_bytes: u64, remaining: &AtomicU64, data: &[u8], seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let take_request =
        || remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| remaining.checked_sub(1)).is_ok();
    let (mut moved_bytes, mut has_budget) = (0, true);
    while has_budget {
        let mut client = Client::connect(endpoint, "v").expect("the daemon accepts 64 connections");
        let mut in_flight = BTreeMap::new();
        let depth = 1 + random.below(DEPTH as u64) as usize;
        for _ in 0..REQUESTS_PER_CONNECTION {
            has_budget = take_request();
            if !has_budget {
                break;
            }
            let len = draw_len(&mut random);
            // A client that sends large requests while large replies are in flight would deadlock with the server.
            let is_exclusive = len > EXCLUSIVE_BYTES;
            while is_exclusive && !in_flight.is_empty() {
                moved_bytes += receive(&mut client, &mut in_flight);
            }
            let offset = 512 * random.below((volume_bytes - len) / 512);
            let offset = if random.chance(80) { offset / 4096 * 4096 } else { offset };
            let flags = if random.chance(1) { FUA } else { 0 };
            let (op, flags, offset, len) = match random.below(1000) {
                // This client reads no data that a simple reply cannot carry.
                21.. if len > READ_MAX => (Op::Write, flags, offset, len),
                0 => (Op::Flush, 0, 0, 0),
                1..11 => (Op::Trim, flags, offset, len),
                11..21 => (Op::WriteZeroes, flags, offset, len),
                21..400 => (Op::Write, flags, offset, len),
                _ => (Op::Read, 0, offset, len),
            };
            let payload = if op == Op::Write { &data[..len as usize] } else { &[] };
            let cookie = client.send(op, flags, offset, len as usize, payload).expect("the daemon accepts requests");
            in_flight.insert(cookie, len);
            while in_flight.len() >= if is_exclusive { 1 } else { depth } {
                moved_bytes += receive(&mut client, &mut in_flight);
            }
        }
        while !in_flight.is_empty() {
            moved_bytes += receive(&mut client, &mut in_flight);
        }
    }
    moved_bytes
}

fn receive(client: &mut Client, in_flight: &mut BTreeMap<u64, u64>) -> u64 {
    let reply = client.receive().expect("the daemon answers");
    assert_eq!(reply.error, 0, "a request failed");
    in_flight.remove(&reply.cookie).expect("the client knows its cookies")
}

/// The largest resident memory without code, in KiB, of a daemon with `memory_mib` under `requests` of all clients.
fn peak_kib(memory_mib: u64, requests: u64) -> u64 {
    let seed = seed("memory");
    let volume_bytes = VOLUME_TO_MEMORY_RATIO * CONFIGURED_MIB * MIB;
    let mut fixture = Fixture::with_volume(volume_bytes);
    fixture.memory = format!("{memory_mib} MiB");
    let data = vec![1; LEN_MAX as usize];
    // Filled sequentially: freeing blocks that were allocated at random takes the disk longer than the test.
    let mut backing = File::options().write(true).open(fixture.backing("v")).expect("the backing exists");
    for _ in 0..volume_bytes / LEN_MAX {
        backing.write_all(&data).expect("the disk has space");
    }
    drop(backing);
    let daemon = fixture.start();
    let (endpoint, remaining, started_at) = (fixture.endpoint(), AtomicU64::new(requests), Instant::now());
    let moved_bytes: u64 = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            let (endpoint, remaining, data, seed) = (&endpoint, &remaining, &data, seed.wrapping_add(number));
            scope.spawn(move || run_client(endpoint, volume_bytes, remaining, data, seed))
        });
        let clients: Vec<_> = clients.collect();
        let mut printed_tenths = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            let completed = requests - remaining.load(Ordering::Relaxed);
            if completed * 10 / requests > printed_tenths {
                printed_tenths = completed * 10 / requests;
                println!(
                    "{completed} requests, {:?}: {} MiB resident",
                    started_at.elapsed(),
                    (status_kib(&daemon, "VmRSS") - status_kib(&daemon, "RssFile")) / 1024
                );
            }
        }
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).sum()
    });
    // Code and constants are the only files in memory. They stay once they are read.
    let peak_kib = status_kib(&daemon, "VmHWM") - status_kib(&daemon, "RssFile");
    println!(
        "{requests} requests and {} MiB of {CLIENTS} clients in {:?}: at most {} MiB resident, configured \
         {memory_mib} MiB",
        moved_bytes / MIB,
        started_at.elapsed(),
        peak_kib / 1024
    );
    daemon.stop();
    peak_kib
}

#[test]
fn memory_stays_bounded_with_64_clients_on_a_large_volume() {
    let peak_kib = peak_kib(CONFIGURED_MIB, requests());
    assert!(peak_kib / 1024 > CONFIGURED_MIB / 2, "{peak_kib} KiB: the memory was never used");
    assert!(
        peak_kib <= BOUND_KIB,
        "{peak_kib} KiB resident of {CONFIGURED_MIB} MiB configured and {OVERHEAD_MIB} MiB of overhead allowed"
    );
}

#[test]
fn daemon_above_the_memory_bound_is_noticed() {
    let peak_kib = peak_kib(4 * CONFIGURED_MIB, DEFAULT_REQUESTS);
    assert!(peak_kib > BOUND_KIB, "{peak_kib} KiB resident of four times as much as the bound is made for");
}
