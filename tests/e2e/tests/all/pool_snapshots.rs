//! Snapshots of a volume on a pool under a warm cache: memory, flash and log; clones, roll back, and kills.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::sizes::size;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SLICE: u64 = MIB;
/// Written slices of the volume.
const SLICES: u64 = 6;
/// Written blocks in each slice, one after each other block.
const BLOCKS: u64 = 8;

/// A fixture with a pool "tank" of two tiers in slices of 1 MiB, a volume "web" on it, one on a file, and a flash
/// cache.
fn created() -> Fixture {
    let mut fixture = Fixture::new();
    let folder = fixture.folder.path().to_owned();
    for (name, mib) in [("ssd", 17), ("hdd", 41)] {
        let file = File::create(fixture.folder.join(name)).expect("the folder can be written");
        file.set_len(mib * MIB).expect("a sparse file can be created");
    }
    let folder = folder.display();
    fixture.tables = format!(
        "[flash]\ndevices = [\"{folder}/f0\", \"{folder}/f1\"]\nsize = \"64 MiB\"\n[[pool]]\nname = \"tank\"\n\
         slice = \"1 MiB\"\n[[pool.tier]]\nname = \"ssd\"\ndevices = [\"{folder}/ssd\"]\n[[pool.tier]]\n\
         name = \"hdd\"\ndevices = [\"{folder}/hdd\"]\n"
    );
    fixture.add_volume_on("web", "pool://tank", "size = \"32 MiB\"");
    fixture.add_volume("plain", 8 * MIB, "");
    fixture.create_pool("tank");
    fixture
}

/// Byte offsets of the written blocks.
fn places() -> impl Iterator<Item = u64> {
    (0..SLICES).flat_map(|slice| (0..BLOCKS).map(move |block| slice * SLICE + block * 8192))
}

/// Writes all blocks with a value; flushes after a part of them.
fn write_all(client: &mut Client, value: u8) {
    for (number, at) in places().enumerate() {
        client.write(at, &[value; 4096]).expect("room");
        if number == 20 {
            client.flush().expect("the pool is whole");
        }
    }
}

/// Checks all blocks twice: from the backing or flash, then from memory.
fn assert_all(client: &mut Client, value: u8, when: &str) {
    for _ in 0..2 {
        for at in places() {
            assert_eq!(client.read(at, 4096).expect("the pool is whole"), [value; 4096], "byte {at} {when}");
            assert_eq!(client.read(at + 4096, 4096).expect("the pool is whole"), [0; 4096], "byte {at} {when}");
        }
    }
}

fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.try_command(args);
    assert!(!output.status.success(), "{args:?} is refused: {}", text_of(&output));
    text_of(&output)
}

/// Rolls back once the server has noticed the end of its clients.
fn roll_back(daemon: &Daemon, snapshot: &str) {
    wait_for("a roll back without clients", || {
        let output = daemon.try_command(&["snapshot", "rollback", "web", snapshot, "--yes"]);
        let text = text_of(&output);
        assert!(output.status.success() || text.contains("has clients"), "{text}");
        output.status.success().then_some(())
    });
}

/// Roll backs to run: `HOTSET_ROLL_BACK_ROUNDS`, 4 by default.
fn roll_back_rounds() -> u64 {
    size("HOTSET_ROLL_BACK_ROUNDS", 4)
}

/// Values before and after the snapshot of a round; those of neighbouring rounds differ.
fn values(round: u64) -> (u8, u8) {
    let old = (round % 120) as u8 * 2 + 1;
    (old, old + 1)
}

