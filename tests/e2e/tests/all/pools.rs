//! A pool from its creation on: volumes on two tiers, a restart, a kill, a pool that is full, moves of slices, devices
//! that come and go, and volumes that are resized and deleted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::initiator::{CommandResult, Initiator, lun, opcode};
use serde_json::Value;

use crate::iscsi::log_in;

const MIB: u64 = 1 << 20;
const SLICE: u64 = MIB;
const ENOSPC: i32 = 28;

/// A fixture with a pool "tank" of 8 and 16 MiB in slices of 1 MiB, and two volumes of 64 MiB on it.
fn with_pool() -> Fixture {
    with_pool_of(["", "", ""])
}

/// The same with further keys of the pool and of its two tiers.
fn with_pool_of([of_pool, of_ssd, of_hdd]: [&str; 3]) -> Fixture {
    let mut fixture = Fixture::new();
    let folder = fixture.folder.path().to_owned();
    add_file(&fixture, "ssd", 9);
    add_file(&fixture, "hdd", 17);
    let folder = folder.display();
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\n{of_pool}\n[[pool.tier]]\nname = \"ssd\"\n\
         devices = [\"{folder}/ssd\"]\n{of_ssd}\n[[pool.tier]]\nname = \"hdd\"\n\
         devices = [\"{folder}/hdd\"]\n{of_hdd}\n"
    );
    fixture.add_volume_on("fast", "pool://tank", "size = \"64 MiB\"\ntier_policy = \"ssd\"");
    fixture.add_volume_on("auto", "pool://tank", "size = \"64 MiB\"");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    fixture
}

/// A sparse file for a group.
fn add_file(fixture: &Fixture, name: &str, mib: u64) -> String {
    let path = fixture.folder.join(name);
    let file = File::create(&path).expect("the folder can be written");
    file.set_len(mib * MIB).expect("a sparse file can be created");
    path.display().to_string()
}

/// `pool show` as JSON.
fn show(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.command(&["pool", "show", "tank", "--json"])).expect("the report is JSON")
}

/// Bytes of a volume in each tier.
fn tier_bytes(pool: &Value, volume: &str) -> Vec<u64> {
    let volumes = pool["volumes"].as_array().expect("a pool has a list of volumes");
    let found = volumes.iter().find(|report| report["name"] == volume).expect("the pool has the volume");
    found["tier_bytes"].as_array().expect("a list").iter().map(|bytes| bytes.as_u64().expect("a number")).collect()
}

/// The text of a command that is refused.
fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.try_command(args);
    assert!(!output.status.success(), "{args:?} is refused: {}", text_of(&output));
    text_of(&output)
}

fn pool_command(fixture: &Fixture, action: &str) -> (bool, String) {
    let output = hotset(&["pool", action, "tank", "--config", &fixture.config().display().to_string()]);
    (output.status.success(), text_of(&output))
}

fn created() -> Fixture {
    create(with_pool())
}

fn create(fixture: Fixture) -> Fixture {
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

/// Writes one block to each slice of a volume from slice `first` on, every `step`-th one, again and again until
/// `is_ended`. Returns the value of the last acknowledged write of each slice, and the number of writes without space.
fn write_until_ended(
    client: &mut Client,
    (first, step): (u64, u64),
    is_ended: &AtomicBool,
) -> (BTreeMap<u64, u8>, u64) {
    let (mut acknowledged, mut without_space) = (BTreeMap::new(), 0);
    for value in (1..=u8::MAX).cycle() {
        for slice in (first..64).step_by(step as usize) {
            match client.write(slice * SLICE + 4096, &[value; 4096]) {
                Ok(()) => drop(acknowledged.insert(slice, value)),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
                    without_space += 1;
                }
            }
        }
        client.flush().expect("every acknowledged write has its place");
        if is_ended.load(Ordering::Relaxed) {
            break;
        }
    }
    (acknowledged, without_space)
}

