//! Backings that hang when they are opened or attached: at the start, at `volume add`, at a reload and at
//! `check-config`. Other volumes are served meanwhile, and the volume itself as soon as its backing answers.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::fuse::{Fuse, Operation};
use e2e::loop_device::LoopDevice;
use e2e::refusal::{json, show};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Backings on the hung file system: more than the helper threads that one file system may occupy.
const HUNG_BACKINGS: usize = 12;

/// A fixture with a volume `healthy`, and a file system with files `0.img`, `1.img`… that can hang; `None` where no
/// file system may be mounted.
fn fixture(files: usize) -> Option<(Fixture, Fuse)> {
    let mut fixture = Fixture::new();
    let fuse = Fuse::mount(&fixture.folder.join("hangs"))?;
    for number in 0..files {
        let file = File::create(image(&fuse, number));
        file.and_then(|file| file.set_len(4 * MIB)).expect("the file system can be written");
    }
    fixture.add_volume("healthy", 16 * MIB, "");
    Some((fixture, fuse))
}

fn image(fuse: &Fuse, number: usize) -> PathBuf {
    fuse.path().join(format!("{number}.img"))
}

/// Checks that requests of the healthy volume and `hotset status` are answered.
fn assert_daemon_works(fixture: &Fixture, daemon: &Daemon) {
    let mut client = Client::connect(&fixture.endpoint(), "healthy").expect("the volume is served");
    for number in 0..20 {
        let (offset, data) = (number * 3 * BLOCK, vec![number as u8 + 1; BLOCK as usize]);
        client.write(offset, &data).and_then(|()| client.flush()).expect("the write succeeds");
        assert_eq!(client.read(offset, BLOCK as usize).expect("the read succeeds"), data);
    }
    daemon.command(&["status"]);
}

fn alerts_of(daemon: &Daemon, volume: &str) -> Vec<String> {
    let status = json(daemon, &["status"]);
    let alerts = status["active_alerts"].as_array().expect("a list");
    let alerts = alerts.iter().filter(|alert| alert["subject"] == volume);
    alerts.map(|alert| alert["kind"].as_str().expect("a kind").to_owned()).collect()
}

fn is_refused_as_hung(shown: &Value) -> bool {
    shown["state"] == "refused" && shown["refusal"] == "backing-hung"
}

/// Waits until the volume is served, and writes to it.
fn assert_served(fixture: &Fixture, volume: &str) {
    let mut client = wait_for("the volume", || Client::connect(&fixture.endpoint(), volume).ok());
    client.write(0, &[7; BLOCK as usize]).and_then(|()| client.flush()).expect("the backing answers");
}

#[test]
fn hung_backings_at_the_start_refuse_only_their_volumes() {
    let Some((mut fixture, fuse)) = fixture(HUNG_BACKINGS) else { return };
    for number in 0..HUNG_BACKINGS {
        fixture.add_volume_on(&format!("hung{number}"), &image(&fuse, number).display().to_string(), "");
    }
    // A link into the hung file system from a healthy one.
    let link = fixture.folder.join("link.img");
    std::os::unix::fs::symlink(image(&fuse, 0).with_file_name("linked.img"), &link).expect("a link can be created");
    File::create(image(&fuse, 0).with_file_name("linked.img"))
        .and_then(|file| file.set_len(4 * MIB))
        .expect("the file system can be written");
    fixture.add_volume_on("linked", &link.display().to_string(), "");
    fuse.hang();
    let started_at = Instant::now();
    let daemon = fixture.start();
    println!("the healthy volume was served after {:?}", started_at.elapsed());
    assert_daemon_works(&fixture, &daemon);
    for name in ["hung0", "hung11", "linked"] {
        let shown = show(&daemon, name);
        assert!(is_refused_as_hung(&shown), "{shown}\n{}", daemon.log());
    }
    let alerts = wait_for("the alerts", || {
        let alerts = alerts_of(&daemon, "hung3");
        (alerts.len() == 2).then_some(alerts)
    });
    assert_eq!(alerts, ["volume-refused", "backing-hung"]);
    let checked = hotset(&["check-config", &fixture.config().display().to_string()]);
    assert_eq!(checked.status.code(), Some(2), "{}", text_of(&checked));
    assert!(text_of(&checked).contains("0.img does not answer"), "{}", text_of(&checked));
    assert_daemon_works(&fixture, &daemon);
    fuse.resume();
    for name in (0..HUNG_BACKINGS).map(|number| format!("hung{number}")).chain(["linked".to_owned()]) {
        assert_served(&fixture, &name);
    }
    wait_for("no alert", || alerts_of(&daemon, "hung3").is_empty().then_some(()));
    daemon.stop();
}

