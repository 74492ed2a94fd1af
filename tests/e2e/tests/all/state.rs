//! A state directory that cannot be written: when volumes are recorded, while volumes are served, and at a stop.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use serde_json::Value;

use crate::history::SmallDisk;

const MIB: u64 = 1 << 20;

/// The error of the state directory when it cannot be written.
const REFUSAL: &str = "cannot write its file: Is a directory";

/// A folder in place of the state's spare file: root too fails to write it, as on a full disk without a spare.
pub struct Obstacle(PathBuf);

impl Obstacle {
    /// Creates the folder at a moment without a write of the state.
    pub fn create(fixture: &Fixture) -> Obstacle {
        let path = fixture.folder.join("state/state.new");
        // A write in progress would exchange the folder with the file, and the next one would exchange it back.
        let modified_at = || {
            let modified = |name| fixture.folder.join(name).metadata().and_then(|meta| meta.modified()).ok();
            ["state/state.json", "state/state.new"].map(modified)
        };
        wait_for("the end of writes of the state", || {
            let before = modified_at();
            std::thread::sleep(Duration::from_millis(300));
            (modified_at() == before).then_some(())
        });
        // The spare may still be created anew.
        let create = || {
            let _ = fs::remove_file(&path);
            fs::create_dir(&path).ok()
        };
        wait_for("the folder in place of the spare file", create);
        Obstacle(path)
    }

    /// Removes the folder, so that the state can be written again.
    pub fn remove(self) {
        fs::remove_dir(self.0).expect("the folder is empty");
    }
}

/// The state directory's record of each volume, by name.
fn volume_records(fixture: &Fixture) -> Vec<(String, Value)> {
    let text = fs::read_to_string(fixture.folder.join("state/state.json")).expect("a start has written it");
    let state: Value = serde_json::from_str(&text).expect("valid JSON");
    let with_name = |record: &Value| (record["name"].as_str().expect("a name").to_owned(), record.clone());
    state["volumes"].as_array().expect("a list").iter().map(with_name).collect()
}

fn recorded_names(fixture: &Fixture) -> Vec<String> {
    volume_records(fixture).into_iter().map(|(name, _)| name).collect()
}

fn state_of(daemon: &Daemon, volume: &str) -> Value {
    let shown: Value =
        serde_json::from_str(&daemon.command(&["volume", "show", volume, "--json"])).expect("valid JSON");
    shown["state"].clone()
}

#[test]
fn start_that_cannot_record_its_volumes_serves_none() {
    let mut fixture = Fixture::new();
    ["a", "b"].iter().for_each(|name| fixture.add_volume(name, 4 * MIB, ""));
    // The location of memory would be recorded, too.
    fixture.keep_in = "none".to_owned();
    // The daemon has recorded the number of its start and waits for this volume's lock; then it records the volumes.
    let lock_holder = File::open(fixture.backing("b")).expect("the file was created");
    lock_holder.lock().expect("no process holds it");
    let mut daemon = Daemon::launch(&fixture);
    // The spare is created last.
    let is_written = || ["state/state.json", "state/state.new"].iter().all(|name| fixture.folder.join(name).exists());
    wait_for("the first state file", || is_written().then_some(()));
    let obstacle = Obstacle::create(&fixture);
    drop(lock_holder);
    assert!(!daemon.wait().success());
    let log = daemon.log();
    for name in ["a", "b"] {
        let line = log.lines().find(|line| line.contains(&format!("volume {name} is not served: state directory")));
        assert!(line.is_some_and(|line| line.contains(REFUSAL)), "{name}: {log}");
    }
    assert_eq!(recorded_names(&fixture), Vec::<String>::new(), "a failed record leaves no part");
    obstacle.remove();
    let daemon = fixture.start();
    assert_eq!(recorded_names(&fixture), ["a", "b"]);
    daemon.stop();
}