#[test]
fn pool_that_fills_up_under_load_recovers_with_another_device() {
    const CLIENTS: u64 = 4;
    let fixture = created();
    let daemon = fixture.start();
    let extra = add_file(&fixture, "extra", 49);
    let is_ended = AtomicBool::new(false);
    let written: Vec<_> = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|first| {
            let mut client = fixture.connect("auto");
            let is_ended = &is_ended;
            scope.spawn(move || write_until_ended(&mut client, (first, CLIENTS), is_ended))
        });
        let clients: Vec<_> = clients.collect();
        wait_for("a full pool", || (show(&daemon)["free_bytes"] == 0).then_some(()));
        std::thread::sleep(Duration::from_millis(500));
        daemon.command(&["pool", "add", "tank", "--tier", "hdd", &extra]);
        wait_for("the slices on the new device", || {
            (tier_bytes(&show(&daemon), "auto").iter().sum::<u64>() == 64 * MIB).then_some(())
        });
        is_ended.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("the client does not panic")).collect()
    });
    let without_space: u64 = written.iter().map(|(_, count)| count).sum();
    assert!(without_space > 0, "the pool was full");
    let acknowledged: BTreeMap<u64, u8> = written.into_iter().flat_map(|(slices, _)| slices).collect();
    assert_eq!(acknowledged.len(), 64, "all slices have their place");
    println!("{without_space} writes without space");
    daemon.kill();
    let daemon = fixture.start();
    let mut auto = fixture.connect("auto");
    for (slice, value) in acknowledged {
        assert_slices_hold(&mut auto, &[slice], value).expect("the pool is whole");
    }
    daemon.stop();
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

#[test]
fn hot_slices_move_to_the_fast_tier_and_a_pause_holds_over_a_restart() {
    let keys = ["relocation = \"off\"\nrate = \"high\"", "class = \"nvme\"", "class = \"nl-sas\""];
    let mut fixture = with_pool_of(keys);
    // Without a cache each read reaches the pool.
    fixture.add_volume_on("hot", "pool://tank", "size = \"64 MiB\"\npolicy = \"none\"");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let fixture = create(fixture);
    let daemon = fixture.start();
    let connect = || Client::connect(&fixture.endpoint(), "hot").expect("the volume is served");
    let mut hot = connect();
    let slices = write_slices(&mut hot, 1, 9);
    hot.flush().expect("the pool is whole");
    let before = tier_bytes(&show(&daemon), "hot");
    assert!(before[1] > 2 * MIB, "a part of the slices lies on the slow tier: {before:?}");
    for round in 0..60 {
        for slice in &slices {
            hot.read(slice * SLICE + (round * 37 % 256) * 4096, 4096).expect("the pool is whole");
        }
    }
    let plan = daemon.command(&["pool", "plan", "tank"]);
    assert!(plan.contains("promote") && plan.contains("saves") && plan.contains("disk time an hour"), "{plan}");

    let paused = daemon.command(&["pool", "pause", "tank"]);
    assert!(paused.contains("relocation: paused"), "{paused}");
    let text = refused(&daemon, &["pool", "relocate", "tank"]);
    assert!(text.contains("hotset pool resume tank"), "{text}");
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(show(&daemon)["relocation"]["state"], "paused");
    let resumed = daemon.command(&["pool", "resume", "tank"]);
    assert!(resumed.contains("relocation: off") && resumed.contains("nl-sas"), "{resumed}");

    // Heat begins again with the daemon.
    let mut hot = connect();
    for round in 0..60 {
        for slice in &slices {
            hot.read(slice * SLICE + (round * 37 % 256) * 4096, 4096).expect("the pool is whole");
        }
    }
    daemon.command(&["pool", "relocate", "tank"]);
    let moved = wait_for("the end of the moves", || {
        let pool = show(&daemon);
        let has_ended = pool["relocation"]["state"] == "off" && pool["relocation"]["moves"].as_u64() > Some(0);
        has_ended.then_some(pool)
    });
    let after = tier_bytes(&moved, "hot");
    assert!(after[0] > before[0], "{before:?} before, {after:?} after");
    assert_eq!(
        moved["relocation"]["moved_bytes"].as_u64(),
        Some(moved["relocation"]["moves"].as_u64().unwrap_or(0) * MIB)
    );
    let events = daemon.command(&["events"]);
    assert!(events.contains("pause moves of slices") && events.contains("pool tank"), "{events}");
    assert_slices_hold(&mut hot, &slices, 1).expect("the pool is whole");
    daemon.kill();
    let daemon = fixture.start();
    assert_slices_hold(&mut connect(), &slices, 1).expect("the pool is whole");
    assert_eq!(tier_bytes(&show(&daemon), "hot"), after);
    daemon.stop();
}

