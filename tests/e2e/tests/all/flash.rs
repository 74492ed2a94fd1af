//! The flash log under the real daemon: data left there over a stop, refusals with their messages, and data that must
//! never return.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::loop_device::LoopDevice;
use e2e::random::{Random, seed};
use e2e::refusal::volume_refusal;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};
use serde_json::Value;

use crate::kill::kill_rounds;
use crate::state::Obstacle;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Number of written blocks, one in sixteen of the volume: more than the disks of [`on_slow_disks`] can write during a
/// stop.
pub const BLOCKS: u64 = 2048;

/// A fixture with a volume on slow disks, whose log lies on `devices`; `lines` are further keys.
fn on_slow_disks(devices: &[&str], lines: &str) -> Fixture {
    let mut fixture = Fixture::new();
    // Surviving memory would make the log unnecessary.
    fixture.keep_in = "none".to_owned();
    fixture.add_volume_on("v", "sim://raid5?disks=3&type=nlsas", "size = \"128 MiB\"");
    set_flash(&mut fixture, devices, lines);
    fixture
}

fn set_flash(fixture: &mut Fixture, devices: &[&str], lines: &str) {
    let devices: Vec<_> = devices.iter().map(|name| format!("\"{}\"", fixture.folder.join(name).display())).collect();
    fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n{lines}\n", devices.join(", "));
}

fn with_two_devices() -> Fixture {
    on_slow_disks(&["f0", "f1"], "")
}

pub fn block(number: u64, generation: u8) -> Vec<u8> {
    let mut block = vec![generation; BLOCK as usize];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// Writes scattered blocks, then flushes.
pub fn write(fixture: &Fixture, blocks: u64, generation: u8) {
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for number in 0..blocks {
        client.write(number * 16 * BLOCK, &block(number, generation)).expect("the write succeeds");
    }
    client.flush().expect("the flush succeeds");
}

/// Number of blocks in `image` that hold `generation` where [`write`] wrote.
pub fn count(image: &[u8], generation: u8) -> u64 {
    let holds = |number: &u64| {
        let offset = (number * 16 * BLOCK) as usize;
        image[offset..offset + BLOCK as usize] == block(*number, generation)
    };
    (0..BLOCKS).filter(holds).count() as u64
}

pub fn read(fixture: &Fixture) -> Vec<u8> {
    Client::connect(&fixture.endpoint(), "v").and_then(|mut client| client.read_all()).expect("the read succeeds")
}

/// Content of the file under the modelled array.
fn backing(fixture: &Fixture) -> Vec<u8> {
    fs::read(fixture.folder.join("state/sim/v.img")).expect("the backing exists")
}

pub fn json(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(&[args, &["--json"]].concat())).expect("valid JSON")
}

pub fn path(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.folder.join(name)
}

/// Leaves a stopped daemon with data on flash that its backing lacks.
fn stop_dirty(fixture: &Fixture) {
    let daemon = fixture.start();
    write(fixture, BLOCKS, 1);
    daemon.stop();
    assert!(count(&backing(fixture), 1) < BLOCKS, "the stop destaged everything");
}

#[test]
fn stop_leaves_dirty_data_on_flash_for_the_next_start() {
    let fixture = with_two_devices();
    let daemon = fixture.start();
    assert!(daemon.log().contains("newly created on empty devices"), "{}", daemon.log());
    write(&fixture, BLOCKS, 1);
    let show = json(&daemon, &["volume", "show", "v"]);
    assert!(show["flash_dirty_bytes"].as_u64() > Some(0), "{show}");
    daemon.signal("TERM");
    let mut daemon = daemon;
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(daemon.log().contains("are in the flash log and not on the backing"), "{}", daemon.log());
    assert!(count(&backing(&fixture), 1) < BLOCKS, "the stop destaged everything");
    let daemon = fixture.start();
    assert!(!daemon.log().contains("not cleanly stopped"), "{}", daemon.log());
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    write(&fixture, 100, 2);
    let output = daemon.command(&["stop", "--destage"]);
    assert!(output.contains("the backings are complete"), "{output}");
    let image = backing(&fixture);
    assert_eq!((count(&image, 2), count(&image, 1)), (100, BLOCKS - 100));
    drop(daemon);
    // No data is left on flash, so the volume is served without it.
    fs::remove_file(path(&fixture, "f0"))
        .and_then(|()| fs::remove_file(path(&fixture, "f1")))
        .expect("the files exist");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 2), 100);
    daemon.stop();
}

