//! A state directory that cannot be written: at the record of many volumes, beside served volumes, at a stop.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::site::Site;
use serde_json::Value;

use crate::history::SmallDisk;

const MIB: u64 = 1 << 20;

/// The error of the state directory when it cannot be written.
const REFUSAL: &str = "cannot write its file: Is a directory";

/// A folder in place of the state's spare file: root too fails to write it, as on a full disk without a spare.
pub struct Obstacle(PathBuf);

impl Obstacle {
    pub fn put(site: &Site) -> Obstacle {
        let path = site.folder.join("state/state.new");
        // The spare, if it exists.
        let _ = fs::remove_file(&path);
        fs::create_dir(&path).expect("the state directory is there");
        Obstacle(path)
    }

    pub fn clear(self) {
        fs::remove_dir(self.0).expect("the folder is empty");
    }
}

/// The state directory's record of each volume, by name.
fn noted(site: &Site) -> Vec<(String, Value)> {
    let text = fs::read_to_string(site.folder.join("state/state.json")).expect("a start has written it");
    let state: Value = serde_json::from_str(&text).expect("JSON");
    let named = |record: &Value| (record["name"].as_str().expect("a name").to_owned(), record.clone());
    state["volumes"].as_array().expect("a list").iter().map(named).collect()
}

fn names(site: &Site) -> Vec<String> {
    noted(site).into_iter().map(|(name, _)| name).collect()
}

fn state_of(daemon: &Daemon, volume: &str) -> Value {
    let shown: Value = serde_json::from_str(&daemon.command(&["volume", "show", volume, "--json"])).expect("JSON");
    shown["state"].clone()
}

#[test]
fn start_that_cannot_record_its_volumes_serves_none() {
    let mut site = Site::new();
    ["a", "b"].iter().for_each(|name| site.volume(name, 4 * MIB, ""));
    // The location of memory would be recorded, too.
    site.keep_in = "none".to_owned();
    // The start has recorded its own number and waits for this volume's lock: its next record is that of the volumes.
    let other = File::open(site.backing("b")).expect("it was made");
    other.lock().expect("no process holds it");
    let mut daemon = Daemon::launch(&site);
    // The spare is created last.
    let is_noted = || ["state/state.json", "state/state.new"].iter().all(|name| site.folder.join(name).exists());
    wait_for("its first note", || is_noted().then_some(()));
    let obstacle = Obstacle::put(&site);
    drop(other);
    assert!(!daemon.wait().success());
    let log = daemon.log();
    for name in ["a", "b"] {
        let line = log.lines().find(|line| line.contains(&format!("volume {name} is not served: state directory")));
        assert!(line.is_some_and(|line| line.contains(REFUSAL)), "{name}: {log}");
    }
    assert_eq!(names(&site), Vec::<String>::new(), "a failed record leaves no part");
    obstacle.clear();
    let daemon = site.start();
    assert_eq!(names(&site), ["a", "b"]);
    daemon.stop();
}