#[test]
fn tier_without_a_class_is_measured_at_the_opening() {
    let fixture = created();
    let daemon = fixture.start();
    let pool = show(&daemon);
    for tier in pool["tiers"].as_array().expect("a list") {
        assert_eq!(tier["class"]["measured"], true, "{tier}");
    }
    assert!(daemon.log().contains("is most like"), "{}", daemon.log());
    assert_eq!(pool["relocation"]["times"], "continuous");
    assert_eq!(pool["relocation"]["rate"], "medium");
    daemon.stop();
}

#[test]
fn devices_join_and_leave_while_volumes_are_served() {
    let fixture = created();
    let daemon = fixture.start();
    let connect = |name| Client::connect(&fixture.endpoint(), name).expect("the volume is served");
    let mut auto = connect("auto");
    let slices = write_slices(&mut auto, 7, 15);
    assert_eq!(slices.len(), 15);
    auto.flush().expect("the pool is whole");
    let hdd = fixture.folder.join("hdd").display().to_string();
    let text = refused(&daemon, &["pool", "drain", "tank", &hdd]);
    assert!(text.contains("are missing"), "{text}");
    let extra = add_file(&fixture, "extra", 33);
    fs::write(&extra, vec![1; 2 << 20]).expect("the folder can be written");
    File::options().write(true).open(&extra).and_then(|file| file.set_len(33 * MIB)).expect("a file can grow");
    let text = refused(&daemon, &["pool", "add", "tank", "--tier", "hdd", &extra]);
    assert!(text.contains(&extra) && text.contains("--force"), "{text}");
    let text = refused(&daemon, &["pool", "add", "tank", "--tier", "tape", &extra, "--force"]);
    assert!(text.contains("ssd, hdd"), "{text}");
    let text = refused(&daemon, &["pool", "add", "tank", "--tier", "hdd", &hdd, "--force"]);
    assert!(text.contains("in use") || text.contains("already"), "{text}");
    let added = daemon.command(&["pool", "add", "tank", "--tier", "hdd", &extra, "--force"]);
    assert!(added.contains(&format!("devices = [\"{hdd}\", \"{extra}\"]")), "{added}");

    // A restart without a change of the file uses the device.
    daemon.stop();
    let daemon = fixture.start();
    assert!(daemon.log().contains("was added by command"), "{}", daemon.log());
    assert!(daemon.command(&["pool", "show", "tank"]).contains(&extra));
    let mut auto = connect("auto");
    assert_slices_hold(&mut auto, &slices, 7).expect("the pool is whole");

    daemon.command(&["pool", "pause", "tank"]);
    let drained = daemon.command(&["pool", "drain", "tank", &hdd]);
    assert!(drained.contains(&format!("devices = [\"{extra}\"]")), "{drained}");
    let jobs = daemon.command(&["job", "list"]);
    assert!(jobs.contains("drain-tank-1") && jobs.contains("paused"), "{jobs}");
    // The drain goes on after a kill.
    daemon.kill();
    let daemon = fixture.start();
    let cancelled = daemon.command(&["job", "cancel", "drain-tank-1"]);
    assert!(cancelled.contains("takes slices again"), "{cancelled}");
    assert!(refused(&daemon, &["pool", "drain", "tank", &hdd, "--cancel"]).contains("not being drained"));
    daemon.command(&["pool", "drain", "tank", &hdd]);
    daemon.command(&["pool", "resume", "tank"]);
    wait_for("the end of the drain", || {
        let list = daemon.command(&["pool", "show", "tank"]);
        (!list.contains(&hdd)).then_some(())
    });
    let mut auto = connect("auto");
    assert_slices_hold(&mut auto, &slices, 7).expect("the pool is whole");
    daemon.stop();
    let daemon = fixture.start();
    assert!(daemon.log().contains("was removed from the pool; take it out"), "{}", daemon.log());
    assert_slices_hold(&mut connect("auto"), &slices, 7).expect("the pool is whole");
    daemon.stop();
}