/// A stop reports complete backings only for volumes without records in the log: another program may then change the
/// disk, and the next start writes nothing over the change.
#[test]
fn complete_backing_keeps_later_changes_by_other_programs() {
    let mut fixture = with_two_devices();
    fixture.add_volume("other", 4 * MIB, "");
    stop_dirty(&fixture);
    // Data of the volume that is not served keeps the log in use.
    fixture.clear_volumes();
    let image = fixture.backing("other");
    fixture.add_volume_on("other", &image.to_string_lossy(), "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "other").expect("the volume is served");
    (0..256).for_each(|block| client.write(block * 4096, &[1; 4096]).expect("the write succeeds"));
    client.flush().expect("the flush succeeds");
    drop(client);
    wait_for("the destage", || {
        let show = json(&daemon, &["volume", "show", "other"]);
        let dirty = ["dirty_bytes", "written_bytes", "flash_dirty_bytes"].map(|key| show[key].as_u64());
        (dirty == [Some(0); 3]).then_some(())
    });
    let output = daemon.command(&["stop"]);
    drop(daemon);
    // The newest destaged blocks, which the next start compares, stay as they are.
    let mut content = fs::read(&image).expect("the image exists");
    content[..64 * BLOCK as usize].fill(2);
    fs::write(&image, &content).expect("the image can be written");
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "other"])["state"], "active");
    // The stop fails, because v is not served.
    let stopped = daemon.try_command(&["stop", "--destage"]);
    assert!(!stopped.status.success(), "{}", text_of(&stopped));
    assert!(fs::read(&image).expect("the image exists") == content, "the change was overwritten");
    assert!(output.contains("but not those of volumes that are not served: v."), "{output}");
}

#[test]
fn missing_devices_refuse_only_volumes_with_data_on_flash() {
    let mut fixture = with_two_devices();
    fixture.add_volume("other", 4 * MIB, "");
    stop_dirty(&fixture);
    fs::rename(path(&fixture, "f1"), path(&fixture, "away")).expect("the file exists");
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "v"])["state"], "refused");
    assert_eq!(json(&daemon, &["volume", "show", "other"])["state"], "active");
    let log = daemon.log();
    assert!(log.contains("device number 1 of the flash store was in service"), "{log}");
    // The other device has the whole log, so no data has to be given up, and a new file would not help.
    assert!(log.contains("f0, which has the whole log") && log.contains("allow_single_copy = true"), "{log}");
    assert!(!log.contains("--give-up") && !log.contains("fallocate"), "{log}");
    assert!(!path(&fixture, "f1").exists(), "a file of a known store was created again");
    let status = json(&daemon, &["status"]);
    assert_eq!(status["flash"]["in_use"], false, "{status}");
    let is_of_v = |alert: &&Value| alert["id"] == "volume-refused:v";
    let alert = wait_for("the alert", || {
        json(&daemon, &["status"])["active_alerts"].as_array().into_iter().flatten().find(is_of_v).cloned()
    });
    let remedy = alert["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains("if the cause is flash") && remedy.contains("only a restart"), "{remedy}");
    daemon.stop();
    fs::rename(path(&fixture, "away"), path(&fixture, "f1")).expect("the file exists");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn lost_files_of_a_known_store_are_not_created_again() {
    let mut fixture = with_two_devices();
    stop_dirty(&fixture);
    for name in ["f0", "f1"] {
        fs::rename(path(&fixture, name), path(&fixture, &format!("{name}.away"))).expect("the file exists");
    }
    let checked = e2e::daemon::hotset(&["check-config", &fixture.config().to_string_lossy()]);
    let text = text_of(&checked);
    assert_eq!(checked.status.code(), Some(2), "{text}");
    assert!(text.contains("is not created again") && text.contains("restore it"), "{text}");
    let daemon = fixture.start();
    let log = daemon.log();
    assert!(log.contains("flash is not used") && log.contains("f0 does not exist, and is a device of"), "{log}");
    assert!(log.contains("restore the files"), "{log}");
    assert!(["f0", "f1"].iter().all(|name| !path(&fixture, name).exists()), "a file was created");
    assert_eq!(json(&daemon, &["volume", "show", "v"])["refusal"], "dirty-elsewhere");
    daemon.stop();
    // Without `size` the result is the same.
    fixture.tables = fixture.tables.replace("size = \"64 MiB\"", "");
    let daemon = fixture.start();
    let log = daemon.log();
    assert!(log.contains("f1 does not exist, and is a device of"), "{log}");
    daemon.stop();
    for name in ["f0", "f1"] {
        fs::rename(path(&fixture, &format!("{name}.away")), path(&fixture, name)).expect("the file was moved");
    }
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn lost_device_is_dropped_by_configuring_the_other_alone() {
    let mut fixture = with_two_devices();
    stop_dirty(&fixture);
    fs::remove_file(path(&fixture, "f0")).expect("the file exists");
    set_flash(&mut fixture, &["f1"], "allow_single_copy = true");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!((&list["copies"], &list["devices"][0]["state"]), (&Value::from(1), &Value::from("lost")), "{list}");
    daemon.stop();
}

#[test]
fn single_copy_forces_write_through_unless_allowed() {
    let mut fixture = with_two_devices();
    stop_dirty(&fixture);
    set_flash(&mut fixture, &["f1"], "allow_single_copy = true");
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "v"])["policy"], "write-back");
    daemon.stop();
    // The other device is stale now, even if it is the only configured one.
    set_flash(&mut fixture, &["f0"], "allow_single_copy = true");
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "v"])["state"], "refused");
    assert!(daemon.log().contains("hold an older copy of flash store"), "{}", daemon.log());
    daemon.stop();
    set_flash(&mut fixture, &["f0", "f1"], "");
    let daemon = fixture.start();
    wait_for("write-through", || (json(&daemon, &["volume", "show", "v"])["policy"] == "write-through").then_some(()));
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    let status = json(&daemon, &["status"]);
    assert_eq!(status["flash"]["devices"][0]["state"], "stale", "{status}");
    assert!(status["alerts"].to_string().contains("run as write-through"), "{status}");
    let show = json(&daemon, &["volume", "show", "v"]);
    assert!(show["alerts"].to_string().contains("fewer than two flash devices"), "{show}");
    let refused = daemon.try_command(&["volume", "set", "v", "policy=write-back"]);
    assert!(text_of(&refused).contains("fewer than two flash devices"), "{}", text_of(&refused));
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&backing(&fixture), 1), BLOCKS);
}