#[test]
fn roll_back_under_a_warm_cache_returns_the_old_content() {
    let fixture = created();
    let daemon = fixture.start();
    let rounds = roll_back_rounds();
    for round in 0..rounds {
        let (old, new) = values(round);
        let name = format!("s{round}");
        let mut web = fixture.connect("web");
        write_all(&mut web, old);
        // Acknowledged, not flushed: in memory or in the log.
        let made = daemon.command(&["snapshot", "create", "web", &name]);
        assert!(made.contains(&name), "{made}");
        write_all(&mut web, new);
        assert_all(&mut web, new, "after the overwrite");
        let text = refused(&daemon, &["snapshot", "rollback", "web", &name, "--yes"]);
        assert!(text.contains("has clients") && text.contains("--force"), "{text}");
        assert_all(&mut web, new, "after the refusal");
        if round % 2 == 0 {
            drop(web);
            roll_back(&daemon, &name);
        } else {
            daemon.command(&["snapshot", "rollback", "web", &name, "--yes", "--force"]);
            assert!(web.read(0, 4096).is_err(), "its connection has ended");
        }
        assert_all(&mut fixture.connect("web"), old, "after the roll back");
        // The pool has room for the slices of a few snapshots.
        if let Some(older) = round.checked_sub(3).filter(|older| *older > 0) {
            daemon.command(&["snapshot", "delete", "web", &format!("s{older}"), "--yes"]);
        }
    }
    daemon.kill();
    let daemon = fixture.start();
    assert_all(&mut fixture.connect("web"), values(rounds - 1).0, "after a kill");
    // An older snapshot is unchanged by all that.
    roll_back(&daemon, "s0");
    let mut web = fixture.connect("web");
    assert_all(&mut web, values(0).0, "after another roll back");
    write_all(&mut web, 255);
    web.flush().expect("room");
    drop(web);
    for round in rounds.saturating_sub(3).max(1)..rounds {
        daemon.command(&["snapshot", "delete", "web", &format!("s{round}"), "--yes"]);
    }
    daemon.stop();
    let daemon = fixture.start();
    assert_all(&mut fixture.connect("web"), 255, "after a restart");
    roll_back(&daemon, "s0");
    assert_all(&mut fixture.connect("web"), values(0).0, "after the last roll back");
    daemon.stop();
    let output = hotset(&["pool", "check", "tank", "--config", &fixture.config().display().to_string()]);
    assert!(output.status.success() && text_of(&output).contains("1 snapshot"), "{}", text_of(&output));
}

/// Connects, reads, and reads again for a while, with pauses of many lengths between connections, until `is_ended`;
/// returns the number of connections that ended between the two.
fn connect_repeatedly(fixture: &Fixture, is_ended: &AtomicBool) -> u32 {
    let mut disconnected = 0;
    for pause_ms in (0..100).step_by(4).cycle() {
        if is_ended.load(Ordering::Relaxed) {
            break;
        }
        let Ok(mut client) = Client::connect(&fixture.endpoint(), "web") else { continue };
        if client.read(0, 4096).is_ok() {
            std::thread::sleep(Duration::from_millis(8));
            disconnected += u32::from(client.read(0, 4096).is_err());
        }
        drop(client);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    disconnected
}

#[test]
fn roll_back_without_force_disconnects_no_client_that_has_read() {
    let fixture = created();
    let daemon = fixture.start();
    write_all(&mut fixture.connect("web"), 1);
    daemon.command(&["snapshot", "create", "web", "s"]);
    let is_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect_repeatedly(&fixture, &is_ended));
        let mut done = 0;
        for _ in 0..1_000 {
            let output = daemon.try_command(&["snapshot", "rollback", "web", "s", "--yes"]);
            let text = text_of(&output);
            assert!(output.status.success() || text.contains("has clients"), "{text}");
            done += u32::from(output.status.success());
            if done == 5 {
                break;
            }
        }
        is_ended.store(true, Ordering::Relaxed);
        assert_eq!(connecting.join().expect("the client does not panic"), 0, "of {done} roll backs");
        assert!(done > 0, "no roll back hit a pause of the client");
    });
    assert_all(&mut fixture.connect("web"), 1, "after the roll backs");
}

/// Changes the records of a stopped daemon: removed volumes, so many that no manifest holds them, or none.
fn set_removed(fixture: &Fixture, count: u64) {
    let path = fixture.folder.join("state/state.json");
    let text = fs::read_to_string(&path).expect("a start has written it");
    let mut state: Value = serde_json::from_str(&text).expect("valid JSON");
    // A linear congruential generator: its digits do not compress.
    let mut number = 1u64;
    let mut next = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        number >> 8
    };
    let removed = (0..count).map(|_| (format!("v{:x}", next()), Value::from(format!("{:x}{:x}", next(), next()))));
    state["removed"] = Value::Object(removed.collect());
    fs::write(&path, state.to_string()).expect("the folder can be written");
}