#[test]
fn pool_of_a_former_name_gets_no_pause_and_no_devices_of_the_former_one() {
    let fixture = created();
    let daemon = fixture.start();
    daemon.command(&["pool", "pause", "tank"]);
    let extra = add_file(&fixture, "extra", 9);
    daemon.command(&["pool", "add", "tank", "--tier", "hdd", &extra]);
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(show(&daemon)["relocation"]["state"], "paused", "records of this pool are used");
    assert!(daemon.command(&["pool", "show", "tank"]).contains(&extra));
    daemon.stop();
    let config = fixture.config().display().to_string();
    let output = hotset(&["pool", "create", "tank", "--force", "--yes", "--config", &config]);
    assert!(output.status.success(), "{}", text_of(&output));
    let daemon = fixture.start();
    assert!(daemon.log().contains("belong to a former pool of this name"), "{}", daemon.log());
    let pool = show(&daemon);
    assert_ne!(pool["relocation"]["state"], "paused");
    assert!(!pool.to_string().contains(&extra), "{pool}");
    daemon.stop();
    let daemon = fixture.start();
    // The log is that of all starts.
    assert_eq!(daemon.log().matches("former pool").count(), 1, "the records are gone: {}", daemon.log());
    daemon.stop();
}

#[test]
fn device_is_drained_by_another_path_to_it() {
    let fixture = created();
    let daemon = fixture.start();
    let link = fixture.folder.join("by-id");
    std::os::unix::fs::symlink(fixture.folder.join("ssd"), &link).expect("the folder can be written");
    daemon.command(&["pool", "pause", "tank"]);
    let link = link.display().to_string();
    let drained = daemon.command(&["pool", "drain", "tank", &link]);
    assert!(drained.contains("[[pool.tier]] \"ssd\""), "the lines to change are those of its tier: {drained}");
    daemon.command(&["pool", "drain", "tank", &link, "--cancel"]);
    let ssd = fixture.folder.join("ssd").display().to_string();
    assert!(refused(&daemon, &["pool", "drain", "tank", &ssd, "--cancel"]).contains("not being drained"));
    daemon.stop();
}

#[test]
fn volume_of_a_pool_grows_and_is_deleted_when_it_is_not_served() {
    let fixture = created();
    let daemon = fixture.start();
    let connect = |name| Client::connect(&fixture.endpoint(), name).expect("the volume is served");
    let mut auto = connect("auto");
    write_slices(&mut auto, 3, 10);
    auto.flush().expect("the pool is whole");
    daemon.command(&["volume", "resize", "auto", "128 MiB"]);
    let mut auto = connect("auto");
    auto.write(100 * SLICE, &[4; 4096]).expect("the volume has grown");
    auto.flush().expect("the pool is whole");
    assert!(auto.write(128 * SLICE, &[4; 4096]).is_err(), "past the end");
    drop(auto);
    let text = refused(&daemon, &["pool", "delete-volume", "tank", "auto", "--yes"]);
    assert!(text.contains("hotset volume remove auto"), "{text}");
    daemon.command(&["volume", "remove", "auto"]);
    let kept = show(&daemon);
    assert!(tier_bytes(&kept, "auto").iter().sum::<u64>() >= 11 * MIB, "{kept}");
    assert!(refused(&daemon, &["pool", "delete-volume", "tank", "none", "--yes"]).contains("no volume"));
    daemon.command(&["pool", "delete-volume", "tank", "auto", "--yes"]);
    let left = show(&daemon);
    assert!(left["free_bytes"].as_u64() >= Some(kept["free_bytes"].as_u64().unwrap_or(0) + 11 * MIB), "{left}");
    // The name is free for a new volume, which shows nothing of the former one.
    daemon.command(&["volume", "add", "auto", "--backing", "pool://tank", "--size", "32 MiB"]);
    let mut auto = connect("auto");
    assert_eq!(auto.read(0, 8192).expect("the volume is new"), [0; 8192]);
    daemon.stop();
}