#[test]
fn single_device_is_unused_unless_allowed() {
    let mut fixture = on_slow_disks(&["f0"], "");
    let daemon = fixture.start();
    let status = text_of(&daemon.try_command(&["status"]));
    assert!(status.contains("allow_single_copy is not set"), "{status}");
    write(&fixture, 4, 1);
    daemon.stop();
    assert_eq!(count(&backing(&fixture), 1), 4, "without flash a stop destages");
    set_flash(&mut fixture, &["f0"], "allow_single_copy = true");
    let daemon = fixture.start();
    let status = text_of(&daemon.try_command(&["status"]));
    assert!(status.contains("acknowledged with a single copy"), "{status}");
    daemon.stop();
}

#[test]
fn devices_with_foreign_content_are_not_written() {
    let fixture = with_two_devices();
    fs::write(path(&fixture, "f1"), vec![7; 1 << 23]).expect("the folder can be written");
    let daemon = fixture.start();
    let log = daemon.log();
    assert!(log.contains("flash is not used") && log.contains("f1 holds something at byte 0"), "{log}");
    write(&fixture, 4, 1);
    daemon.stop();
    assert!(
        fs::read(path(&fixture, "f1")).expect("the file exists").iter().all(|byte| *byte == 7),
        "the device was written to"
    );
    assert!(
        fs::read(path(&fixture, "f0")).expect("the file exists").iter().all(|byte| *byte == 0),
        "the device was written to"
    );
}