#[test]
fn signal_ends_daemon_whose_backing_hangs_at_open() {
    let Some((mut fixture, fuse)) = fixture(1) else { return };
    fixture.add_volume_on("hung", &image(&fuse, 0).display().to_string(), "");
    fuse.hang();
    let mut daemon = fixture.start();
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "{}", daemon.log());
    fuse.resume();
}

#[test]
fn volume_add_on_a_hung_path_fails_and_stalls_nothing() {
    let Some((fixture, fuse)) = fixture(1) else { return };
    let daemon = fixture.start();
    fuse.hang();
    let path = image(&fuse, 0).display().to_string();
    std::thread::scope(|scope| {
        let command = scope.spawn(|| daemon.try_command(&["volume", "add", "hung", "--backing", &path]));
        let mut rounds = 0;
        while !command.is_finished() {
            assert_daemon_works(&fixture, &daemon);
            rounds += 1;
        }
        assert!(rounds > 1, "the daemon answers only after the command");
        let output = command.join().expect("the command ends");
        assert!(!output.status.success() && text_of(&output).contains("does not answer"), "{}", text_of(&output));
        assert!(!text_of(&output).contains("retries"), "there is no volume to retry: {}", text_of(&output));
    });
    fuse.resume();
    wait_for("the volume", || {
        daemon.try_command(&["volume", "add", "hung", "--backing", &path]).status.success().then_some(())
    });
    assert_served(&fixture, "hung");
    daemon.stop();
}

#[test]
fn reload_with_a_hung_backing_stalls_nothing() {
    let Some((mut fixture, fuse)) = fixture(1) else { return };
    let daemon = fixture.start();
    fixture.add_volume_on("hung", &image(&fuse, 0).display().to_string(), "");
    fixture.add_volume("later", 4 * MIB, "");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    fuse.hang();
    daemon.signal("HUP");
    wait_for("the refusal", || {
        assert_daemon_works(&fixture, &daemon);
        let shown = daemon.try_command(&["volume", "show", "hung", "--json"]);
        serde_json::from_slice(&shown.stdout).is_ok_and(|shown| is_refused_as_hung(&shown)).then_some(())
    });
    assert_served(&fixture, "later");
    fuse.resume();
    assert_served(&fixture, "hung");
    daemon.stop();
}

/// Writes a configuration with the volume `slow` and its further keys, and perhaps with `other`.
fn write_volumes(fixture: &mut Fixture, slow: &str, lines: &str, with_other: bool) {
    fixture.clear_volumes();
    fixture.add_volume_on("slow", slow, lines);
    if with_other {
        let path = fixture.backing("other").display().to_string();
        fixture.add_volume_on("other", &path, "size = \"4 MiB\"");
    }
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
}

/// The first reload waits for a destage. Meanwhile the second one's file no longer has a volume, whose disk may have
/// another use by then.
#[test]
fn reload_that_waits_does_not_add_a_removed_volume_again() {
    let Some((mut fixture, fuse)) = fixture(1) else { return };
    let slow = image(&fuse, 0).display().to_string();
    write_volumes(&mut fixture, &slow, "", true);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "slow").expect("the volume is served");
    // A whole block needs no read of the backing.
    fuse.hang();
    client.write(0, &[7; BLOCK as usize]).expect("memory has space");
    write_volumes(&mut fixture, &slow, "policy = \"write-through\"", true);
    daemon.signal("HUP");
    wait_for("the change", || (json(&daemon, &["volume", "show", "slow"])["policy"] == "write-through").then_some(()));
    write_volumes(&mut fixture, &slow, "policy = \"write-through\"", false);
    daemon.signal("HUP");
    wait_for("the second reload", || {
        (daemon.log().matches("reading the configuration again").count() == 2).then_some(())
    });
    wait_for("the second reload's end", || daemon.log().contains("other: removed").then_some(()));
    fuse.resume();
    wait_for("the first reload's end", || daemon.log().contains("a newer reload applies the rest").then_some(()));
    assert!(!daemon.log().contains("other: added"), "{}", daemon.log());
    assert!(!daemon.try_command(&["volume", "show", "other"]).status.success());
    daemon.stop();
}

#[test]
fn no_file_is_created_after_its_command_has_failed() {
    let Some((fixture, fuse)) = fixture(0) else { return };
    let daemon = fixture.start();
    fuse.hang();
    let path = fuse.path().join("new.img");
    let output =
        daemon.try_command(&["volume", "add", "new", "--backing", &path.display().to_string(), "--size", "4 MiB"]);
    assert!(!output.status.success(), "{}", text_of(&output));
    fuse.resume();
    // The abandoned attempt has ended when another one may begin.
    let missing = fuse.path().join("new.img").display().to_string();
    wait_for("an answer", || {
        let output = daemon.try_command(&["volume", "add", "new", "--backing", &missing]);
        text_of(&output).contains("does not exist").then_some(())
    });
    assert!(!fs::exists(&path).expect("the file system answers"), "a failed command has created a file");
    daemon.stop();
}