#[test]
fn volume_added_by_command_lies_where_its_options_say() {
    let mut fixture = created();
    fixture.tables += "[api]\nlisten = \"127.0.0.1:0\"\n";
    let daemon = fixture.start();
    let add = ["volume", "add", "bulk", "--backing", "pool://tank", "--size", "4 MiB"];
    let with = |options: &[&'static str]| [&add[..], options].concat();
    let text = refused(&daemon, &with(&["--tier-policy", "tape"]));
    assert!(text.contains("no tier \"tape\"") && text.contains("ssd, hdd"), "{text}");
    let text = refused(&daemon, &with(&["--provisioning", "fat"]));
    assert!(text.contains("thin") && text.contains("thick"), "{text}");
    daemon.command(&with(&["--tier-policy", "hdd", "--provisioning", "thick"]));
    assert_eq!(tier_bytes(&show(&daemon), "bulk"), [0, 4 * MIB]);
    daemon.command(&["volume", "remove", "bulk"]);
    let text = refused(&daemon, &with(&["--provisioning", "thin"]));
    assert!(text.contains("keeps its tier policy and provisioning"), "{text}");
    daemon.command(&add);
    let http = Http::of(&daemon);
    let body = |backing: &str, keys: &str| {
        format!("{{\"name\": \"top\", \"backing\": \"{backing}\", \"size_bytes\": {}, {keys}}}", 2 * MIB)
    };
    let keys = "\"tier_policy\": \"highest\", \"provisioning\": \"thick\"";
    let plain = fixture.folder.join("top.img").display().to_string();
    let created = daemon.command(&["token", "create", "adder", "--role", "administer"]);
    let token = created.trim();
    assert_eq!(http.request_as(token, "POST", "/api/v1/volumes", &body(&plain, keys)).status, 400);
    assert_eq!(http.request_as(token, "POST", "/api/v1/volumes", &body("pool://tank", keys)).status, 201);
    assert_eq!(tier_bytes(&show(&daemon), "top"), [2 * MIB, 0]);
    let path = "/api/v1/pools/tank/volumes/top";
    assert_eq!(http.request_as(token, "PATCH", path, "{\"tier_policy\": \"tape\"}").status, 400);
    let changed = http.request_as(token, "PATCH", path, "{\"tier_policy\": \"hdd\"}");
    assert_eq!(changed.status, 200, "{}", changed.body);
    daemon.stop();
}

#[test]
fn slices_follow_a_change_of_the_tier_policy() {
    let fixture =
        create(with_pool_of(["relocation = \"off\"\nrate = \"high\"", "class = \"nvme\"", "class = \"nl-sas\""]));
    let daemon = fixture.start();
    let slices = write_slices(&mut fixture.connect("fast"), 1, 5);
    assert_eq!(tier_bytes(&show(&daemon), "fast"), [5 * MIB, 0]);
    let text = refused(&daemon, &["pool", "set-policy", "tank", "fast", "tape"]);
    assert!(text.contains("start-high") && text.contains("ssd, hdd"), "{text}");
    assert!(refused(&daemon, &["pool", "set-policy", "tank", "none", "hdd"]).contains("no volume"));
    let changed = daemon.command(&["pool", "set-policy", "tank", "fast", "hdd"]);
    assert!(changed.lines().any(|line| line.starts_with("fast ") && line.contains(" hdd ")), "{changed}");
    assert_eq!(tier_bytes(&show(&daemon), "fast"), [5 * MIB, 0], "nothing has moved yet");
    daemon.command(&["pool", "relocate", "tank"]);
    wait_for("the end of the moves", || (tier_bytes(&show(&daemon), "fast") == [0, 5 * MIB]).then_some(()));
    // The configuration names the former policy.
    daemon.kill();
    let daemon = fixture.start();
    assert!(
        daemon.command(&["pool", "show", "tank"]).lines().any(|line| line.contains("fast") && line.contains("hdd"))
    );
    assert_slices_hold(&mut fixture.connect("fast"), &slices, 1).expect("the pool is whole");
    let events = daemon.command(&["events"]);
    assert!(events.contains("set the tier policy of volume fast to hdd"), "{events}");
    daemon.stop();
}

#[test]
fn pool_without_a_served_volume_is_open_after_a_start() {
    let mut fixture = created();
    fixture.tables += "[api]\nlisten = \"127.0.0.1:0\"\n";
    let daemon = fixture.start();
    let mut auto = Client::connect(&fixture.endpoint(), "auto").expect("the volume is served");
    write_slices(&mut auto, 3, 5);
    auto.flush().expect("the pool is whole");
    drop(auto);
    daemon.command(&["volume", "remove", "auto"]);
    daemon.command(&["volume", "remove", "fast"]);
    daemon.stop();
    let daemon = fixture.start();
    wait_for("the open pool", || daemon.command(&["pool", "list"]).contains("pool tank").then_some(()));
    let http = Http::of(&daemon);
    let cells = http.get("/api/v1/pools/tank/volumes/auto/cells").json();
    let allocated = cells["tier_bytes"].as_array().expect("a list of cells").iter().flat_map(|cell| cell.as_array());
    let bytes: u64 = allocated.flatten().filter_map(Value::as_u64).sum();
    assert_eq!((bytes, cells["cell_bytes"].as_u64()), (5 * SLICE, Some(SLICE)), "{cells}");
    assert_eq!(http.get("/api/v1/pools/tank/moves").json()["total_waiting"], 0);
    assert_eq!(http.get("/api/v1/pools/tank/volumes/none/cells").status, 404);
    wait_for("a sample of the history", || {
        let history = http.get("/api/v1/history?pool=tank&series=allocated_bytes").json();
        let last = history["series"]["allocated_bytes"]["max"].as_array()?.last()?.as_u64()?;
        (last == 5 * SLICE).then_some(())
    });
    daemon.command(&["pool", "delete-volume", "tank", "auto", "--yes"]);
    assert_eq!(show(&daemon)["free_bytes"], show(&daemon)["size_bytes"], "the other volume is empty");
    daemon.stop();
}

#[test]
fn deletion_of_a_volume_keeps_one_of_the_same_name_on_another_pool() {
    let mut fixture = with_pool();
    let device = add_file(&fixture, "tin", 9);
    fixture.tables += &format!(
        "[[pool]]\nname = \"tin\"\nslice = \"1 MiB\"\n[[pool.tier]]\nname = \"one\"\ndevices = [\"{device}\"]\n"
    );
    fixture.create_pool("tank");
    fixture.create_pool("tin");
    let mut daemon = fixture.start();
    let connect = |name| Client::connect(&fixture.endpoint(), name).expect("the volume is served");
    daemon.command(&["volume", "add", "web", "--backing", "pool://tank", "--size", "16 MiB"]);
    daemon.command(&["volume", "remove", "web"]);
    daemon.command(&["volume", "add", "web", "--backing", "pool://tin", "--size", "4 MiB"]);
    let mut web = connect("web");
    web.write(0, &[7; 4096]).expect("room");
    web.flush().expect("the pool is whole");
    drop(web);
    daemon.command(&["pool", "delete-volume", "tank", "web", "--yes"]);
    daemon.stop();
    daemon = fixture.start();
    assert_eq!(connect("web").read(0, 4096).expect("it is served as before"), [7; 4096]);
    daemon.stop();
}

#[test]
fn pool_that_fills_up_raises_alerts() {
    let fixture = created();
    let daemon = fixture.start();
    let mut auto = Client::connect(&fixture.endpoint(), "auto").expect("the volume is served");
    write_slices(&mut auto, 5, 19);
    let alerts = |kind: &str| daemon.command(&["alerts", "list"]).contains(kind).then_some(());
    wait_for("the alert", || alerts("pool-filling"));
    write_slices(&mut auto, 5, 64);
    wait_for("the alert", || alerts("pool-full"));
    assert!(daemon.command(&["alerts", "list"]).contains("pool tank"));
    daemon.stop();
}

/// Sense key UNIT ATTENTION with THIN PROVISIONING SOFT THRESHOLD REACHED.
const SOFT_THRESHOLD_REACHED: (u8, u8, u8) = (0x6, 0x38, 0x07);
/// LUNs of the volumes, in the order of the configuration.
const LUN_FAST: u16 = 0;
const LUN_AUTO: u16 = 1;
const LUN_PLAIN: u16 = 2;

/// Result of TEST UNIT READY.
fn test_unit(session: &mut Initiator, number: u16) -> CommandResult {
    session.command(lun(number), &[opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0).expect("the session is open")
}

/// Body of the Logical Block Provisioning log page.
fn provisioning_log(session: &mut Initiator, number: u16) -> Vec<u8> {
    let cdb = [opcode::LOG_SENSE, 0, 0x40 | 0x0c, 0, 0, 0, 0, 0, 255, 0];
    let result = session.command(lun(number), &cdb, &[], 255).expect("the session is open");
    assert_eq!(result.status, 0, "sense {:02x?}", result.sense_code());
    result.data[4..].to_vec()
}

/// Waits until the log page has these counts in MiB, both shared with other units.
fn wait_for_counts(session: &mut Initiator, available: u8, used: u8) {
    let expected = [[0, 1, 3, 8, 0, 0, 0, available, 2, 0, 0, 0], [0, 2, 3, 8, 0, 0, 0, used, 2, 0, 0, 0]].concat();
    wait_for("the counts of the pool", || (provisioning_log(session, LUN_AUTO) == expected).then_some(()));
}

/// Waits for the unit attention of a threshold. Its information is the offset of the threshold's descriptor.
fn wait_for_threshold(session: &mut Initiator, number: u16, descriptor_offset: u8) {
    let result = wait_for("a unit attention", || Some(test_unit(session, number)).filter(|result| result.status != 0));
    assert_eq!(result.sense_code(), SOFT_THRESHOLD_REACHED);
    assert_eq!((result.sense[0], &result.sense[3..7]), (0xf0, &[0, 0, 0, descriptor_offset][..]));
}

#[test]
fn initiators_learn_once_that_a_pool_fills_up() {
    let mut fixture = with_pool();
    fixture.add_volume("plain", 8 << 20, "");
    let address = fixture.add_iscsi_target("");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let fixture = create(fixture);
    let daemon = fixture.start();
    let mut sessions = [log_in(address, 1), log_in(address, 2)];
    for session in &mut sessions {
        for number in [LUN_FAST, LUN_AUTO, LUN_PLAIN] {
            wait_for("the end of power-on attentions", || (test_unit(session, number).status == 0).then_some(()));
        }
    }
    // 16 of 24 slices are 66 %, and 17 are 70 %.
    let mut auto = Client::connect(&fixture.endpoint(), "auto").expect("the volume is served");
    assert_eq!(write_slices(&mut auto, 1, 16).len(), 16);
    wait_for_counts(&mut sessions[0], 8, 16);
    for session in &mut sessions {
        assert_eq!(test_unit(session, LUN_AUTO).status, 0);
    }
    assert_eq!(write_slices(&mut auto, 1, 17).len(), 17);
    for session in &mut sessions {
        for number in [LUN_AUTO, LUN_FAST] {
            wait_for_threshold(session, number, 16);
        }
    }
    assert!(daemon.command(&["alerts", "list"]).contains("pool-filling"));
    // Later samples report nothing more.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        for session in &mut sessions {
            for number in [LUN_FAST, LUN_AUTO, LUN_PLAIN] {
                assert_eq!(test_unit(session, number).status, 0);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for_counts(&mut sessions[1], 7, 17);
    assert_eq!(provisioning_log(&mut sessions[0], LUN_PLAIN), Vec::<u8>::new());
    let thresholds = [opcode::MODE_SENSE_6, 0x08, 0x1c, 0x02, 255, 0];
    let mut mode_sense = |number| sessions[0].command(lun(number), &thresholds, &[], 255).expect("the session is open");
    let page = mode_sense(LUN_AUTO).data.split_off(4);
    let counts: Vec<u8> = page[16..].chunks_exact(8).map(|descriptor| descriptor[7]).collect();
    assert_eq!((&page[..4], &counts[..]), (&[0x5c, 2, 0, 36][..], &[17, 21, 23][..]));
    assert_ne!(mode_sense(LUN_PLAIN).status, 0);
    // Two thresholds in one sample.
    assert_eq!(write_slices(&mut auto, 1, 23).len(), 23);
    wait_for_threshold(&mut sessions[0], LUN_AUTO, 24);
    wait_for_threshold(&mut sessions[0], LUN_AUTO, 32);
    assert_eq!(test_unit(&mut sessions[0], LUN_AUTO).status, 0);
    daemon.stop();
}