#[test]
fn accepted_loss_never_returns_over_newer_data() {
    let fixture = with_two_devices();
    stop_dirty(&fixture);
    for name in ["f0", "f1"] {
        fs::rename(path(&fixture, name), path(&fixture, &format!("{name}.away"))).expect("the file exists");
        // An empty file is the choice for a new store.
        File::create(path(&fixture, name)).expect("the folder can be written");
    }
    let daemon = fixture.start();
    assert!(Client::connect(&fixture.endpoint(), "v").is_err(), "data that is only on flash is missing");
    let before = count(&backing(&fixture), 1);
    let unnamed = text_of(&daemon.try_command(&["volume", "adopt", "v"]));
    let data = unnamed.split("--give-up ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
    let data = data.unwrap_or_else(|| panic!("the refusal does not name the loss: {unnamed}"));
    daemon.command(&["volume", "adopt", "v", "--give-up", data]);
    assert_eq!(count(&read(&fixture), 1), before);
    write(&fixture, BLOCKS, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    for name in ["f0", "f1"] {
        fs::rename(path(&fixture, &format!("{name}.away")), path(&fixture, name)).expect("the file exists");
    }
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 2), BLOCKS);
    let list = text_of(&daemon.try_command(&["flash", "list"]));
    assert!(!list.contains("not served"), "data that was given up counts as dirty: {list}");
    daemon.stop();
}

#[test]
fn volume_with_data_on_flash_stays_write_back_until_destaged() {
    let fixture = with_two_devices();
    stop_dirty(&fixture);
    let text = fixture.config_text().replace("name = \"v\"", "name = \"v\"\npolicy = \"none\"");
    fs::write(path(&fixture, "none.toml"), &text).expect("the folder can be written");
    let refused = Daemon::launch_with(&fixture, &path(&fixture, "none.toml"));
    wait_for("the refusal", || refused.log().contains("attach it with policy write-back").then_some(()));
    refused.stop();
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.command(&["volume", "set", "v", "policy=none"]);
    assert_eq!(count(&backing(&fixture), 1), BLOCKS);
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(json(&daemon, &["volume", "show", "v"])["policy"], "none");
    daemon.stop();
}

#[test]
fn nonexistent_flash_device_is_named_with_a_remedy() {
    let mut fixture = with_two_devices();
    fixture.tables = fixture.tables.replace("size = \"64 MiB\"", "");
    File::create(path(&fixture, "f0")).and_then(|file| file.set_len(64 * MIB)).expect("the folder can be written");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let checked = e2e::daemon::hotset(&["check-config", &fixture.config().to_string_lossy()]);
    let text = text_of(&checked);
    assert_eq!(checked.status.code(), Some(2), "{text}");
    assert!(text.contains("f1 does not exist") && text.contains("fallocate -l 16G"), "{text}");
    assert!(!text.contains("f0 does not exist"), "{text}");
    let daemon = fixture.start();
    let (log, absent) = (daemon.log(), path(&fixture, "f1"));
    assert!(log.contains(&format!("flash is not used: the flash device {} does not exist", absent.display())), "{log}");
    assert!(log.contains("f0 is not a member of a flash store") && !log.contains("format it"), "{log}");
    let refusal = volume_refusal(&fixture, &daemon, "flash-absent");
    assert!(refusal.contains("f1 does not exist") && !refusal.contains("f0"), "{refusal}");
    daemon.stop();
    File::create(path(&fixture, "f1")).and_then(|file| file.set_len(64 * MIB)).expect("the folder can be written");
    let daemon = fixture.start();
    write(&fixture, 4, 1);
    daemon.stop();
}

/// Loop devices that can fail. Prints `SKIPPED` and returns `None` where loop devices are not permitted.
pub fn failing_devices(fixture: &Fixture, names: &[&str]) -> Option<Vec<LoopDevice>> {
    let devices = names.iter().map(|name| LoopDevice::attach(&path(fixture, name), 64 * MIB, 512)).collect();
    if let Err(reason) = &devices {
        // Written to the real stderr, past the capture of a passing test's output, because the skip must be visible.
        let _ = writeln!(std::io::stderr(), "SKIPPED: failing flash devices: no loop device can be made ({reason})");
    }
    devices.ok()
}

/// Configures these flash devices.
pub fn set_flash_devices(fixture: &mut Fixture, devices: &[&Path]) {
    let devices: Vec<_> = devices.iter().map(|device| format!("\"{}\"", device.display())).collect();
    fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n", devices.join(", "));
}