#[test]
fn unrecordable_volume_does_not_affect_served_volumes() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[1; 4096]).expect("the write succeeds");
    let obstacle = Obstacle::create(&fixture);
    fixture.add_volume("later", 4 * MIB, "");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    let refused = "volume later is not served: state directory";
    let line = wait_for("the refusal", || daemon.log().lines().find(|line| line.contains(refused)).map(str::to_owned));
    assert!(line.contains(REFUSAL), "{line}");
    assert_eq!((state_of(&daemon, "later"), state_of(&daemon, "v")), ("refused".into(), "active".into()));
    client.write(4096, &[2; 4096]).and_then(|()| client.flush()).expect("nothing has changed for it");
    obstacle.remove();
    // The daemon closed its backing, so that it can be opened again at once.
    daemon.signal("HUP");
    let mut later = wait_for("the new volume", || Client::connect(&fixture.endpoint(), "later").ok());
    later.write(0, &[3; 4096]).expect("the write succeeds");
    assert_eq!(client.read(0, 8192).expect("the read succeeds"), [[1; 4096], [2; 4096]].concat());
    drop((client, later));
    daemon.stop();
}

#[test]
fn first_of_two_volumes_on_one_backing_is_served() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.backing("a"), fixture.backing("b"));
    File::create(&first).and_then(|file| file.set_len(4 * MIB)).expect("the folder can be written");
    // The configuration's check compares paths, and both volumes get a read lock: only the backing's identity shows
    // the conflict.
    fs::hard_link(&first, &second).expect("both are in one folder");
    for (name, path) in [("a", &first), ("b", &second)] {
        fixture.add_volume_on(name, &path.to_string_lossy(), "read_only = true");
    }
    fixture.add_volume("c", 4 * MIB, "");
    for run in ["first", "second"] {
        let daemon = fixture.start();
        let refusal = "volume b is not served: its backing belongs to volume a, which is in service";
        assert!(daemon.log().contains(refusal), "{run}: {}", daemon.log());
        let states = ["a", "b", "c"].map(|name| state_of(&daemon, name));
        assert_eq!(states, ["active", "refused", "active"].map(Value::from), "{run}");
        daemon.stop();
        assert_eq!(recorded_names(&fixture), ["a", "c"], "{run}");
    }
}

/// Writes to a volume and stops a daemon that cannot record the stop.
fn stop_without_record(fixture: &Fixture) {
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[7; 8192]).and_then(|()| client.flush()).expect("the write succeeds");
    client.write(8192, &[8; 4096]).expect("the write succeeds");
    let obstacle = Obstacle::create(fixture);
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(daemon.log().contains(REFUSAL), "{}", daemon.log());
    obstacle.remove();
    assert_eq!(volume_records(fixture)[0].1["clean"], false, "the stop was recorded");
}

/// Checks that the next daemon has all data and reports the unrecorded stop.
fn check_all_data(fixture: &Fixture) {
    let daemon = fixture.start();
    assert!(daemon.log().contains("volume v was not cleanly stopped"), "{}", daemon.log());
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(0, 12_288).expect("the read succeeds"), [vec![7; 8192], vec![8; 4096]].concat());
    drop(client);
    daemon.stop();
    assert_eq!(volume_records(fixture)[0].1["clean"], true, "the stop is recorded");
}

#[test]
fn unrecorded_stop_leaves_the_backing_complete() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    // Persisted memory would prove that no write was lost.
    fixture.keep_in = "none".to_owned();
    stop_without_record(&fixture);
    let content = fs::read(fixture.backing("v")).expect("the file exists");
    assert_eq!(content[..12_288], [vec![7; 8192], vec![8; 4096]].concat());
    check_all_data(&fixture);
}

#[test]
fn unrecorded_stop_keeps_dirty_data_in_the_flash_log() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    fixture.keep_in = "none".to_owned();
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", fixture.folder.join(name).display()));
    let flash = format!("[flash]\ndevices = [{}]\nsize = \"256 MiB\"", devices.join(", "));
    fixture.tables.clone_from(&flash);
    stop_without_record(&fixture);
    // Without its flash log the backing must not be treated as complete.
    fixture.tables.clear();
    let daemon = fixture.start();
    assert_eq!(state_of(&daemon, "v"), "refused", "{}", daemon.log());
    assert!(daemon.log().contains("may hold the only copy of flushed data"), "{}", daemon.log());
    daemon.stop();
    fixture.tables = flash;
    check_all_data(&fixture);
}

/// Writes to the state directory's disk until it is full.
fn fill(disk: &Path) {
    let mut file = File::create(disk.join("filler")).expect("the disk can be written");
    for len in [65_536, 512, 1] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
    assert!(fs::write(disk.join("more"), [1; 4096]).is_err(), "the disk is not full");
    let _ = fs::remove_file(disk.join("more"));
    file.write_all(&[1; 4096]).expect_err("the disk is not full");
}

