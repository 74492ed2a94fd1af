//! The first flash device: added by command to a daemon whose configuration has no `[flash]`.

use std::fs::{self, File};

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::{Fixture, TARGET};
use e2e::initiator::Initiator;
use serde_json::Value;

use crate::flash::{block, count, device_roles, json, path, read, roles, write};

const MIB: u64 = 1 << 20;
const FLASH_BYTES: u64 = 64 * MIB;
/// Blocks that slow disks write within a second.
const FEW_BLOCKS: u64 = 32;

/// A fixture without `[flash]`, with a volume on slow disks.
fn without_flash() -> Fixture {
    let mut fixture = Fixture::new();
    // Surviving memory would make the log unnecessary.
    fixture.keep_in = "none".to_owned();
    fixture.add_volume_on("v", "sim://raid5?disks=3&type=nlsas", "size = \"128 MiB\"");
    fixture
}

/// Creates an empty flash file; returns its path.
fn create_device(fixture: &Fixture, name: &str) -> String {
    let path = path(fixture, name);
    File::create(&path).and_then(|file| file.set_len(FLASH_BYTES)).expect("the folder can be written");
    path.to_string_lossy().into_owned()
}

/// Waits until pages of the volume are on flash.
fn wait_for_pages(daemon: &Daemon) {
    let pages = || json(daemon, &["flash", "list"])["pages"]["pages"].as_u64();
    wait_for("pages on flash", || (pages() > Some(0)).then_some(()));
}

#[test]
fn flash_devices_added_to_a_running_daemon_cache_pages_alone() {
    let mut fixture = Fixture::with_volume(128 * MIB);
    fixture.keep_in = "none".to_owned();
    let (f0, f1) = (create_device(&fixture, "f0"), create_device(&fixture, "f1"));
    let daemon = fixture.start();
    write(&fixture, FEW_BLOCKS, 1);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &block(0, 2)).expect("the write succeeds");

    let list = json(&daemon, &["flash", "add", &f0]);
    assert_eq!((device_roles(&list), &list["copies"]), (roles(&[("f0", "log")]), &Value::from(1)), "{list}");
    assert_eq!(client.read(0, 4096).expect("the client is still connected"), block(0, 2), "{}", daemon.log());
    let list = json(&daemon, &["flash", "add", &f1]);
    assert_eq!(device_roles(&list), roles(&[("f0", "log"), ("f1", "log")]), "{list}");
    assert!(list["alerts"].to_string().contains("add [flash] with these devices"), "{list}");
    daemon.command(&["volume", "pin", "v", "..4 MiB"]);
    wait_for_pages(&daemon);
    client.write(4096, &block(1, 3)).and_then(|()| client.flush()).expect("the client is still connected");
    let show = json(&daemon, &["volume", "show", "v"]);
    assert_eq!((&show["policy"], &show["flash_dirty_bytes"]), (&"write-back".into(), &Value::from(0)), "{show}");
    daemon.kill();
    drop(client);

    // Only the lost state directory named the devices: the backing is complete all the same.
    fs::rename(fixture.folder.join("state"), fixture.folder.join("lost")).expect("the folder can be written");
    let daemon = fixture.start();
    let image = read(&fixture);
    assert!(count(&image, 1) == FEW_BLOCKS - 1 && image[4096..8192] == block(1, 3), "the backing lacks flushed data");
    assert_eq!(json(&daemon, &["flash", "list"])["in_use"], false);
    daemon.stop();

    // With the devices in the configuration flash answers flushes.
    fs::remove_dir_all(fixture.folder.join("state")).expect("the folder can be written");
    fs::rename(fixture.folder.join("lost"), fixture.folder.join("state")).expect("the folder can be written");
    fixture.tables = format!("[flash]\ndevices = [\"{f0}\", \"{f1}\"]\n");
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!(device_roles(&list), roles(&[("f0", "log"), ("f1", "log")]), "{list}");
    assert!(!list["alerts"].to_string().contains("add [flash] with these devices"), "{list}");
    daemon.stop();
}

#[test]
fn first_flash_device_is_added_beside_a_full_cache() {
    let mut fixture = Fixture::with_volume(128 * MIB);
    fixture.memory = "32 MiB".to_owned();
    let f0 = create_device(&fixture, "f0");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for at in (0..128 * MIB).step_by(MIB as usize) {
        client.read(at, MIB as usize).expect("the read succeeds");
    }
    let list = json(&daemon, &["flash", "add", &f0]);
    assert_eq!(device_roles(&list), roles(&[("f0", "log")]), "{list}");
    daemon.stop();
}