/// One device fails every request from a random time on, the daemon is killed, and the device is missing at the next
/// start. Returns false if no device can be made to fail.
fn check_failed_device(random: &mut Random) -> bool {
    const BYTES: u64 = 16 * MIB;
    let mut fixture = Fixture::with_volume(BYTES);
    fixture.keep_in = "none".to_owned();
    let Some(devices) = failing_devices(&fixture, &["loop"]) else { return false };
    let file = path(&fixture, "f1");
    set_flash_devices(&mut fixture, &[devices[0].path(), &file]);
    let (history, stop, endpoint) =
        (Mutex::new(WriteHistory::new(BYTES, false)), AtomicBool::new(false), fixture.endpoint());
    let daemon = fixture.start();
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed: random.draw() };
    let mut faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_millis(100 + random.below(300)));
        devices[0].fail();
        wait_for("the message about the device", || daemon.log().contains("is out of service").then_some(()));
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        daemon.kill();
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    let failed_path = devices[0].path().display().to_string();
    drop(devices);
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    let lost = list["devices"].as_array().into_iter().flatten().find(|device| device["state"] == "lost");
    assert_eq!(lost.map(|device| &device["device"]), Some(&Value::from(failed_path)), "{list}");
    let mut history = history.into_inner().expect("no writer panicked");
    assert!(history.sequence() > 100, "only {} writes: the writer is broken", history.sequence());
    faults.extend(history.check_after_crash(&read(&fixture)));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
    wait_for("write-through", || (json(&daemon, &["volume", "show", "v"])["policy"] == "write-through").then_some(()));
    daemon.stop();
    let faults = history.check_after_crash(&fs::read(fixture.backing("v")).expect("the backing exists"));
    assert!(faults.is_empty(), "after the stop: {faults:?}");
    true
}

#[test]
fn failed_and_missing_device_loses_no_flushed_write() {
    let mut random = Random::new(seed("flash_device_fails"));
    for round in 0..kill_rounds() {
        if !check_failed_device(&mut random) {
            return;
        }
        println!("round {round}: nothing was lost");
    }
}

#[test]
fn stop_without_flash_devices_destages_everything() {
    let mut fixture = with_two_devices();
    let Some(devices) = failing_devices(&fixture, &["l0", "l1"]) else { return };
    set_flash_devices(&mut fixture, &[devices[0].path(), devices[1].path()]);
    let daemon = fixture.start();
    write(&fixture, BLOCKS / 2, 1);
    devices.iter().for_each(LoopDevice::fail);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write((BLOCKS - 1) * 16 * BLOCK, &block(BLOCKS - 1, 1)).expect("memory has space");
    // The flush may succeed or fail, but its result must be true.
    let flushed = client.flush();
    println!("a flush without devices: {flushed:?}");
    drop(client);
    daemon.stop();
    assert_eq!(count(&backing(&fixture), 1), BLOCKS / 2 + 1);
    let daemon = fixture.start();
    assert!(daemon.log().contains("flash is not used"), "{}", daemon.log());
    assert_eq!(count(&read(&fixture), 1), BLOCKS / 2 + 1);
    daemon.stop();
}

#[test]
fn stop_without_flash_devices_ends_only_with_its_record() {
    let mut fixture = with_two_devices();
    let Some(devices) = failing_devices(&fixture, &["l0", "l1"]) else { return };
    set_flash_devices(&mut fixture, &[devices[0].path(), devices[1].path()]);
    let mut daemon = fixture.start();
    write(&fixture, 8, 1);
    let id_before = json(&daemon, &["volume", "show", "v"])["incarnation"].clone();
    devices.iter().for_each(LoopDevice::fail);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(8 * 16 * BLOCK, &block(8, 1)).expect("memory has space");
    // The flush detects the failure of the devices, whatever its result is.
    let flushed = client.flush();
    println!("a flush without devices: {flushed:?}");
    let is_lost = |device: &LoopDevice| {
        daemon.log().contains(&format!("flash device {} is out of service: ", device.path().display()))
    };
    wait_for("the failure of both devices", || devices.iter().all(is_lost).then_some(()));
    // Destage records that the map of clean pages is void, so that the stop has no need to.
    println!("a destage without devices: {}", text_of(&daemon.try_command(&["volume", "flush", "v"])));
    let obstacle = Obstacle::create(&fixture);
    client.write(9 * 16 * BLOCK, &block(9, 1)).expect("memory has space");
    drop(client);
    daemon.signal("TERM");
    wait_for("the failed record", || daemon.log().contains("could not be recorded").then_some(()));
    assert!(daemon.is_running(), "{}", daemon.log());
    obstacle.remove();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(count(&backing(&fixture), 1), 10);
    let state = fs::read(path(&fixture, "state/state.json")).expect("the state file exists");
    let state: Value = serde_json::from_slice(&state).expect("valid JSON");
    let record = &state["volumes"][0];
    assert!(record["clean"] == true && record["dirty_on_flash"].is_null(), "{record}");
    assert_ne!(record["incarnation"], id_before, "the log's data belongs to no volume");
}

