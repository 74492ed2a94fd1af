//! Flash devices that hang when the daemon starts: they count as absent, nothing is written to any of them, and volumes
//! without data on flash are served.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::fuse::{Fuse, Operation};
use e2e::refusal::{json, show};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// A fixture with flash devices `f0`, on a file system that can hang, and `f1`, a volume `logged` that uses the flash
/// log, and a volume `healthy` that does not; `None` where no file system may be mounted.
fn fixture() -> Option<(Fixture, Fuse, [PathBuf; 2])> {
    let mut fixture = Fixture::new();
    let fuse = Fuse::mount(&fixture.folder.join("hangs"))?;
    let devices = [fuse.path().join("f0"), fixture.folder.join("f1")];
    let names: Vec<_> = devices.iter().map(|device| format!("\"{}\"", device.display())).collect();
    fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n", names.join(", "));
    fixture.add_volume("logged", 16 * MIB, "");
    fixture.add_volume("healthy", 16 * MIB, "policy = \"write-through\"\n");
    Some((fixture, fuse, devices))
}

/// Writes and flushes a volume.
fn write(fixture: &Fixture, volume: &str, byte: u8) {
    let mut client = Client::connect(&fixture.endpoint(), volume).expect("the volume is served");
    client.write(0, &[byte; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
}

fn is_hung_alert_active(daemon: &Daemon, device: &str) -> bool {
    let status = json(daemon, &["status"]);
    let alerts = status["active_alerts"].as_array().expect("a list");
    alerts.iter().any(|alert| alert["kind"] == "flash-hung" && alert["subject"] == device)
}

/// Waits for the end of a stop while the file system hangs. The kernel keeps the process until it answers.
fn wait_for_stop(fuse: &Fuse, mut daemon: Daemon) {
    wait_for("the stop", || daemon.log().contains("stopped;").then_some(()));
    fuse.resume();
    assert!(daemon.wait().success(), "{}", daemon.log());
}

/// Starts a daemon while a device hangs, then another one when it answers.
fn check_start(hang: impl Fn(&Fuse)) {
    let Some((fixture, fuse, devices)) = fixture() else { return };
    let daemon = fixture.start();
    write(&fixture, "logged", 7);
    daemon.kill();
    let contents = || devices.each_ref().map(|device| fs::read(device).expect("the device answers"));
    let before = contents();
    hang(&fuse);
    let started_at = Instant::now();
    let daemon = fixture.start();
    println!("the healthy volume was served after {:?}", started_at.elapsed());
    write(&fixture, "healthy", 8);
    let shown = show(&daemon, "logged");
    assert_eq!((&shown["state"], &shown["refusal"]), (&"refused".into(), &"dirty-elsewhere".into()), "{shown}");
    let reason = shown["alerts"][0].as_str().expect("a refusal has a reason");
    assert!(reason.contains("f0 does not answer"), "{reason}");
    wait_for("the alert", || is_hung_alert_active(&daemon, &devices[0].display().to_string()).then_some(()));
    daemon.signal("TERM");
    wait_for_stop(&fuse, daemon);
    assert!(contents() == before, "a start without all devices has written to one");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "logged").expect("the volume is served");
    assert_eq!(client.read(0, BLOCK).expect("the read succeeds"), [7; BLOCK]);
    drop(client);
    daemon.stop();
}

#[test]
fn flash_device_hung_before_the_start_counts_as_absent() {
    check_start(Fuse::hang);
}

#[test]
fn flash_device_with_hung_superblocks_counts_as_absent() {
    check_start(|fuse| fuse.hang_at(Operation::Read));
}

/// A daemon whose start reads superblocks that hang, after a killed one that left dirty data in the log.
fn launch_with_hung_superblocks(fixture: &Fixture, fuse: &Fuse) -> Daemon {
    let daemon = fixture.start();
    write(fixture, "logged", 7);
    daemon.kill();
    fuse.hang_at(Operation::Read);
    let daemon = Daemon::launch(fixture);
    wait_for("the hang", || fuse.is_hung().then_some(()));
    daemon
}

#[test]
fn first_signal_ends_a_start_with_a_hung_flash_device() {
    let Some((fixture, fuse, _)) = fixture() else { return };
    let daemon = launch_with_hung_superblocks(&fixture, &fuse);
    daemon.signal("TERM");
    wait_for_stop(&fuse, daemon);
    fixture.start().stop();
}

#[test]
fn volume_added_while_a_start_checks_flash_uses_the_log() {
    let Some((fixture, fuse, _)) = fixture() else { return };
    let daemon = launch_with_hung_superblocks(&fixture, &fuse);
    let backing = "sim://raid5?disks=3&type=nlsas";
    std::thread::scope(|scope| {
        let add = || daemon.try_command(&["volume", "add", "added", "--backing", backing, "--size", "128 MiB"]);
        let added = scope.spawn(add);
        // The command has reached the daemon by then, on most machines.
        std::thread::sleep(Duration::from_millis(300));
        fuse.resume();
        let output = added.join().expect("the command ends");
        assert!(output.status.success(), "{}", text_of(&output));
    });
    let mut client = wait_for("the volume", || Client::connect(&fixture.endpoint(), "added").ok());
    for number in 0..32 {
        client.write(number * 16 * BLOCK as u64, &[7; BLOCK]).expect("the volume works");
    }
    client.flush().expect("the volume works");
    let shown = show(&daemon, "added");
    assert!(shown["flash_dirty_bytes"].as_u64() > Some(0), "{shown}");
    drop(client);
    daemon.stop();
}

#[test]
fn no_flash_file_is_created_beside_a_hung_device() {
    let Some((fixture, fuse, devices)) = fixture() else { return };
    fuse.hang();
    let daemon = fixture.start();
    assert_eq!(show(&daemon, "healthy")["refusal"], "flash-absent", "the device may be of a lost state directory");
    assert!(!fs::exists(&devices[1]).expect("the folder can be read"), "{}", daemon.log());
    daemon.stop();
    fuse.resume();
    let daemon = fixture.start();
    write(&fixture, "logged", 7);
    daemon.stop();
}
