//! A volume that moves to another host takes its cached data along, and never data that is older than the image's.

use e2e::ceph::cluster;
use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use serde_json::Value;

use super::fleet::is_state;
use super::fleet_link::{connect_standby, linked_hosts};
use super::rbd_losses::{helper_of, json, signal};

const BLOCK: usize = 4096;
/// Blocks of the hot set.
const BLOCKS: usize = 4096;

fn content(index: usize, version: u64) -> Vec<u8> {
    [(index as u64).to_le_bytes(), version.to_le_bytes()].concat().repeat(BLOCK / 16)
}

/// Counters of the volume on this host.
fn counters(daemon: &Daemon) -> Value {
    json(daemon, &["volume", "show", "v"])
}

fn number(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("{name} in {counters}"))
}

/// Reads the hot set. The blocks have these versions; returns the part of the reads that hit memory.
fn read_all(daemon: &Daemon, client: &mut Client, version_of: impl Fn(usize) -> u64) -> f64 {
    let before = counters(daemon);
    for step in 0..BLOCKS {
        // A stride that is prime to the number of blocks: no read is part of a sequential stream.
        let index = step * 1031 % BLOCKS;
        let read = client.read((index * BLOCK) as u64, BLOCK).expect("it is served");
        assert!(read == content(index, version_of(index)), "block {index}");
    }
    let after = counters(daemon);
    (number(&after, "memory_hits") - number(&before, "memory_hits")) as f64 / BLOCKS as f64
}

fn write_all(client: &mut Client) {
    for index in 0..BLOCKS {
        client.write((index * BLOCK) as u64, &content(index, 1)).expect("the owner serves");
    }
    client.flush().expect("the owner serves");
}

/// Waits until the transfer to this host has ended; returns its bytes.
fn wait_for_transfer(daemon: &Daemon, ended: usize) -> u64 {
    wait_for("the end of the transfer", || {
        let log = daemon.log();
        let ends =
            log.matches("of cached data were taken over").count() + log.matches("no cached data is taken over").count();
        (ends >= ended).then_some(())
    });
    number(&counters(daemon), "transferred_bytes")
}

#[test]
fn volume_that_moves_takes_its_cache_along() {
    let Some(cluster) = cluster("a move with cached data") else { return };
    let fixtures = linked_hosts::<2>(&cluster.create_image("fleet-warm", 32));
    let daemons = [fixtures[0].start(), fixtures[1].start()];
    let mut source = fixtures[0].connect("v");
    write_all(&mut source);
    assert!(read_all(&daemons[0], &mut source, |_| 1) > 0.99);
    // The first write of a client on standby moves the volume, as in a live migration; more follow at once.
    let mut target = connect_standby(&fixtures[1]);
    let changed = |index: usize| index.is_multiple_of(7);
    for index in (0..BLOCKS).filter(|index| changed(*index)) {
        target.write((index * BLOCK) as u64, &content(index, 2)).expect("the first write waits for the ownership");
    }
    let transferred = wait_for_transfer(&daemons[1], 1);
    let version_of = |index: usize| 1 + u64::from(changed(index));
    let hits = read_all(&daemons[1], &mut target, version_of);
    println!("{transferred} bytes were taken over, {hits:.3} of the reads hit memory");
    assert!(hits > 0.99 && transferred > (BLOCKS * BLOCK * 3 / 4) as u64);
    // The former owner has freed its copies, and the cache moves back by command.
    daemons[1].command(&["fleet", "move", "v", "--to", "alpha"]);
    wait_for("the volume", || is_state(&daemons[0], "active"));
    assert!(wait_for_transfer(&daemons[0], 1) > (BLOCKS * BLOCK * 3 / 4) as u64);
    let mut source = fixtures[0].connect("v");
    assert!(read_all(&daemons[0], &mut source, version_of) > 0.99);
    daemons.into_iter().for_each(Daemon::stop);
}

/// Another client writes to the image after its release, before the next host claims it: the copies of the former owner
/// are older.
#[test]
fn cached_data_is_refused_if_another_client_came_between() {
    let Some(cluster) = cluster("a move with a client between") else { return };
    let fixtures = linked_hosts::<2>(&cluster.create_image("fleet-between", 32));
    let daemons = [fixtures[0].start(), fixtures[1].start()];
    let mut source = fixtures[0].connect("v");
    write_all(&mut source);
    drop(source);
    let helper = helper_of(&daemons[1]);
    signal(helper, "STOP");
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| daemons[0].command(&["fleet", "move", "v", "--to", "beta"]));
        wait_for("the release", || is_state(&daemons[0], "standby"));
        cluster.rbd("bench --io-type write --io-pattern seq --io-size 1M --io-total 32M rbd/fleet-between").ok();
        signal(helper, "CONT");
        moved.join().expect("no panic");
    });
    wait_for("the volume", || is_state(&daemons[1], "active"));
    let image = cluster.export("fleet-between");
    let (mut target, mut changed) = (fixtures[1].connect("v"), 0);
    for index in 0..BLOCKS {
        let read = target.read((index * BLOCK) as u64, BLOCK).expect("it is served");
        assert!(read == image[index * BLOCK..][..BLOCK], "block {index} is not the image's");
        changed += usize::from(read != content(index, 1));
    }
    assert!(changed > BLOCKS / 2, "the other client has written {changed} blocks");
    assert_eq!(wait_for_transfer(&daemons[1], 1), 0, "{}", daemons[1].log());
    daemons.into_iter().for_each(Daemon::stop);
}