#[test]
fn roll_back_without_room_for_the_records_on_flash_changes_nothing() {
    let fixture = created();
    let daemon = fixture.start();
    let mut web = fixture.connect("web");
    write_all(&mut web, 1);
    daemon.command(&["snapshot", "create", "web", "s"]);
    write_all(&mut web, 2);
    drop(web);
    daemon.stop();
    set_removed(&fixture, 4_000);
    let daemon = fixture.start();
    let mut web = fixture.connect("web");
    let text = refused(&daemon, &["snapshot", "rollback", "web", "s", "--yes", "--force"]);
    assert!(text.contains("was not rolled back") && text.contains("too large"), "{text}");
    assert_all(&mut web, 2, "on the connection that stays");
    drop(web);
    daemon.stop();
    set_removed(&fixture, 0);
    let daemon = fixture.start();
    roll_back(&daemon, "s");
    assert_all(&mut fixture.connect("web"), 1, "with room for the records");
}

#[test]
fn clone_shows_the_snapshot_after_overwrites_and_a_kill() {
    let fixture = created();
    let mut daemon = fixture.start();
    let mut web = fixture.connect("web");
    write_all(&mut web, 1);
    daemon.command(&["snapshot", "create", "web", "first"]);
    write_all(&mut web, 2);
    // The overwrites are in the log or in memory: the next start destages them, beside the snapshot.
    daemon.kill();
    daemon = fixture.start();
    assert_all(&mut fixture.connect("web"), 2, "after a kill");
    daemon.command(&["snapshot", "clone", "web", "first", "copy"]);
    daemon.command(&["volume", "add", "copy", "--backing", "pool://tank"]);
    let mut copy = fixture.connect("copy");
    assert_all(&mut copy, 1, "in the clone");
    write_all(&mut copy, 3);
    copy.flush().expect("room");
    assert_all(&mut fixture.connect("web"), 2, "beside the clone");
    drop(copy);
    daemon.command(&["snapshot", "delete", "web", "first", "--yes"]);
    daemon.kill();
    daemon = fixture.start();
    assert_all(&mut fixture.connect("copy"), 3, "in the clone after a kill");
    assert_all(&mut fixture.connect("web"), 2, "without the snapshot");
    daemon.stop();
    let output = hotset(&["pool", "check", "tank", "--config", &fixture.config().display().to_string()]);
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn commands_on_snapshots_say_what_is_wrong() {
    let fixture = created();
    let daemon = fixture.start();
    fixture.connect("web").write(0, &[1; 4096]).expect("room");
    let text = refused(&daemon, &["snapshot", "create", "plain", "s"]);
    assert!(text.contains("on pools alone"), "{text}");
    assert!(refused(&daemon, &["snapshot", "create", "none", "s"]).contains("none"));
    assert!(refused(&daemon, &["snapshot", "create", "web", "a b"]).contains("cannot be a name"));
    assert!(refused(&daemon, &["snapshot", "rollback", "web", "s", "--yes"]).contains("hotset snapshot list web"));
    assert!(daemon.command(&["snapshot", "list", "web"]).contains("no snapshots"));
    daemon.command(&["snapshot", "create", "web", "s"]);
    assert!(refused(&daemon, &["snapshot", "create", "web", "s"]).contains("already"));
    assert!(refused(&daemon, &["snapshot", "clone", "web", "s", "plain"]).contains("already exists"));
    let list: Value =
        serde_json::from_str(&daemon.command(&["snapshot", "list", "web", "--json"])).expect("the report is JSON");
    let snapshot = &list["snapshots"][0];
    assert_eq!((&list["pool"], &snapshot["name"]), (&"tank".into(), &"s".into()));
    assert_eq!(snapshot["size_bytes"].as_u64(), Some(32 * MIB));
    assert!(snapshot["created_unix_seconds"].as_u64() > Some(1_700_000_000));
    // A volume that is not served any more: its snapshots keep it.
    daemon.command(&["volume", "add", "other", "--backing", "pool://tank", "--size", "4 MiB"]);
    daemon.command(&["volume", "remove", "web"]);
    let text = refused(&daemon, &["pool", "delete-volume", "tank", "web", "--yes"]);
    assert!(text.contains("has a snapshot: delete it first"), "{text}");
    daemon.command(&["snapshot", "delete", "web", "s", "--yes"]);
    daemon.command(&["pool", "delete-volume", "tank", "web", "--yes"]);
    daemon.stop();
}