#[test]
fn full_state_disk_allows_stop_and_start() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let state = fixture.folder.join("state");
    fs::create_dir(&state).expect("the folder can be written");
    let Some(disk) = SmallDisk::mount(&state) else { return };
    fixture.tables = "[history]\nsize = \"0\"\n".to_owned();
    let daemon = fixture.start();
    fill(&state);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[7; 4096]).expect("the write succeeds");
    drop(client);
    daemon.stop();
    assert_eq!(volume_records(&fixture)[0].1["clean"], true, "the stop was recorded");
    for run in 0..3 {
        let mut daemon = fixture.start();
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        assert_eq!(client.read(0, 4096).expect("the read succeeds"), [7; 4096], "run {run}");
        assert_eq!(volume_records(&fixture)[0].1["clean"], false, "the start was recorded");
        drop(client);
        daemon.command(&["stop"]);
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_eq!(volume_records(&fixture)[0].1["clean"], true, "the stop was recorded");
        assert!(!daemon.log().contains("state directory"), "{}", daemon.log());
    }
    drop(disk);
}

#[test]
fn read_only_state_directory_is_refused_with_a_remedy() {
    let fixture = Fixture::with_volume(4 * MIB);
    let directory = fixture.folder.join("state");
    let Some(disk) = SmallDisk::mount_sized(&directory, "16m") else { return };
    disk.remount("ro");
    let mut daemon = Daemon::launch(&fixture);
    assert!(!daemon.wait().success());
    let log = daemon.log();
    assert!(log.contains(&directory.display().to_string()) && log.contains("remount its file system"), "{log}");
    let check = || hotset(&["check-config", "--config", &fixture.config().display().to_string()]);
    let text = text_of(&check());
    assert_eq!(check().status.code(), Some(2), "{text}");
    assert!(text.contains("state is on a file system that is mounted read-only"), "{text}");
    disk.remount("rw");
    assert!(check().status.success(), "{}", text_of(&check()));
}

#[test]
fn rebuild_beside_a_daemon_names_the_directory_and_the_stop() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let config = fixture.config().display().to_string();
    let rebuilt = hotset(&["state", "rebuild", "--yes", "--config", &config, "--device", "/dev/null"]);
    let text = text_of(&rebuilt);
    assert!(!rebuilt.status.success() && text.contains("`hotset stop`"), "{text}");
    assert!(text.contains(&fixture.folder.join("state").display().to_string()), "{text}");
    assert!(!text.contains("another directory"), "the records are in this one: {text}");
    daemon.stop();
}

#[test]
fn rebuild_names_flash_devices_by_path() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let [first, second, blank] = ["f0", "f1", "blank"].map(|name| fixture.folder.join(name).display().to_string());
    fixture.tables = format!("[flash]\ndevices = [\"{first}\", \"{second}\"]\nsize = \"256 MiB\"\n");
    fixture.start().stop();
    File::create(&blank).and_then(|file| file.set_len(256 * MIB)).expect("the folder can be written");
    let config = fixture.config().display().to_string();
    let devices = ["--device", &first, "--device", &blank];
    let rebuilt = hotset(&[&["state", "rebuild", "--yes", "--config", &config][..], &devices].concat());
    let text = text_of(&rebuilt);
    assert!(text.contains(&format!("warning: {blank} holds no flash store")), "{text}");
    assert!(text.contains("Unflushed writes of a killed daemon are not restored"), "{text}");
}

#[test]
fn rebuild_reads_the_flash_devices_changed_by_commands() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let [first, second, third] = ["f0", "f1", "f2"].map(|name| fixture.folder.join(name).display().to_string());
    fixture.tables = format!("[flash]\ndevices = [\"{first}\", \"{second}\"]\nsize = \"256 MiB\"\n");
    let daemon = fixture.start();
    daemon.command(&["flash", "replace", &first, &third]);
    daemon.stop();
    let config = fixture.config().display().to_string();
    let rebuilt = hotset(&["state", "rebuild", "--yes", "--config", &config]);
    let text = text_of(&rebuilt);
    assert!(rebuilt.status.success() && !text.contains("warning"), "{text}");
    let read = format!("recorded in the state directory: {second}, {third}; ");
    assert!(text.contains(&read), "{text}");
    fixture.start().stop();
}
