//! Memory that survives the daemon: a kill at any moment loses no acknowledged write, flushed or not.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::refusal::causes::{STATE, copy, path};
use e2e::refusal::volume_refusal;

use crate::history::SmallDisk;
use crate::kill::kill_rounds;

const BYTES: usize = 8 << 20;
const SECTOR: usize = 512;

/// Expected content of a sector: `byte`, or `pending` of an unanswered request that may have taken effect.
#[derive(Clone, Copy)]
struct Sector {
    byte: u8,
    pending: u8,
}

fn fixture(lines: &str) -> Fixture {
    let mut fixture = Fixture::with_volume(BYTES as u64);
    fixture.keep_in = "/dev/shm".to_owned();
    fixture.tables += lines;
    fixture
}

/// Sends writes until the daemon ends. Requests without a reply may have taken effect.
fn write_until_killed(client: &mut Client, sectors: &mut [Sector], random: &mut Random) {
    loop {
        let first = random.below(sectors.len() as u64) as usize;
        let count_max = if random.chance(30) { 2048 } else { 24 };
        let count = (1 + random.below(count_max) as usize).min(sectors.len() - first);
        let zeroes = random.chance(25);
        let byte = if zeroes { 0 } else { 1 + random.below(255) as u8 };
        let (offset, len) = ((first * SECTOR) as u64, count * SECTOR);
        let result = match zeroes {
            true => client.call(Op::WriteZeroes, 0, offset, len, &[]).map(drop),
            false => client.write(offset, &vec![byte; len]),
        };
        let after_request = |sector: &Sector| {
            if result.is_ok() { Sector { byte, pending: byte } } else { Sector { pending: byte, ..*sector } }
        };
        sectors[first..first + count].iter_mut().for_each(|sector| *sector = after_request(sector));
        if result.is_err() {
            return;
        }
        if random.chance(2) && client.flush().is_err() {
            return;
        }
    }
}

/// Checks the content of every sector, which becomes the expected one.
fn check_content(client: &mut Client, sectors: &mut [Sector], round: u64) {
    let content = client.read_all().expect("the read succeeds");
    for (number, (sector, content)) in sectors.iter_mut().zip(content.chunks(SECTOR)).enumerate() {
        let byte = content[0];
        assert!(content.iter().all(|other| *other == byte), "round {round}: sector {number} is torn");
        let Sector { byte: expected, pending } = *sector;
        assert!(
            byte == expected || byte == pending,
            "round {round}: sector {number} holds {byte}; acknowledged was {expected}, in flight {pending}"
        );
        *sector = Sector { byte, pending: byte };
    }
}

/// Persisted-memory files that the fixture's state directory names.
fn persisted_files(fixture: &Fixture) -> Vec<PathBuf> {
    let state = std::fs::read(fixture.folder.join("state/state.json")).expect("the state file exists");
    let state: serde_json::Value = serde_json::from_slice(&state).expect("valid JSON");
    let records = state["kept"].as_array().cloned().unwrap_or_default();
    records.iter().map(|record| record["path"].as_str().expect("a path").into()).collect()
}

#[test]
fn kill_loses_no_acknowledged_write() {
    check_random_kills(&fixture(""));
}

#[test]
fn kill_with_a_flash_log_loses_no_acknowledged_write() {
    check_random_kills(&fixture("[flash]\ndevices = [\"one\", \"two\"]\nsize = \"64 MiB\"\n"));
}

fn check_random_kills(fixture: &Fixture) {
    let mut random = Random::new(seed("kept"));
    let mut sectors = vec![Sector { byte: 0, pending: 0 }; BYTES / SECTOR];
    let mut daemon = fixture.start();
    for round in 0..kill_rounds() {
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        check_content(&mut client, &mut sectors, round);
        let pause = Duration::from_millis(5 + random.below(300));
        std::thread::scope(|scope| {
            scope.spawn(|| write_until_killed(&mut client, &mut sectors, &mut random));
            std::thread::sleep(pause);
            daemon.kill();
        });
        assert!(!persisted_files(fixture).is_empty());
        if round % 3 == 2 {
            // A daemon that is killed while it starts, or just afterwards.
            let starting = Daemon::launch(fixture);
            std::thread::sleep(Duration::from_millis(round * 7 % 60));
            starting.kill();
        }
        daemon = fixture.start();
    }
    assert!(
        daemon.log().contains("acknowledged blocks and zero ranges"),
        "no memory was recovered in any round:\n{}",
        daemon.log()
    );
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    check_content(&mut client, &mut sectors, kill_rounds());
    drop(client);
    let remaining = persisted_files(fixture);
    assert_eq!(remaining.len(), 1, "an unneeded file remains: {remaining:?}");
    daemon.command(&["stop", "--destage"]);
    daemon.wait();
    assert!(persisted_files(fixture).is_empty() && !remaining[0].exists(), "a clean stop leaves nothing in memory");
    let content = std::fs::read(fixture.backing("v")).expect("the backing exists");
    assert!(
        content.chunks(SECTOR).zip(&sectors).all(|(content, sector)| content[0] == sector.byte),
        "the backing is complete"
    );
}

