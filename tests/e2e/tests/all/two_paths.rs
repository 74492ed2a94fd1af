//! Two paths to one disk, and volumes on exports of their own daemon: refused, with both names.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::loop_device::LoopDevice;

use crate::flash::set_flash_devices;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 64 * MIB;

/// A file in the fixture's folder and a loop device of it. Prints `SKIPPED` and returns `None` where loop devices are
/// not permitted.
fn loop_device(fixture: &Fixture) -> Option<(std::path::PathBuf, LoopDevice)> {
    let file = fixture.folder.join("shared.img");
    match LoopDevice::attach(&file, VOLUME_BYTES, 512) {
        Ok(device) => Some((file, device)),
        Err(reason) => {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED: two paths to one disk: no loop device can be made ({reason})");
            None
        }
    }
}

fn text_of_path(path: &Path) -> String {
    path.display().to_string()
}

/// The daemon's log line on a volume that it does not serve.
fn refusal(daemon: &Daemon, volume: &str) -> String {
    let start = format!("volume {volume} is not served: ");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains(&start));
    line.unwrap_or_else(|| panic!("{volume} is served:\n{log}")).to_owned()
}

#[test]
fn loop_device_of_a_backing_is_refused_as_backing() {
    let mut fixture = Fixture::new();
    let Some((file, device)) = loop_device(&fixture) else { return };
    fixture.add_volume_on("a", &text_of_path(&file), "");
    fixture.add_volume_on("b", &text_of_path(device.path()), "");
    let daemon = fixture.start();
    let line = refusal(&daemon, "b");
    assert!(line.contains(&text_of_path(&file)) && line.contains(&text_of_path(device.path())), "{line}");
    assert!(line.contains("which volume a uses"), "{line}");
    let added = daemon.try_command(&["volume", "add", "c", "--backing", &text_of_path(device.path())]);
    assert!(!added.status.success() && text_of(&added).contains("which volume a uses"), "{}", text_of(&added));
    // After the first volume is removed the second one can be added.
    daemon.command(&["volume", "remove", "a"]);
    daemon.signal("HUP");
    wait_for("the other one", || Client::connect(&fixture.endpoint(), "b").ok());
    daemon.stop();
}

#[test]
fn loop_device_of_a_backing_is_refused_as_flash_device() {
    let mut fixture = Fixture::new();
    let Some((file, device)) = loop_device(&fixture) else { return };
    let other = fixture.folder.join("other");
    set_flash_devices(&mut fixture, &[device.path(), &other]);
    fixture.add_volume_on("a", &text_of_path(&file), "");
    fixture.add_volume("b", MIB, "");
    let daemon = fixture.start();
    let line = refusal(&daemon, "a");
    assert!(line.contains(&text_of_path(device.path())) && line.contains("which the flash log uses"), "{line}");
    // `flash add` does not accept a backing as flash device either.
    let added = daemon.try_command(&["flash", "add", &text_of_path(&fixture.backing("b"))]);
    let text = text_of(&added);
    assert!(!added.status.success() && text.contains("on the same storage"), "{text}");
    daemon.stop();
}

#[test]
fn second_name_of_a_backing_is_refused_at_once() {
    let mut fixture = Fixture::new();
    fixture.add_volume("a", MIB, "");
    let (hard_link, symlink) = (fixture.folder.join("hard"), fixture.folder.join("soft"));
    fs::hard_link(fixture.backing("a"), &hard_link).expect("both are in one folder");
    std::os::unix::fs::symlink(fixture.backing("a"), &symlink).expect("both are in one folder");
    fixture.add_volume_on("b", &text_of_path(&hard_link), "");
    let daemon = fixture.start();
    let line = refusal(&daemon, "b");
    assert!(line.contains("which volume a uses"), "{line}");
    let added = daemon.try_command(&["volume", "add", "c", "--backing", &text_of_path(&symlink)]);
    assert!(!added.status.success() && text_of(&added).contains("which volume a uses"), "{}", text_of(&added));
    daemon.stop();
}

#[test]
fn two_files_and_two_loop_devices_are_four_disks() {
    let mut fixture = Fixture::new();
    let Some((_, first)) = loop_device(&fixture) else { return };
    let Ok(second) = LoopDevice::attach(&fixture.folder.join("second.img"), VOLUME_BYTES, 512) else { return };
    fixture.add_volume("a", MIB, "");
    fixture.add_volume("b", MIB, "");
    fixture.add_volume_on("c", &text_of_path(first.path()), "");
    fixture.add_volume_on("d", &text_of_path(second.path()), "");
    let daemon = fixture.start();
    for volume in ["a", "b", "c", "d"] {
        Client::connect(&fixture.endpoint(), volume)
            .unwrap_or_else(|error| panic!("{volume}: {error}:\n{}", daemon.log()));
    }
    daemon.stop();
}

#[test]
fn volume_on_an_export_of_its_own_daemon_is_refused() {
    let own_export = "export of this daemon itself";
    let mut fixture = Fixture::new();
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free").port();
    fixture.listen.push(format!("tcp:0.0.0.0:{port}"));
    fixture.add_volume("a", MIB, "");
    let (symlink, hard_link) = (fixture.folder.join("link.sock"), fixture.folder.join("twin.sock"));
    std::os::unix::fs::symlink(fixture.socket(), &symlink).expect("the folder can be written");
    for (name, backing) in [
        ("b", fixture.uri("a")),
        ("c", format!("nbd+unix:///a?socket={}", symlink.display())),
        ("d", format!("nbd://localhost:{port}/a")),
    ] {
        fixture.add_volume_on(name, &backing, "");
    }
    let daemon = fixture.start();
    ["b", "c"].iter().for_each(|name| assert!(refusal(&daemon, name).contains(own_export), "{}", daemon.log()));
    assert!(refusal(&daemon, "d").contains(own_export), "{}", daemon.log());
    // Another name of the same socket: only the connection itself shows the identity.
    fs::hard_link(fixture.socket(), &hard_link).expect("the folder can be written");
    let uri = format!("nbd+unix:///a?socket={}", hard_link.display());
    let added = daemon.try_command(&["volume", "add", "e", "--backing", &uri]);
    assert!(
        !added.status.success() && text_of(&added).contains("belongs to this daemon itself"),
        "{}",
        text_of(&added)
    );
    daemon.stop();
}