/// File names and roles of the devices in the output of `hotset flash list`.
pub fn device_roles(list: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("UTF-8 text").rsplit('/').next().expect("a name").to_owned();
    let devices = list["devices"].as_array().expect("a list");
    devices.iter().map(|device| (text(&device["device"]), text(&device["role"]))).collect()
}

pub fn roles(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, role)| ((*name).to_owned(), (*role).to_owned())).collect()
}

#[test]
fn device_changes_under_load_survive_a_kill() {
    const BYTES: u64 = 16 * MIB;
    let mut fixture = Fixture::with_volume(BYTES);
    fixture.keep_in = "none".to_owned();
    set_flash(&mut fixture, &["f0", "f1"], "");
    let seed = seed("flash_devices_come_and_go");
    let (history, stop, endpoint) =
        (Mutex::new(WriteHistory::new(BYTES, false)), AtomicBool::new(false), fixture.endpoint());
    let daemon = fixture.start();
    let device_path = |name: &str| path(&fixture, name).to_string_lossy().into_owned();
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed };
    let mut faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_millis(100));
        let list = json(&daemon, &["flash", "replace", &device_path("f0"), &device_path("f2")]);
        assert_eq!(device_roles(&list), roles(&[("f1", "log"), ("f2", "log")]), "{list}");
        let list = json(&daemon, &["flash", "add", &device_path("f0")]);
        assert_eq!(device_roles(&list), roles(&[("f1", "log"), ("f2", "log"), ("f0", "pages")]), "{list}");
        let refused = text_of(&daemon.try_command(&["flash", "add", &device_path("f0")]));
        assert!(refused.contains("f0 is flash device 3 already, in service"), "{refused}");
        let list = json(&daemon, &["flash", "remove", &device_path("f1")]);
        assert_eq!(device_roles(&list), roles(&[("f2", "log"), ("f0", "log")]), "{list}");
        assert_eq!(list["copies"], 2);
        let refused = text_of(&daemon.try_command(&["flash", "remove", &device_path("f2")]));
        assert!(refused.contains("one copy"), "{refused}");
        std::thread::sleep(Duration::from_millis(100));
        daemon.kill();
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!(device_roles(&list), roles(&[("f2", "log"), ("f0", "log")]), "{list}");
    let status = daemon.command(&["status"]);
    assert!(status.contains("flash devices changed by command") && status.contains(&device_path("f2")), "{status}");
    let problems = list["alerts"].as_array().expect("a list");
    let lists_devices = |text: &Value| text.as_str().is_some_and(|text| text.contains("may miss dirty data"));
    assert!(problems.len() == 1 && lists_devices(&problems[0]), "{list}");
    let mut history = history.into_inner().expect("no writer panicked");
    assert!(history.sequence() > 100, "only {} writes: the writer is broken", history.sequence());
    faults.extend(history.check_after_crash(&read(&fixture)));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
    daemon.stop();
}

#[test]
fn device_changes_keep_clean_pages() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    set_flash(&mut fixture, &["f0", "f1"], "allow_single_copy = true");
    let daemon = fixture.start();
    daemon.command(&["volume", "pin", "v"]);
    let pages = || json(&daemon, &["flash", "list"])["pages"]["pages"].as_u64().expect("a number");
    wait_for("pinned pages on flash", || (pages() == 256).then_some(()));
    let device = |name: &str| path(&fixture, name).to_string_lossy().into_owned();
    let list = json(&daemon, &["flash", "replace", &device("f0"), &device("f2")]);
    assert_eq!(device_roles(&list), roles(&[("f1", "log"), ("f2", "log")]), "{list}");
    assert_eq!(list["pages"]["pages"], 256, "{list}");
    let on_devices = list["devices"].as_array().expect("a list").iter().map(|device| device["pages"].as_u64());
    assert_eq!(on_devices.flatten().sum::<u64>(), 256, "{list}");
    assert_eq!(list["devices"][0]["pages_lost_if_removed"], 0, "{list}");
    let removed = daemon.try_command(&["flash", "remove", &device("f1")]);
    assert!(removed.status.success() && pages() == 256, "{}", text_of(&removed));
    assert_eq!(read(&fixture), vec![0; 16 << 20]);
    daemon.stop();
}