#[test]
fn persisted_data_waits_for_its_volume_and_write_access() {
    let mut fixture = fixture("");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(4096, &[7; 8192]).expect("the write succeeds");
    daemon.kill();
    // Another volume is served meanwhile, and its daemon is killed as well.
    fixture.clear_volumes();
    fixture.add_volume("other", 1 << 20, "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "other").expect("the volume is served");
    client.write(0, &[8; 4096]).expect("the write succeeds");
    daemon.kill();
    assert_eq!(persisted_files(&fixture).len(), 2);
    fixture.clear_volumes();
    let backing = fixture.backing("v").display().to_string();
    fixture.add_volume_on("v", &backing, "read_only = true");
    let daemon = fixture.start();
    assert!(daemon.log().contains("serve it without read_only"), "{}", daemon.log());
    let refused = daemon.try_command(&["volume", "remove", "v"]);
    let text = text_of(&refused);
    assert!(!refused.status.success() && text.contains("memory of a killed daemon"), "{text}");
    let file = persisted_files(&fixture)[0].display().to_string();
    assert!(text.contains(&file) && text.contains("volume remove v --give-up "), "{text}");
    daemon.stop();
    assert_eq!(persisted_files(&fixture).len(), 2, "no start has served the second volume");
    fixture.clear_volumes();
    fixture.add_volume_on("v", &backing, "");
    let other = fixture.backing("other").display().to_string();
    fixture.add_volume_on("other", &other, "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(4096, 8192).expect("the read succeeds"), [7; 8192]);
    let mut client = Client::connect(&fixture.endpoint(), "other").expect("the volume is served");
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [8; 4096]);
    assert_eq!(persisted_files(&fixture).len(), 1);
    daemon.stop();
}

/// Copies the state file of a running daemon, which may be replacing it.
fn copy_state_while_running(fixture: &Fixture, to: &str) {
    wait_for("a complete copy of the state file", || {
        let text = std::fs::read_to_string(path(fixture, STATE)).ok()?;
        serde_json::from_str::<serde_json::Value>(&text).ok()?;
        std::fs::write(path(fixture, to), text).ok()
    });
}

#[test]
fn start_refused_as_older_keeps_memory_of_unlisted_volumes() {
    let fixture = fixture("[flash]\ndevices = [\"one\", \"two\"]\nsize = \"64 MiB\"\n");
    let daemon = fixture.start();
    copy_state_while_running(&fixture, "state.old");
    let backing = fixture.backing("db").display().to_string();
    daemon.command(&["volume", "add", "db", "--backing", &backing, "--size", "4 MiB"]);
    for (name, byte) in [("v", 7), ("db", 8)] {
        let mut client = Client::connect(&fixture.endpoint(), name).expect("the volume is served");
        client.write(4096, &[byte; 8192]).expect("the write succeeds");
    }
    daemon.kill();
    let files = persisted_files(&fixture);
    copy(&fixture, STATE, "state.new");
    copy(&fixture, "state.old", STATE);
    for _ in 0..2 {
        let daemon = fixture.start();
        volume_refusal(&fixture, &daemon, "state-older");
        daemon.stop();
        assert_eq!(persisted_files(&fixture), files, "the refused daemon removes only its own file");
        assert!(files.iter().all(|file| file.exists()));
    }
    copy(&fixture, "state.new", STATE);
    let daemon = fixture.start();
    for (name, byte) in [("v", 7), ("db", 8)] {
        let mut client = Client::connect(&fixture.endpoint(), name).expect("the volume is served");
        assert_eq!(client.read(4096, 8192).expect("the read succeeds"), [byte; 8192], "volume {name}");
        client.flush().expect("nothing is lost: no flush fails");
    }
    daemon.stop();
    assert!(persisted_files(&fixture).is_empty() && files.iter().all(|file| !file.exists()));
}

#[test]
fn start_refused_as_older_keeps_an_image_without_content() {
    let fixture = fixture("[flash]\ndevices = [\"one\", \"two\"]\nsize = \"64 MiB\"\n");
    let daemon = fixture.start();
    copy_state_while_running(&fixture, "state.old");
    let backing = fixture.backing("db").display().to_string();
    daemon.command(&["volume", "add", "db", "--backing", &backing, "--size", "4 MiB"]);
    daemon.kill();
    copy(&fixture, STATE, "state.new");
    copy(&fixture, "state.old", STATE);
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "state-older");
    daemon.stop();
    copy(&fixture, "state.new", STATE);
    let daemon = fixture.start();
    for name in ["v", "db"] {
        let mut client = Client::connect(&fixture.endpoint(), name).expect("the volume is served");
        client.flush().expect("the image proves that nothing is lost: no flush fails");
    }
    daemon.stop();
}