/// A volume `hung`; only the persisted memory of a killed daemon has the newest content of its first block.
fn fixture_with_data_in_memory() -> Option<(Fixture, Fuse)> {
    let (mut fixture, fuse) = fixture(1)?;
    // The content identifies the backing, because its file system has no birth times.
    fs::write(image(&fuse, 0), vec![5; 4 * MIB as usize]).expect("the file system can be written");
    fixture.add_volume_on("hung", &image(&fuse, 0).display().to_string(), "");
    let daemon = fixture.start();
    // Without a flush the data is only in memory.
    fuse.hang();
    let mut client = Client::connect(&fixture.endpoint(), "hung").expect("the volume is served");
    client.write(0, &[7; BLOCK as usize]).expect("memory has space");
    daemon.kill();
    fuse.resume();
    Some((fixture, fuse))
}

#[test]
fn hang_after_identification_refuses_only_its_volume() {
    let Some((mut fixture, fuse)) = fixture_with_data_in_memory() else { return };
    // The next daemon writes the recovered data to the backing, because its own memory is not persisted.
    fixture.keep_in = "none".to_owned();
    fuse.hang_at(Operation::Write);
    let daemon = fixture.start();
    assert_daemon_works(&fixture, &daemon);
    let shown = show(&daemon, "hung");
    assert!(is_refused_as_hung(&shown), "{shown}\n{}", daemon.log());
    assert!(fuse.is_hung(), "the backing has answered its identification");
    daemon.command(&["volume", "pause", "healthy"]);
    let output = daemon.try_command(&["volume", "adopt", "hung"]);
    assert!(text_of(&output).contains("another change"), "{}", text_of(&output));
    fuse.resume();
    let mut client = wait_for("the volume", || {
        let is_served = show(&daemon, "hung")["state"] == "active";
        is_served.then(|| Client::connect(&fixture.endpoint(), "hung").expect("the volume is served"))
    });
    assert_eq!(client.read(0, BLOCK as usize).expect("the read succeeds"), [7; BLOCK as usize]);
    drop(client);
    daemon.stop();
}

#[test]
fn stop_during_a_hung_attach_keeps_the_volumes_data() {
    let Some((mut fixture, fuse)) = fixture_with_data_in_memory() else { return };
    let kept_in = std::mem::replace(&mut fixture.keep_in, "none".to_owned());
    fuse.hang_at(Operation::Write);
    let mut daemon = fixture.start();
    assert!(is_refused_as_hung(&show(&daemon, "hung")), "{}", daemon.log());
    daemon.signal("TERM");
    wait_for("the end of the stop", || daemon.log().contains("stopped, but a backing did not answer").then_some(()));
    // The kernel keeps the process until the file system answers.
    fuse.resume();
    assert_eq!(daemon.wait().code(), Some(1));
    fixture.keep_in = kept_in;
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "hung").expect("the volume is served");
    assert_eq!(client.read(0, BLOCK as usize).expect("the read succeeds"), [7; BLOCK as usize]);
    drop(client);
    daemon.stop();
}

#[test]
fn retry_of_a_hung_block_device_is_refused_as_hung() {
    let Some((mut fixture, fuse)) = fixture(1) else { return };
    let device = match LoopDevice::attach_existing(&image(&fuse, 0), 512) {
        Ok(device) => device,
        Err(reason) => {
            // Written to the real stderr, past the capture of a passing test's output, because the skip must be
            // visible.
            let _ = writeln!(std::io::stderr(), "SKIPPED: a hung block device: no loop device can be made ({reason})");
            return;
        }
    };
    fixture.add_volume_on("hung", &device.path().display().to_string(), "");
    // The device is opened, and the reads of its identification hang.
    fuse.hang_at(Operation::Read);
    let daemon = fixture.start();
    assert!(is_refused_as_hung(&show(&daemon, "hung")), "{}", daemon.log());
    let output = wait_for("an attempt", || {
        let output = daemon.try_command(&["volume", "adopt", "hung"]);
        (!text_of(&output).contains("another change")).then_some(output)
    });
    assert!(text_of(&output).contains("does not answer"), "{}", text_of(&output));
    let shown = show(&daemon, "hung");
    assert!(is_refused_as_hung(&shown), "{shown}");
    fuse.resume();
    assert_served(&fixture, "hung");
    daemon.stop();
}
