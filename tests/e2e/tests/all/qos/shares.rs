//! Shares: the division of congested disks among clients, and the redistribution of an idle client's rate.

use std::fs::File;

use e2e::fixture::Fixture;
use e2e::load::{Job, run};
use e2e::server::Nbdkit;

use super::{POOL, RANDOM, SETTLED_MS, assert_shares, fixture_on_array, seconds};

/// Rate limit of the file of this machine, in requests of 4 KiB per second.
const FILE_IOPS: u64 = 800;

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn idle_client_yields_its_share_and_regains_it() {
    let fixture =
        fixture_on_array("64 MiB", POOL, &[("a", "shares = 2000"), ("b", "shares = 1000"), ("c", "shares = 500")]);
    let daemon = fixture.start();
    let busy_s = 4 + seconds(11);
    let return_s = busy_s + 5;
    let jobs = [
        Job::new("a", fixture.uri("a"), RANDOM, 0, busy_s),
        Job::new("b", fixture.uri("b"), RANDOM, 0, return_s + 5),
        Job::new("c", fixture.uri("c"), RANDOM, 0, return_s + 5),
        Job::new("a-again", fixture.uri("a"), RANDOM, return_s, 5),
    ];
    let logs = run(fixture.folder.path(), &jobs);
    let [a, b, c, resumed] = ["a", "b", "c", "a-again"].map(|name| &logs[name]);
    let idle_ms = a.end_ms();
    assert_shares(&[a, b, c], &[2000.0, 1000.0, 500.0], SETTLED_MS, idle_ms);
    // The idle client's rate goes to the others within a second, in the ratio of their shares.
    let total_rate = |from, to| a.rate(from, to) + b.rate(from, to) + c.rate(from, to);
    let (rate_of_three, rate_of_two) = (total_rate(SETTLED_MS, idle_ms), total_rate(idle_ms + 1000, idle_ms + 4000));
    println!("{rate_of_three:.0} a second of all three, {rate_of_two:.0} of two");
    assert!(
        rate_of_two >= 0.9 * rate_of_three,
        "an idle volume's rate was left unused: {rate_of_two:.0} of {rate_of_three:.0} a second"
    );
    let ratio = b.rate(idle_ms + 1000, idle_ms + 4000) / c.rate(idle_ms + 1000, idle_ms + 4000);
    assert!((1.8..=2.2).contains(&ratio), "b has {ratio:.2} times what c has");
    // An idle client gains no credit and loses none: its latency afterwards is that of before.
    let return_ms = resumed.0[0].at_ms;
    let (p99_before, p99_after) =
        (a.quantile_us(SETTLED_MS, idle_ms, 0.99), resumed.quantile_us(0, return_ms + 1000, 0.99));
    println!("p99 {p99_before} us before it idled, {p99_after} us in the first second after it");
    assert!(p99_after <= p99_before * 3 / 2, "{p99_after} us instead of {p99_before} us");
    let fraction = resumed.rate(return_ms, return_ms + 2000)
        / (total_rate(return_ms, return_ms + 2000) + resumed.rate(return_ms, return_ms + 2000));
    assert!((0.45..=0.68).contains(&fraction), "it came back to {fraction:.2} of all instead of {:.2}", 4.0 / 7.0);
    daemon.stop();
}

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn congested_local_file_is_divided_by_shares() {
    let mut fixture = Fixture::new();
    fixture.memory = "16 MiB".to_owned();
    fixture.tables = "[[datastore]]\nname = \"pool\"\ncongestion_threshold = \"30ms\"\n".to_owned();
    let files = fixture.folder.join("files");
    std::fs::create_dir(&files).expect("the folder can be written");
    let socket = fixture.folder.join("below");
    let shares = [("a", 1000), ("b", 500), ("c", 500)];
    for (name, shares) in shares {
        File::create(files.join(name)).and_then(|file| file.set_len(1 << 30)).expect("the folder can be written");
        let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
        fixture.add_volume_on(name, &uri, &format!("datastore = \"pool\"\nshares = {shares}"));
    }
    // One token bucket for all connections.
    let rate = FILE_IOPS * 4096 * 8;
    let backing_server =
        Nbdkit::start(&socket, &format!("--filter=rate file dir={} rate={rate} burstiness=0.1", files.display()));
    let daemon = fixture.start();
    let jobs = shares.map(|(name, _)| Job::new(name, fixture.uri(name), RANDOM, 0, 4 + seconds(11)));
    let logs = run(fixture.folder.path(), &jobs);
    let logs = shares.map(|(name, _)| &logs[name]);
    let end = logs.iter().map(|log| log.end_ms()).min().expect("three logs");
    assert_shares(&logs, &[1000.0, 500.0, 500.0], SETTLED_MS, end);
    daemon.stop();
    drop(backing_server);
}
