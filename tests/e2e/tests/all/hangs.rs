//! File systems that hang under backings and flash devices of the real daemon: other volumes work, and an alert names
//! the hang.

use std::fs::File;
use std::io::Write;

use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, wait_for};
use e2e::file_system::FileSystem;
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Writes of a healthy volume while something hangs, each with a flush.
const WRITES: u64 = 200;

/// A file system that can be frozen; `None`, with a line on the terminal, where mounting is not possible.
fn mount_file_system(fixture: &Fixture, case: &str) -> Option<FileSystem> {
    let mounted = FileSystem::mount(&fixture.folder.join("hangs.img"), 256 * MIB, &fixture.folder.join("hangs"));
    if let Err(reason) = &mounted {
        // Written to the real stderr, past the capture of a passing test's output, because the skip must be visible.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {case}: no file system can be mounted ({reason})");
    }
    mounted.ok()
}

fn json(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(&[args, &["--json"]].concat())).expect("valid JSON")
}

fn find_alert(daemon: &Daemon, kind: &str, subject: &str) -> Option<Value> {
    let alerts = json(daemon, &["status"])["active_alerts"].as_array().expect("a list").clone();
    alerts.into_iter().find(|alert| alert["kind"] == kind && alert["subject"] == subject)
}

/// Writes and reads of a volume, each answered within the client's timeout.
fn assert_volume_works(fixture: &Fixture, volume: &str) {
    let mut client = Client::connect(&fixture.endpoint(), volume).expect("the volume is served");
    for number in 0..WRITES {
        let (offset, data) = (number * 3 * BLOCK, vec![number as u8 + 1; BLOCK as usize]);
        client
            .write(offset, &data)
            .and_then(|()| client.flush())
            .unwrap_or_else(|error| panic!("write {number}: {error}"));
        assert_eq!(client.read(offset, BLOCK as usize).expect("the read succeeds"), data);
        // A block that no cache holds.
        client.read(8 * MIB + number * 16 * BLOCK, BLOCK as usize).expect("the read succeeds");
    }
}

#[test]
fn hung_fuse_file_system_stalls_only_its_own_volume() {
    let mut fixture = Fixture::new();
    let Some(fuse) = Fuse::mount(&fixture.folder.join("hangs")) else { return };
    let backing = fuse.path().join("hung.img");
    File::create(&backing).and_then(|file| file.set_len(16 * MIB)).expect("the file system can be written");
    fixture.add_volume_on("hung", &backing.display().to_string(), "");
    fixture.add_volume("healthy", 64 * MIB, "");
    let daemon = fixture.start();
    fuse.hang();
    let mut client = Client::connect(&fixture.endpoint(), "hung").expect("the volume is served");
    for number in 0..64 {
        client.write(number * 16 * BLOCK, &[7; BLOCK as usize]).expect("memory has space");
    }
    client.send(Op::Read, 0, 8 * MIB, BLOCK as usize, &[]).expect("the read is sent");
    client.send(Op::Flush, 0, 0, 0, &[]).expect("the flush is sent");
    assert_volume_works(&fixture, "healthy");
    wait_for("the alert", || find_alert(&daemon, "backing-hung", "hung"));
    assert_volume_works(&fixture, "healthy");
    fuse.resume();
    for _ in 0..2 {
        assert_eq!(client.receive().expect("both requests complete when the file system recovers").error, 0);
    }
    drop(client);
    daemon.stop();
}