#[test]
fn replacement_device_restores_write_back() {
    let mut fixture = with_two_devices();
    let Some(devices) = failing_devices(&fixture, &["loop"]) else { return };
    let file = path(&fixture, "f1");
    set_flash_devices(&mut fixture, &[devices[0].path(), &file]);
    let daemon = fixture.start();
    let wait_for_policy = |policy: &str| {
        wait_for(policy, || (json(&daemon, &["volume", "show", "v"])["policy"] == policy).then_some(()));
    };
    write(&fixture, BLOCKS / 4, 1);
    devices[0].fail();
    write(&fixture, BLOCKS / 2, 1);
    wait_for_policy("write-through");
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!((&list["copies"], &list["devices"][0]["state"]), (&Value::from(1), &Value::from("lost")), "{list}");
    let new = path(&fixture, "f2");
    let list = json(&daemon, &["flash", "replace", &devices[0].path().to_string_lossy(), &new.to_string_lossy()]);
    assert_eq!((&list["copies"], list["devices"].as_array().map(Vec::len)), (&Value::from(2), Some(2)), "{list}");
    wait_for_policy("write-back");
    write(&fixture, BLOCKS, 2);
    daemon.kill();
    // Either copy alone is complete.
    fs::remove_file(&file).expect("the file exists");
    set_flash(&mut fixture, &["f2"], "allow_single_copy = true");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 2), BLOCKS);
    daemon.stop();
}

#[test]
fn third_device_takes_over_from_a_failed_log_device() {
    let mut fixture = with_two_devices();
    let Some(devices) = failing_devices(&fixture, &["loop"]) else { return };
    let (second, third) = (path(&fixture, "f1"), path(&fixture, "f2"));
    set_flash_devices(&mut fixture, &[devices[0].path(), &second, &third]);
    let daemon = fixture.start();
    write(&fixture, BLOCKS / 2, 1);
    devices[0].fail();
    write(&fixture, BLOCKS, 1);
    wait_for("two copies", || (json(&daemon, &["flash", "list"])["copies"] == 2).then_some(()));
    wait_for("write-back", || (json(&daemon, &["volume", "show", "v"])["policy"] == "write-back").then_some(()));
    daemon.kill();
    fs::remove_file(&second).expect("the file exists");
    set_flash(&mut fixture, &["f2"], "allow_single_copy = true");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

/// Runs a `hotset flash` command on devices that no daemon uses; returns whether it succeeded, and its report.
fn flash_command(fixture: &Fixture, args: &[&str], devices: &[&str]) -> (bool, Value) {
    let devices: Vec<_> = devices.iter().map(|name| path(fixture, name).to_string_lossy().into_owned()).collect();
    let mut arguments = vec!["--json", "flash", args[0]];
    arguments.extend(devices.iter().map(String::as_str));
    arguments.extend(&args[1..]);
    let output = e2e::daemon::hotset(&arguments);
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text_of(&output)));
    (output.status.success(), json)
}

/// Content of a rescued volume: the rescued ranges laid over its backing.
fn apply_rescued(report: &Value, mut image: Vec<u8>) -> Vec<u8> {
    let volume = &report["volumes"][0];
    let rescued = fs::read(volume["file"].as_str().expect("a path")).expect("the image exists");
    for extent in volume["present"].as_array().expect("a list") {
        let offset = extent[0].as_u64().expect("a number") * BLOCK;
        let range = offset as usize..(offset + extent[1].as_u64().expect("a number") * BLOCK) as usize;
        image[range.clone()].copy_from_slice(&rescued[range]);
    }
    image
}