#[test]
fn keep_in_outside_a_memory_file_system_is_refused() {
    let mut fixture = fixture("");
    fixture.keep_in = fixture.folder.path().display().to_string();
    std::fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let output = hotset(&["serve", "--config", &fixture.config().to_string_lossy()]);
    assert!(!output.status.success());
    let text = text_of(&output);
    assert!(text.contains("[memory] keep_in") && text.contains("is not on tmpfs"), "{text}");
}

/// The byte of a file's first word that holds the format version.
const VERSION_OFFSET: u64 = 7;

fn set_version(file: &Path, version: u8) {
    let file = std::fs::File::options().write(true).open(file).expect("the file was left behind");
    file.write_all_at(&[version], VERSION_OFFSET).expect("the file can be written");
}

#[test]
fn persisted_memory_of_a_newer_version_refuses_only_its_volumes() {
    let mut fixture = fixture("");
    fixture.add_volume("whole", 1 << 20, "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(4096, &[7; 8192]).expect("the write succeeds");
    // A volume that is stopped cleanly before the kill.
    let config = fixture.config_text();
    let (before, _) = config.split_once("[[volume]]\nname = \"whole\"").expect("the volume is the last one");
    std::fs::write(fixture.config(), before).expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("the removal", || daemon.log().contains("volume whole: removed").then_some(()));
    daemon.kill();
    let file = persisted_files(&fixture)[0].clone();
    set_version(&file, 99);
    let daemon = fixture.start();
    let mut whole = Client::connect(&fixture.endpoint(), "whole").expect("a cleanly stopped volume is served");
    whole.write(0, &[1; 512]).expect("the write succeeds");
    assert!(Client::connect(&fixture.endpoint(), "v").is_err(), "a volume that may have lost writes is not served");
    let shown = daemon.command(&["volume", "show", "v"]);
    for word in [file.to_str().expect("a UTF-8 path"), "a newer version", "volume adopt v"] {
        assert!(shown.contains(word), "{word} is missing in {shown}");
    }
    let refused = text_of(&daemon.try_command(&["volume", "remove", "v"]));
    assert!(refused.contains("memory of a killed daemon"), "{refused}");
    drop(whole);
    daemon.stop();
    assert!(file.exists(), "the daemon never removes the file");
    set_version(&file, 2);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(4096, 8192).expect("the read succeeds"), [7; 8192], "nothing is lost");
    drop(client);
    daemon.stop();
    assert!(!file.exists(), "the file is not needed any more");
}

#[test]
fn persisted_memory_of_a_newer_version_is_discarded_only_by_adopt() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(4096, &[7; 8192]).expect("the write succeeds");
    daemon.kill();
    let file = persisted_files(&fixture)[0].clone();
    set_version(&file, 99);
    let daemon = fixture.start();
    daemon.command(&["volume", "adopt", "v"]);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(4096, 8192).expect("the read succeeds"), [0; 8192], "the backing is the volume's data now");
    assert!(client.flush().is_err() && client.flush().is_ok(), "and its clients see one failed flush");
    drop(client);
    daemon.stop();
    assert!(file.exists(), "the daemon never removes the file");
    std::fs::remove_file(&file).expect("an administrator may");
    let daemon = fixture.start();
    assert_eq!(persisted_files(&fixture).len(), 1, "the file's record is removed as well");
    daemon.stop();
}

#[test]
fn memory_persisted_on_a_full_tmpfs_is_recovered() {
    let mut fixture = Fixture::with_volume(BYTES as u64);
    fixture.memory = "32 MiB".to_owned();
    let Some(tmpfs) = SmallDisk::mount_sized(&fixture.folder.join("shm"), "80m") else { return };
    fixture.keep_in = tmpfs.path().display().to_string();
    let alerts = |daemon: &Daemon| {
        let status: serde_json::Value =
            serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON");
        status["active_alerts"].as_array().expect("a list").clone()
    };
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[9; 64 << 10]).expect("acknowledged");
    daemon.kill();
    tmpfs.fill();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(0, 64 << 10).expect("the read succeeds"), vec![9; 64 << 10]);
    client.flush().expect("nothing is lost: no flush fails");
    let alert = wait_for("the alert", || alerts(&daemon).into_iter().find(|alert| alert["kind"] == "memory-not-kept"));
    assert!(alert["cause"].as_str().is_some_and(|cause| cause.contains(&fixture.keep_in)), "{alert}");
    drop(client);
    daemon.stop();
    assert!(persisted_files(&fixture).is_empty(), "the recovered file is removed");
    tmpfs.empty();
    let daemon = fixture.start();
    assert_eq!(persisted_files(&fixture).len(), 1, "memory is persisted again with free space");
    assert!(alerts(&daemon).iter().all(|alert| alert["kind"] != "memory-not-kept"));
    daemon.stop();
}