#[test]
fn unrecordable_volume_does_not_affect_served_volumes() {
    let mut site = Site::with_volume(4 * MIB);
    let daemon = site.start();
    let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
    client.write(0, &[1; 4096]).expect("it writes");
    let obstacle = Obstacle::put(&site);
    site.volume("later", 4 * MIB, "");
    fs::write(site.config(), site.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    let refused = "volume later is not served: state directory";
    let line = wait_for("the refusal", || daemon.log().lines().find(|line| line.contains(refused)).map(str::to_owned));
    assert!(line.contains(REFUSAL), "{line}");
    assert_eq!((state_of(&daemon, "later"), state_of(&daemon, "v")), ("refused".into(), "active".into()));
    client.write(4096, &[2; 4096]).and_then(|()| client.flush()).expect("nothing has changed for it");
    obstacle.clear();
    // The daemon closed its backing, so that it can be opened again at once.
    daemon.signal("HUP");
    let mut later = wait_for("the new volume", || Client::connect(&site.endpoint(), "later").ok());
    later.write(0, &[3; 4096]).expect("it writes");
    assert_eq!(client.read(0, 8192).expect("it reads"), [[1; 4096], [2; 4096]].concat());
    drop((client, later));
    daemon.stop();
}

#[test]
fn first_of_two_volumes_on_one_backing_is_served() {
    let mut site = Site::new();
    let (first, second) = (site.backing("a"), site.backing("b"));
    File::create(&first).and_then(|file| file.set_len(4 * MIB)).expect("the folder can be written");
    // The configuration's check compares paths, and both volumes get a read lock: the backing's identity alone shows
    // the conflict.
    fs::hard_link(&first, &second).expect("both are in one folder");
    for (name, path) in [("a", &first), ("b", &second)] {
        site.volume_on(name, &path.to_string_lossy(), "read_only = true");
    }
    site.volume("c", 4 * MIB, "");
    for life in ["first", "second"] {
        let daemon = site.start();
        let refusal = "volume b is not served: its backing belongs to volume a, which is in service";
        assert!(daemon.log().contains(refusal), "{life}: {}", daemon.log());
        let states = ["a", "b", "c"].map(|name| state_of(&daemon, name));
        assert_eq!(states, ["active", "refused", "active"].map(Value::from), "{life}");
        daemon.stop();
        assert_eq!(names(&site), ["a", "c"], "{life}");
    }
}

/// Writes to a volume and stops a daemon that cannot record the stop.
fn stop_in_silence(site: &Site) {
    let mut daemon = site.start();
    let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
    client.write(0, &[7; 8192]).and_then(|()| client.flush()).expect("it writes");
    client.write(8192, &[8; 4096]).expect("it writes");
    let obstacle = Obstacle::put(site);
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(daemon.log().contains(REFUSAL), "{}", daemon.log());
    obstacle.clear();
    assert_eq!(noted(site)[0].1["clean"], false, "the stop was recorded");
}

/// Starts the next daemon, which has all data and reports the unrecorded stop.
fn find_everything(site: &Site) {
    let daemon = site.start();
    assert!(daemon.log().contains("volume v was not cleanly stopped"), "{}", daemon.log());
    let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
    assert_eq!(client.read(0, 12_288).expect("it reads"), [vec![7; 8192], vec![8; 4096]].concat());
    drop(client);
    daemon.stop();
    assert_eq!(noted(site)[0].1["clean"], true, "the stop is recorded");
}

#[test]
fn unrecorded_stop_leaves_the_backing_complete() {
    let mut site = Site::with_volume(4 * MIB);
    // Memory that outlives the daemon would prove that no write was lost.
    site.keep_in = "none".to_owned();
    stop_in_silence(&site);
    let content = fs::read(site.backing("v")).expect("it is there");
    assert_eq!(content[..12_288], [vec![7; 8192], vec![8; 4096]].concat());
    find_everything(&site);
}

#[test]
fn unrecorded_stop_keeps_dirty_data_in_the_flash_log() {
    let mut site = Site::with_volume(4 * MIB);
    site.keep_in = "none".to_owned();
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", site.folder.join(name).display()));
    let flash = format!("[flash]\ndevices = [{}]\nsize = \"256 MiB\"", devices.join(", "));
    site.tables.clone_from(&flash);
    stop_in_silence(&site);
    // Without its flash the backing alone must not be taken as complete.
    site.tables.clear();
    let daemon = site.start();
    assert_eq!(state_of(&daemon, "v"), "refused", "{}", daemon.log());
    assert!(daemon.log().contains("may hold the only copy of flushed data"), "{}", daemon.log());
    daemon.stop();
    site.tables = flash;
    find_everything(&site);
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
    let mut site = Site::with_volume(4 * MIB);
    let state = site.folder.join("state");
    fs::create_dir(&state).expect("the folder can be written");
    let Some(disk) = SmallDisk::mount(&state) else { return };
    site.tables = "[history]\nsize = \"0\"\n".to_owned();
    let daemon = site.start();
    fill(&state);
    let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
    client.write(0, &[7; 4096]).expect("it writes");
    drop(client);
    daemon.stop();
    assert_eq!(noted(&site)[0].1["clean"], true, "the stop was noted");
    for life in 0..3 {
        let mut daemon = site.start();
        let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
        assert_eq!(client.read(0, 4096).expect("it reads"), [7; 4096], "life {life}");
        assert_eq!(noted(&site)[0].1["clean"], false, "the start was noted");
        drop(client);
        daemon.command(&["stop"]);
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_eq!(noted(&site)[0].1["clean"], true, "the stop was noted");
        assert!(!daemon.log().contains("state directory"), "{}", daemon.log());
    }
    drop(disk);
}