#[test]
fn frozen_backing_file_system_stalls_its_own_volume_only() {
    let mut fixture = Fixture::new();
    let Some(file_system) = mount_file_system(&fixture, "a backing that hangs") else { return };
    let backing = file_system.join("hung.img");
    File::create(&backing).and_then(|file| file.set_len(64 * MIB)).expect("the file system can be written");
    fixture.add_volume_on("hung", &backing.display().to_string(), "");
    fixture.add_volume("healthy", 64 * MIB, "");
    let daemon = fixture.start();
    let frozen = file_system.freeze();
    // More requests than the ring has workers.
    let mut client = Client::connect(&fixture.endpoint(), "hung").expect("the volume is served");
    for number in 0..256 {
        client.write(number * 32 * BLOCK % (64 * MIB), &vec![7; BLOCK as usize]).expect("memory has space");
    }
    let flush = client.send(Op::Flush, 0, 0, 0, &[]).expect("the request is sent");
    assert_volume_works(&fixture, "healthy");
    let alert = wait_for("the alert", || find_alert(&daemon, "backing-hung", "hung"));
    assert!(alert["cause"].as_str().is_some_and(|cause| cause.contains("hung.img")), "{alert}");
    assert!(find_alert(&daemon, "backing-hung", "healthy").is_none());
    assert_volume_works(&fixture, "healthy");
    drop(frozen);
    let reply = client.receive().expect("the flush is answered when the file system is back");
    assert_eq!((reply.cookie, reply.error), (flush, 0));
    wait_for("no alert", || find_alert(&daemon, "backing-hung", "hung").is_none().then_some(()));
    drop(client);
    daemon.stop();
}

#[test]
fn frozen_flash_file_system_drops_its_copy_and_stalls_no_volume() {
    let mut fixture = Fixture::with_volume(64 * MIB);
    fixture.add_volume("w", 64 * MIB, "");
    fixture.keep_in = "none".to_owned();
    let Some(file_system) = mount_file_system(&fixture, "a mirror that hangs") else { return };
    let (first, second) = (file_system.join("f0"), fixture.folder.join("f1"));
    let devices = format!("\"{}\", \"{}\"", first.display(), second.display());
    fixture.tables = format!("[flash]\ndevices = [{devices}]\nsize = \"64 MiB\"\n");
    let daemon = fixture.start();
    assert_volume_works(&fixture, "v");
    let frozen = file_system.freeze();
    std::thread::scope(|scope| {
        let threads = ["v", "w"].map(|volume| scope.spawn(|| assert_volume_works(&fixture, volume)));
        threads.into_iter().for_each(|thread| thread.join().expect("the volume works"));
    });
    wait_for("one copy", || (json(&daemon, &["flash", "list"])["copies"] == 1).then_some(()));
    assert_volume_works(&fixture, "w");
    drop(frozen);
    daemon.stop();
}

#[test]
fn stop_with_a_hung_backing_ends_and_next_start_has_its_data() {
    let mut fixture = Fixture::new();
    let Some(file_system) = mount_file_system(&fixture, "a stop beside a backing that hangs") else { return };
    let backing = file_system.join("hung.img");
    File::create(&backing).and_then(|file| file.set_len(MIB)).expect("the file system can be written");
    fixture.add_volume_on("hung", &backing.display().to_string(), "");
    fixture.add_volume("healthy", MIB, "");
    let mut daemon = fixture.start();
    let frozen = file_system.freeze();
    for volume in ["hung", "healthy"] {
        let mut client = Client::connect(&fixture.endpoint(), volume).expect("the volume is served");
        client.write(0, &vec![7; BLOCK as usize]).expect("memory has space");
    }
    daemon.signal("TERM");
    wait_for("the end of the stop", || daemon.log().contains("stopped, but a backing did not answer").then_some(()));
    assert!(daemon.log().contains("volume hung: its backing has not answered"), "{}", daemon.log());
    // The kernel keeps the process until the file system has thawed.
    drop(frozen);
    assert_eq!(daemon.wait().code(), Some(1));
    let daemon = fixture.start();
    for volume in ["hung", "healthy"] {
        let mut client = Client::connect(&fixture.endpoint(), volume).expect("the volume is served");
        assert_eq!(client.read(0, BLOCK as usize).expect("the read succeeds"), [7; BLOCK as usize], "{volume}");
    }
    daemon.stop();
}
