//! Live migrations of a guest between two hosts whose volume lies on an image of a real Ceph cluster.

use std::time::Duration;

use e2e::ceph::cluster;
use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::linux::{Drive, Linux, Machine};
use e2e::sizes::size;

use super::fleet::{is_state, shown};
use super::fleet_link::linked_hosts;

/// Migrations of a run; `HOTSET_MIGRATIONS` replaces the number.
const MIGRATIONS: u64 = 3;
/// Time of the load in the guest for each migration, which boots another emulated machine.
const SECONDS_EACH: u64 = 170;
/// Time after a migration at which the hit ratio is measured again.
const SETTLED: Duration = Duration::from_secs(60);
/// Time over which a hit ratio is measured.
const MEASURED: Duration = Duration::from_secs(10);

fn machine(fixture: &Fixture, incoming: Option<std::path::PathBuf>) -> Machine {
    let uri = format!("nbd+unix:///v?socket={}", fixture.folder.join("nbd.sock").display());
    Machine { drives: vec![Drive::Nbd(uri)], may_migrate: true, incoming, ..Machine::default() }
}

/// Times in milliseconds for which clients have waited for handovers, by the log.
fn waits(daemon: &Daemon) -> Vec<u64> {
    let log = daemon.log();
    let of_line = |line: &str| line.split_once("which waited ")?.1.split(' ').next()?.parse().ok();
    log.lines().filter_map(of_line).collect()
}

/// Part of the guest's reads that hit memory on this host within [`MEASURED`].
fn hit_ratio(daemon: &Daemon) -> f64 {
    let counts = || {
        let volume = shown(daemon);
        ["memory_hits", "reads"].map(|name| volume[name].as_u64().unwrap_or_else(|| panic!("{name} in {volume}")))
    };
    let before = counts();
    std::thread::sleep(MEASURED);
    let [hits, reads] = counts();
    (hits - before[0]) as f64 / (reads - before[1]).max(1) as f64
}

/// No error reaches the guest, no content is wrong, and each migration hands the volume over once.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn guest_migrates_between_hosts_under_a_verified_load() {
    let Some(cluster) = cluster("live migrations") else { return };
    let migrations = size("HOTSET_MIGRATIONS", MIGRATIONS);
    let image = cluster.create_image("fleet-migrated", 128);
    let fixtures: [_; 2] = linked_hosts(&image);
    let daemons = [fixtures[0].start(), fixtures[1].start()];
    let mut guest = Linux::boot_as(&machine(&fixtures[0], None));
    let seconds = SECONDS_EACH * (migrations + 1);
    guest.start_load(&format!(
        "cd /tmp; fio --name=v --filename=/dev/vdb --size=32M --offset_increment=32M --numjobs=2 --rw=randrw --bs=4k \
         --direct=1 --ioengine=libaio --iodepth=4 --rate_iops=150 --fsync=32 --verify=crc32c --verify_backlog=64 \
         --serialize_overlap=1 --time_based --runtime={seconds} --minimal"
    ));
    for number in 0..migrations {
        let to = usize::from(number % 2 == 0);
        wait_for("the forwarding", || Client::connect(&fixtures[to].endpoint(), "v").ok());
        let socket = fixtures[to].folder.join(&format!("moving-{number}"));
        let target = Linux::boot_as(&machine(&fixtures[to], Some(socket.clone())));
        wait_for("the machine that waits", || socket.exists().then_some(()));
        let before = hit_ratio(&daemons[1 - to]);
        guest.monitor("migrate_set_parameter max-bandwidth 1G");
        guest.monitor("migrate_set_parameter downtime-limit 2000");
        guest.monitor(&format!("migrate -d unix:{}", socket.display()));
        let mut output = String::new();
        for _ in 0..600 {
            output = guest.monitor("info migrate");
            if !output.contains("active") && !output.contains("setup") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(output.contains("completed"), "migration {number}: {output}");
        wait_for("the handover", || is_state(&daemons[to], "active"));
        let first = hit_ratio(&daemons[to]);
        std::thread::sleep(SETTLED - MEASURED);
        let settled = hit_ratio(&daemons[to]);
        println!(
            "migration {number}: {before:.3} of the reads hit before it, {first:.3} right after it, {settled:.3} then"
        );
        drop(std::mem::replace(&mut guest, target));
        assert!(guest.is_load_running(), "migration {number}: the load has ended: {}", guest.wait_for_load());
    }
    println!("fio: {}", guest.wait_for_load().lines().next_back().unwrap_or_default());
    assert_eq!(guest.run("dmesg | grep -i 'i/o error' || true"), "", "the guest saw an error");
    let mut waits: Vec<u64> = daemons.iter().flat_map(waits).collect();
    waits.sort_unstable();
    assert_eq!(waits.len() as u64, migrations, "one handover for each migration: {waits:?}");
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
    println!("handovers: median {} ms, p99 {} ms, longest {} ms", at(0.5), at(0.99), at(1.0));
    drop(guest);
    let [first, second] = daemons;
    second.stop();
    first.stop();
}
