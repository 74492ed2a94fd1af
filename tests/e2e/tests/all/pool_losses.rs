//! Devices of a pool that are lost or replaced: lists of lost ranges, errors for them alone, replacement by another
//! device, a device that is given up; and the load of slices over a restart.

use std::fs::{self, File};

use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SLICE: u64 = MIB;

/// A sparse file for a group.
fn add_file(fixture: &Fixture, name: &str, mib: u64) -> String {
    let path = fixture.folder.join(name);
    let file = File::create(&path).expect("the folder can be written");
    file.set_len(mib * MIB).expect("a sparse file can be created");
    path.display().to_string()
}

/// A pool "tank" of three devices in two tiers, with a volume on each tier.
fn created() -> Fixture {
    let mut fixture = Fixture::new();
    let [ssd, hdd, other] = [("ssd", 9), ("hdd", 17), ("other", 17)].map(|(name, mib)| add_file(&fixture, name, mib));
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\nrelocation = \"off\"\nrate = \"1 GiB/s\"\n\
         [[pool.tier]]\nname = \"ssd\"\ndevices = [\"{ssd}\"]\nclass = \"ssd\"\n\
         [[pool.tier]]\nname = \"hdd\"\ndevices = [\"{hdd}\", \"{other}\"]\nclass = \"nl-sas\"\n"
    );
    fixture.add_volume_on("fast", "pool://tank", "size = \"16 MiB\"\ntier_policy = \"ssd\"");
    fixture.add_volume_on("slow", "pool://tank", "size = \"16 MiB\"\ntier_policy = \"hdd\"");
    fixture.create_pool("tank");
    fixture
}

fn fill(client: &mut Client, slices: u64, value: u8) {
    for slice in 0..slices {
        client.write(slice * SLICE + 4096, &[value; 4096]).expect("the pool has room");
    }
    client.flush().expect("the pool is whole");
}

fn json(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(args)).expect("the report is JSON")
}

fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.try_command(args);
    assert!(!output.status.success(), "{args:?} is refused: {}", text_of(&output));
    text_of(&output)
}

#[test]
fn absent_device_is_listed_by_ranges_and_given_up_by_command() {
    let fixture = created();
    let daemon = fixture.start();
    fill(&mut fixture.connect("fast"), 4, 1);
    fill(&mut fixture.connect("slow"), 8, 2);
    assert!(daemon.command(&["pool", "lost", "tank"]).contains("no range"));
    daemon.stop();
    let hdd = fixture.folder.join("hdd");
    fs::rename(&hdd, fixture.folder.join("away")).expect("the file can be renamed");
    let daemon = fixture.start();
    let log = daemon.log();
    assert!(log.contains("requests to these ranges fail") && log.contains("of volume slow"), "{log}");

    let lost = json(&daemon, &["pool", "lost", "tank", "--json"]);
    let volume = &lost["volumes"][0];
    assert_eq!((volume["name"].as_str(), volume["bytes"].as_u64()), (Some("slow"), Some(4 * SLICE)), "{lost}");
    let ranges = volume["ranges"].as_array().expect("a list");
    assert_eq!(ranges.iter().map(|range| range["length_bytes"].as_u64().unwrap_or(0)).sum::<u64>(), 4 * SLICE);
    let lost_slice = ranges[0]["offset_bytes"].as_u64().expect("a number") / SLICE;
    let listed = daemon.command(&["pool", "lost", "tank"]);
    assert!(listed.contains("volume slow: 4 MiB") && listed.contains("requests to these ranges fail"), "{listed}");

    let mut slow = fixture.connect("slow");
    let readable: Vec<u64> = (0..8).filter(|slice| slow.read(slice * SLICE + 4096, 4096).is_ok()).collect();
    assert_eq!(readable.len(), 4);
    assert!(!readable.contains(&lost_slice));
    assert_eq!(fixture.connect("fast").read(4096, 4096).expect("another device"), [1; 4096]);

    let shown = hdd.display().to_string();
    let group = ranges[0]["number"].to_string();
    let text = refused(&daemon, &["pool", "replace", "tank", &group, &add_file(&fixture, "new", 17)]);
    assert!(text.contains("--lost") && text.contains("is absent"), "{text}");
    let text = refused(&daemon, &["pool", "replace", "tank", "0", "--lost", "--yes"]);
    assert!(text.contains("is present"), "{text}");
    daemon.command(&["pool", "replace", "tank", &group, "--lost", "--yes"]);
    assert!(daemon.command(&["pool", "show", "tank"]).contains("lost"));
    slow.read(lost_slice * SLICE, 4096).expect_err("a lost range does not become zeroes by itself");
    daemon.stop();

    // The device appears again: its slices stay lost.
    fs::rename(fixture.folder.join("away"), &hdd).expect("the file can be renamed");
    let daemon = fixture.start();
    let log = daemon.log();
    assert!(log.contains("was given up by its pool"), "{shown}: {log}");
    let mut slow = fixture.connect("slow");
    slow.read(lost_slice * SLICE, 4096).expect_err("a lost range stays lost");
    slow.call(Op::Trim, 0, lost_slice * SLICE, SLICE as usize, &[]).expect("a discard is accepted");
    slow.flush().expect("the other devices are whole");
    daemon.command(&["volume", "flush", "slow"]);
    slow.write(lost_slice * SLICE, &[9; 4096]).expect("the range takes data again");
    slow.flush().expect("the other devices are whole");
    assert_eq!(slow.read(lost_slice * SLICE, 4096).expect("a new slice"), [9; 4096]);
    daemon.stop();
}