#[test]
fn single_device_by_command_caches_pages_and_takes_no_dirty_data() {
    let fixture = without_flash();
    let f0 = create_device(&fixture, "f0");
    let daemon = fixture.start();
    daemon.command(&["flash", "add", &f0]);
    daemon.command(&["volume", "pin", "v", "..4 MiB"]);
    wait_for_pages(&daemon);
    write(&fixture, 16, 1);
    assert_eq!(json(&daemon, &["flash", "list"])["dirty_bytes"], 0);
    daemon.command(&["volume", "set", "v", "policy=write-through"]);
    daemon.command(&["volume", "set", "v", "policy=write-back"]);
    write(&fixture, 16, 2);
    assert_eq!(json(&daemon, &["flash", "list"])["dirty_bytes"], 0);
    let refused = text_of(&daemon.try_command(&["flash", "remove", &f0]));
    assert!(refused.contains("add another device first"), "{refused}");
    daemon.kill();
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!((&list["in_use"], device_roles(&list)), (&Value::from(true), roles(&[("f0", "log")])), "{list}");
    assert_eq!(count(&read(&fixture), 2), 16);
    daemon.stop();
}

#[test]
fn volume_with_an_initiator_uses_flash_after_a_restart() {
    let mut fixture = without_flash();
    let address = fixture.add_iscsi_target("");
    let (f0, f1) = (create_device(&fixture, "f0"), create_device(&fixture, "f1"));
    let daemon = fixture.start();
    let host = "iqn.2026-11.io.hotset:host";
    let initiator = wait_for("the portal", || Initiator::log_in(address, host, 1, TARGET).ok());
    daemon.command(&["flash", "add", &f0]);
    let list = json(&daemon, &["flash", "add", &f1]);
    assert_eq!((&list["copies"], &list["dirty_bytes"]), (&Value::from(2), &Value::from(0)), "{list}");
    assert!(list["alerts"].to_string().contains("after a restart of the daemon"), "{list}");
    write(&fixture, FEW_BLOCKS, 1);
    let show = json(&daemon, &["volume", "show", "v"]);
    assert_eq!((&show["policy"], &show["flash_dirty_bytes"]), (&"write-back".into(), &Value::from(0)), "{show}");
    daemon.kill();
    drop(initiator);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), FEW_BLOCKS);
    let list = json(&daemon, &["flash", "list"]);
    assert!(!list["alerts"].to_string().contains("after a restart of the daemon"), "{list}");
    daemon.stop();
}

#[test]
fn refused_first_device_leaves_the_daemon_without_flash() {
    let fixture = Fixture::with_volume(16 * MIB);
    let full = path(&fixture, "full");
    fs::write(&full, vec![7; FLASH_BYTES as usize]).expect("the folder can be written");
    let daemon = fixture.start();
    for device in [&full, &path(&fixture, "missing"), &fixture.backing("v")] {
        let refused = daemon.try_command(&["flash", "add", &device.to_string_lossy()]);
        assert!(!refused.status.success(), "{}", text_of(&refused));
    }
    assert_eq!(fs::read(&full).expect("the file exists"), vec![7; FLASH_BYTES as usize]);
    assert_eq!(json(&daemon, &["volume", "show", "v"])["policy"], "write-back");
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["flash", "list"])["in_use"], false);
    daemon.command(&["flash", "add", &full.to_string_lossy(), "--force"]);
    assert_eq!(json(&daemon, &["flash", "list"])["in_use"], true);
    daemon.stop();
}

/// A fixture whose daemon was stopped, with the backing complete, after its first flash device was added; the device.
fn stopped_after_first_device() -> (Fixture, String) {
    let fixture = Fixture::with_volume(16 * MIB);
    let f0 = create_device(&fixture, "f0");
    let daemon = fixture.start();
    daemon.command(&["flash", "add", &f0]);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    (fixture, f0)
}

#[test]
fn unformatted_device_in_the_list_is_formatted_by_the_next_start() {
    let (fixture, _) = stopped_after_first_device();
    // As after a crash between the two steps of the command.
    create_device(&fixture, "f0");
    let daemon = fixture.start();
    assert!(daemon.log().contains("newly created on empty devices"), "{}", daemon.log());
    assert_eq!(json(&daemon, &["volume", "show", "v"])["state"], "active");
    daemon.stop();
}

#[test]
fn missing_device_without_dirty_data_is_removed_from_the_list() {
    let (fixture, f0) = stopped_after_first_device();
    fs::remove_file(&f0).expect("the file exists");
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "v"])["state"], "active");
    assert!(json(&daemon, &["flash", "list"])["alerts"].to_string().contains("flash is not used"));
    let list = json(&daemon, &["flash", "remove", &f0]);
    assert_eq!((&list["in_use"], list["alerts"].as_array().map(Vec::len)), (&Value::from(false), Some(0)), "{list}");
    create_device(&fixture, "f0");
    daemon.command(&["flash", "add", &f0]);
    assert_eq!(json(&daemon, &["flash", "list"])["in_use"], true);
    daemon.stop();
}
