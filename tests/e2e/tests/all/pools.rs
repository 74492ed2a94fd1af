//! A pool from its creation on: volumes on two tiers, a restart, a kill, a pool that is full, and an absent device.

use std::fs::{self, File};
use std::io;

use e2e::client::Client;
use e2e::daemon::{hotset, text_of};
use e2e::fixture::Fixture;

const MIB: u64 = 1 << 20;
const SLICE: u64 = MIB;
const ENOSPC: i32 = 28;

/// A fixture with a pool "tank" of 8 and 16 MiB in slices of 1 MiB, and two volumes of 64 MiB on it.
fn with_pool() -> Fixture {
    let mut fixture = Fixture::new();
    let folder = fixture.folder.path().to_owned();
    for (name, mib) in [("ssd", 9), ("hdd", 17)] {
        let file = File::create(folder.join(name)).expect("the folder can be written");
        file.set_len(mib * MIB).expect("a sparse file can be created");
    }
    let folder = folder.display();
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\n[[pool.tier]]\nname = \"ssd\"\ndevices = [\"{folder}/ssd\"]\n\
         [[pool.tier]]\nname = \"hdd\"\ndevices = [\"{folder}/hdd\"]\n"
    );
    fixture.add_volume_on("fast", "pool://tank", "size = \"64 MiB\"\ntier_policy = \"ssd\"");
    fixture.add_volume_on("auto", "pool://tank", "size = \"64 MiB\"");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    fixture
}

fn pool_command(fixture: &Fixture, action: &str) -> (bool, String) {
    let output = hotset(&["pool", action, "tank", "--config", &fixture.config().display().to_string()]);
    (output.status.success(), text_of(&output))
}

fn created() -> Fixture {
    let fixture = with_pool();
    let (succeeded, text) = pool_command(&fixture, "create");
    assert!(succeeded && text.contains("pool://tank"), "{text}");
    fixture
}

/// Writes one block to each of the first slices. Returns the slices whose write was acknowledged.
fn write_slices(client: &mut Client, value: u8, count: u64) -> Vec<u64> {
    let mut written = Vec::new();
    for slice in 0..count {
        match client.write(slice * SLICE + 4096, &[value; 4096]) {
            Ok(()) => written.push(slice),
            Err(error) => assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}"),
        }
    }
    written
}

fn assert_slices_hold(client: &mut Client, slices: &[u64], value: u8) -> io::Result<()> {
    for slice in slices {
        assert_eq!(client.read(slice * SLICE + 4096, 4096)?, [value; 4096], "slice {slice}");
        assert_eq!(client.read(slice * SLICE, 4096)?, [0; 4096], "slice {slice}");
    }
    Ok(())
}

#[test]
fn volumes_on_a_full_pool_survive_a_kill_and_a_restart() {
    let fixture = created();
    let daemon = fixture.start();
    let connect = |name| Client::connect(&fixture.endpoint(), name).expect("the volume is served");
    let (mut fast, mut auto) = (connect("fast"), connect("auto"));
    let fast_slices = write_slices(&mut fast, 1, 6);
    let auto_slices = write_slices(&mut auto, 2, 64);
    let total = fast_slices.len() + auto_slices.len();
    assert!((20..=26).contains(&total), "{total} slices fit");
    // A full pool takes overwrites.
    auto.write(auto_slices[0] * SLICE + 4096, &[3; 4096]).expect("its slice is allocated");
    auto.write(auto_slices[0] * SLICE + 4096, &[2; 4096]).expect("its slice is allocated");
    for client in [&mut fast, &mut auto] {
        client.flush().expect("every acknowledged write has its place");
    }
    let list = daemon.command(&["pool", "list"]);
    assert!(list.contains("tank") && list.contains("in-service") && list.contains("fast"), "{list}");
    daemon.kill();
    let (succeeded, text) = pool_command(&fixture, "check");
    assert!(succeeded && text.contains(&format!("2 volumes, {total} slices")), "{text}");
    let (succeeded, map) = pool_command(&fixture, "export-map");
    assert!(map.contains(&fixture.folder.join("ssd").display().to_string()), "{map}");
    assert!(succeeded && map.lines().filter(|line| !line.starts_with('#')).count() >= total, "{map}");
    for _ in 0..2 {
        let daemon = fixture.start();
        let (mut fast, mut auto) = (connect("fast"), connect("auto"));
        assert_slices_hold(&mut fast, &fast_slices, 1).expect("the pool is whole");
        assert_slices_hold(&mut auto, &auto_slices, 2).expect("the pool is whole");
        daemon.stop();
    }
}

#[test]
fn pool_is_created_once_and_only_on_empty_devices() {
    let fixture = created();
    let (succeeded, text) = pool_command(&fixture, "create");
    let device = fixture.folder.join("ssd").display().to_string();
    assert!(!succeeded && text.contains(&device), "a pool is not overwritten: {text}");
    let (succeeded, text) = pool_command(&fixture, "check");
    assert!(succeeded, "{text}");
}

#[test]
fn volume_of_a_missing_pool_is_refused_with_the_command_that_creates_it() {
    let fixture = with_pool();
    let daemon = fixture.start();
    let status = daemon.command(&["volume", "show", "fast"]);
    assert!(status.contains("hotset pool create tank"), "{status}");
    daemon.stop();
}