/// A pool "tank" of two devices with eight slices of a volume, of which one device is away; and the daemon that refuses
/// the volume.
fn without_one_of_two() -> (Fixture, Daemon) {
    let mut fixture = Fixture::new();
    let [one, two] = ["one", "two"].map(|name| add_file(&fixture, name, 17));
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\nrelocation = \"off\"\n\
         [[pool.tier]]\nname = \"hdd\"\ndevices = [\"{one}\", \"{two}\"]\nclass = \"nl-sas\"\n"
    );
    fixture.add_volume_on("slow", "pool://tank", "size = \"16 MiB\"");
    fixture.create_pool("tank");
    let daemon = fixture.start();
    fill(&mut fixture.connect("slow"), 8, 2);
    daemon.stop();
    fs::rename(&two, fixture.folder.join("away")).expect("the file can be renamed");
    let daemon = fixture.start();
    let shown = daemon.command(&["volume", "show", "slow"]);
    assert!(shown.contains("hotset pool accept-missing"), "{shown}");
    (fixture, daemon)
}

fn accept_missing(fixture: &Fixture) -> String {
    let configuration = fixture.config().display().to_string();
    let output = hotset(&["pool", "accept-missing", "tank", "--yes", "--config", &configuration]);
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

/// Accepts the missing device, and returns the slices that can be read.
fn readable_without_the_other(fixture: &Fixture, daemon: &Daemon) -> Vec<u64> {
    let text = accept_missing(fixture);
    assert!(text.contains("may hold a newer state") && text.contains("opens without these devices"), "{text}");
    wait_for("the volume is served", || {
        let shown = daemon.command(&["volume", "show", "slow"]);
        (!shown.contains("accept-missing")).then_some(())
    });
    let mut slow = fixture.connect("slow");
    let readable: Vec<u64> = (0..8).filter(|slice| slow.read(slice * SLICE + 4096, 4096).is_ok()).collect();
    assert_eq!(readable.len(), 4);
    readable
}

#[test]
fn one_of_two_devices_opens_alone_when_that_is_accepted() {
    let (fixture, daemon) = without_one_of_two();
    let readable = readable_without_the_other(&fixture, &daemon);
    let mut slow = fixture.connect("slow");
    slow.write(readable[0] * SLICE + 4096, &[3; 4096]).expect("a present slice");
    slow.flush().expect("the present device is whole");
    daemon.stop();

    // The other device returns: it was not used meanwhile.
    fs::rename(fixture.folder.join("away"), fixture.folder.join("two")).expect("the file can be renamed");
    let daemon = fixture.start();
    let mut slow = fixture.connect("slow");
    for slice in 0..8 {
        let value = if slice == readable[0] { 3 } else { 2 };
        assert_eq!(slow.read(slice * SLICE + 4096, 4096).expect("both devices"), [value; 4096]);
    }
    daemon.stop();
    let text = accept_missing(&fixture);
    assert!(text.contains("nothing to accept"), "{text}");
}

#[test]
fn one_of_two_devices_gives_the_other_one_up() {
    let (fixture, daemon) = without_one_of_two();
    let readable = readable_without_the_other(&fixture, &daemon);
    let new = add_file(&fixture, "new", 17);
    daemon.command(&["pool", "replace", "tank", "1", &new, "--lost", "--yes"]);
    let mut slow = fixture.connect("slow");
    for slice in 0..8 {
        let result = slow.read(slice * SLICE + 4096, 4096);
        assert_eq!(result.is_ok(), readable.contains(&slice), "slice {slice}");
    }
    slow.write(12 * SLICE, &[5; 4096]).expect("room on the new device");
    slow.flush().expect("the present devices are whole");
    daemon.stop();
}

#[test]
fn replaced_device_hands_its_slices_to_the_new_one_even_over_a_kill() {
    let fixture = created();
    let daemon = fixture.start();
    fill(&mut fixture.connect("slow"), 8, 3);
    let hdd = fixture.folder.join("hdd").display().to_string();
    let new = add_file(&fixture, "new", 33);
    daemon.command(&["pool", "pause", "tank"]);
    let replaced = daemon.command(&["pool", "replace", "tank", &hdd, &new]);
    assert!(replaced.contains(&new) && replaced.contains("draining"), "{replaced}");
    assert!(daemon.command(&["job", "list"]).contains("drain-tank-1"));
    daemon.kill();
    let daemon = fixture.start();
    daemon.command(&["pool", "resume", "tank"]);
    wait_for("the end of the drain", || (!daemon.command(&["pool", "show", "tank"]).contains(&hdd)).then_some(()));
    let mut slow = fixture.connect("slow");
    for slice in 0..8 {
        assert_eq!(slow.read(slice * SLICE + 4096, 4096).expect("the pool is whole"), [3; 4096], "slice {slice}");
    }
    let pool = json(&daemon, &["pool", "show", "tank", "--json"]);
    let groups = pool["tiers"][1]["groups"].as_array().expect("a list");
    let joined = groups.iter().find(|group| group["device"] == new).expect("the new device is a group");
    assert!(joined["free_bytes"].as_u64() < joined["size_bytes"].as_u64(), "{joined}");
    daemon.stop();
}

#[test]
fn load_of_slices_is_known_after_a_restart() {
    let fixture = created();
    let daemon = fixture.start();
    fill(&mut fixture.connect("slow"), 8, 4);
    daemon.command(&["volume", "flush", "slow"]);
    let load = |daemon: &Daemon| -> u64 {
        let plan = json(daemon, &["pool", "plan", "tank", "--json"]);
        let classes = plan["heat"].as_array().expect("a list").clone();
        classes.iter().map(|class| class["ms_per_hour"].as_u64().expect("a number")).sum()
    };
    let before = load(&daemon);
    assert!(before > 0);
    daemon.stop();
    let daemon = fixture.start();
    assert!(daemon.log().contains("the load of its slices was saved"), "{}", daemon.log());
    assert!(load(&daemon) * 2 > before, "{} of {before}", load(&daemon));
    daemon.stop();
    let heat = fixture.folder.join("state/pool-tank.heat");
    fs::write(&heat, "nonsense").expect("the folder can be written");
    let daemon = fixture.start();
    assert!(daemon.log().contains("is ignored: it is damaged"), "{}", daemon.log());
    daemon.stop();
}