#[test]
fn offline_check_and_rescue_handle_damaged_devices() {
    let fixture = with_two_devices();
    stop_dirty(&fixture);
    let (is_intact, report) = flash_command(&fixture, &["check"], &["f0", "f1"]);
    assert!(is_intact && report["whole"] == true, "{report}");
    let paths = ["f0", "f1"].map(|name| path(&fixture, name).to_string_lossy().into_owned());
    let text = text_of(&e2e::daemon::hotset(&["flash", "check", &paths[0], &paths[1]]));
    assert!(text.contains("also those that were destaged lately"), "{text}");
    assert_eq!(report["volumes"][0]["incarnation"].as_str().map(str::len), Some(16), "{report}");
    let before = [fs::read(path(&fixture, "f0")).unwrap(), fs::read(path(&fixture, "f1")).unwrap()];
    let path_text = |name: &str| path(&fixture, name).to_string_lossy().into_owned();

    // One of two devices is enough, and the check reports the other one as missing.
    let (is_intact, report) = flash_command(&fixture, &["check"], &["f1"]);
    assert!(!is_intact && report["missing"][0] == 0, "{report}");
    let (complete, report) = flash_command(&fixture, &["rescue", "--to", &path_text("one")], &["f1"]);
    assert!(complete, "{report}");
    assert_eq!(count(&apply_rescued(&report, backing(&fixture)), 1), BLOCKS);
    let again = e2e::daemon::hotset(&["flash", "rescue", &path_text("f1"), "--to", &path_text("one")]);
    assert!(!again.status.success() && text_of(&again).contains("exists"), "{}", text_of(&again));

    // Overwrites a thousand random blocks of one device, and its superblocks.
    let mut random = Random::new(seed("flash_rescue"));
    let mut damaged = before[0].clone();
    damaged[..4096].fill(0x5a);
    damaged[65536..65536 + 4096].fill(0xa5);
    for _ in 0..1000 {
        let offset = random.below(damaged.len() as u64 / 4096) as usize * 4096;
        damaged[offset..offset + 4096].fill(random.below(256) as u8);
    }
    fs::write(path(&fixture, "f0"), &damaged).expect("the folder can be written");
    let (complete, report) = flash_command(&fixture, &["rescue", "--to", &path_text("two")], &["f0", "f1"]);
    assert!(complete, "{report}");
    assert_eq!(count(&apply_rescued(&report, backing(&fixture)), 1), BLOCKS);

    // The same damage in the logs of both devices, with intact superblocks: lost data is listed, all other data is
    // there.
    let log_start = before[0].windows(8).position(|bytes| bytes == b"HOTSETLB").expect("the log has a batch");
    for (name, image) in ["f0", "f1"].iter().zip(&before) {
        let mut image = image.clone();
        // Damages the middle of the log. Its beginning may be destaged and dead by now, and a batch damaged at its end
        // would count as torn.
        for offset in (log_start + 4096 * 900..log_start + 4096 * 1_500).step_by(4096 * 61) {
            image[offset..offset + 512].fill(7);
        }
        fs::write(path(&fixture, name), &image).expect("the folder can be written");
    }
    let (is_intact, _) = flash_command(&fixture, &["check"], &["f0", "f1"]);
    let (complete, report) = flash_command(&fixture, &["rescue", "--to", &path_text("three")], &["f0", "f1"]);
    assert!(!is_intact && !complete, "the damage went unnoticed");
    let rescued = count(&apply_rescued(&report, backing(&fixture)), 1);
    // Lost data may be on the backing by chance, but data not listed as lost must be there.
    let lost = report["volumes"][0]["lost"].as_array().expect("a list").len() as u64;
    let unknown = report["lost_batches"].as_array().expect("a list").len();
    assert!(lost > 0 || unknown > 0, "the damage went unnoticed");
    assert!(unknown > 0 || rescued + lost >= BLOCKS, "{rescued} of {BLOCKS} with {lost} lost");
    assert!(rescued > BLOCKS / 2, "{rescued} of {BLOCKS}");
    let damaged = [fs::read(path(&fixture, "f0")).unwrap(), fs::read(path(&fixture, "f1")).unwrap()];
    assert!(damaged[0][..log_start] == before[0][..log_start], "nothing was written to the devices");
    // Devices in use by a daemon are refused.
    for (name, image) in ["f0", "f1"].iter().zip(&before) {
        fs::write(path(&fixture, name), image).expect("the folder can be written");
    }
    let daemon = fixture.start();
    let (is_intact, report) = flash_command(&fixture, &["check"], &["f0", "f1"]);
    assert!(!is_intact && report.to_string().contains("in use"), "{report}");
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}
