//! Isolation from neighbours: a reservation with flooding clients, and latency of small requests with large ones.

use e2e::load::{Job, run};

use super::{POOL, RANDOM, SETTLED_MS, fixture_on_array, seconds, windows};

/// Reserved requests per second.
const RESERVED: u64 = 300;

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn reservation_holds_beside_two_flooding_clients() {
    let fixture = fixture_on_array(
        "64 MiB",
        POOL,
        &[
            ("reserved", &format!("shares = 100\nreservation_iops = {RESERVED}")),
            ("reads", "shares = 2000"),
            ("writes", "shares = 2000"),
        ],
    );
    let daemon = fixture.start();
    let time = 4 + seconds(8);
    let jobs = [
        Job::new("reserved", fixture.uri("reserved"), RANDOM, 0, time),
        Job::new("reads", fixture.uri("reads"), "rw=randread bs=4k iodepth=128", 0, time),
        Job::new("writes", fixture.uri("writes"), "rw=randwrite bs=1m iodepth=128", 0, time),
    ];
    let logs = run(fixture.folder.path(), &jobs);
    let reserved = &logs["reserved"];
    for (from, to) in windows(SETTLED_MS, reserved.end_ms(), 5000) {
        let [own, reads, writes] = ["reserved", "reads", "writes"].map(|name| logs[name].rate(from, to));
        println!(
            "{from} to {to} ms: {own:.0} a second of {RESERVED} reserved, beside {reads:.0} reads and {writes:.0} \
             writes of 1 MiB"
        );
        assert!(own >= 0.95 * RESERVED as f64, "{own:.0} a second of {RESERVED} between {from} and {to} ms");
    }
    daemon.stop();
}

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn small_request_latency_at_most_doubles_beside_large_ones() {
    let fixture = fixture_on_array("64 MiB", POOL, &[("small", ""), ("neighbour", "")]);
    let daemon = fixture.start();
    let time = 4 + seconds(5);
    let large = "rw=randread bs=256k iodepth=32";
    let jobs = [
        Job::new("small", fixture.uri("small"), "rw=randread bs=4k iodepth=16", 0, 2 * time),
        Job::new("beside-small", fixture.uri("neighbour"), RANDOM, 0, time),
        Job::new("beside-large", fixture.uri("neighbour"), large, time, time),
    ];
    let logs = run(fixture.folder.path(), &jobs);
    let (small, half_ms) = (&logs["small"], time * 1000);
    let [beside_small, beside_large] =
        [(0, half_ms), (half_ms, 2 * half_ms)].map(|(from, to)| small.quantile_us(from + SETTLED_MS, to, 0.99));
    println!("p99 of 4 KiB: {beside_small} us beside 4 KiB, {beside_large} us beside 256 KiB");
    assert!(beside_large <= 2 * beside_small, "{beside_large} us instead of {beside_small} us");
    daemon.stop();
}
