//! Flash files and the file systems that they lie on.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::terminal::Terminal;

use crate::flash::{device_roles, failing_devices, json, roles, set_flash_devices};
use crate::history::SmallDisk;
use crate::state::Obstacle;

const MIB: u64 = 1 << 20;
const FLASH_BYTES: u64 = 64 * MIB;

fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).expect("the file exists").blocks() * 512
}

#[test]
fn sparse_flash_files_get_all_of_their_blocks() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["made", "sparse", "added"].map(|name| fixture.folder.join(name));
    for path in &paths[1..] {
        File::create(path).and_then(|file| file.set_len(FLASH_BYTES)).expect("the folder can be written");
        assert_eq!(allocated_bytes(path), 0, "the file system makes sparse files");
    }
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1]]);
    let daemon = fixture.start();
    daemon.command(&["flash", "add", &paths[2].display().to_string()]);
    for path in &paths {
        assert!(allocated_bytes(path) >= FLASH_BYTES, "{}: {} bytes", path.display(), allocated_bytes(path));
    }
    daemon.stop();
}

#[test]
fn oversized_flash_file_is_refused_before_a_write_fails() {
    let mut fixture = Fixture::with_volume(MIB);
    let mount_point = fixture.folder.join("small");
    let Some(_small) = SmallDisk::mount_sized(&mount_point, "48m") else { return };
    let (new, sparse, allocated_file) =
        (mount_point.join("new"), mount_point.join("sparse"), fixture.folder.join("whole"));
    File::create(&sparse).and_then(|file| file.set_len(FLASH_BYTES)).expect("the file system has space");
    set_flash_devices(&mut fixture, &[&allocated_file, &sparse]);
    let daemon = fixture.start();
    let log = daemon.log();
    let line =
        log.lines().find(|line| line.contains("flash is not used") || line.contains("flash: ")).unwrap_or_default();
    assert!(line.contains(&sparse.display().to_string()) && line.contains("free space there"), "{log}");
    assert_eq!(allocated_bytes(&sparse), 0, "the file system must not be filled");
    daemon.stop();
    set_flash_devices(&mut fixture, &[&new]);
    fixture.tables += "allow_single_copy = true\n";
    let daemon = fixture.start();
    assert!(daemon.log().contains("free space there"), "{}", daemon.log());
    assert!(!new.exists(), "a file that cannot be used is not left behind");
    let added = daemon.try_command(&["flash", "list"]);
    assert!(text_of(&added).contains("free space there"), "{}", text_of(&added));
    daemon.stop();
}

#[test]
fn mistyped_path_of_a_new_flash_device_creates_no_file() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["f0", "f1"].map(|name| fixture.folder.join(name));
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1]]);
    let daemon = fixture.start();
    let old = paths[1].display().to_string();
    for mistyped in [fixture.folder.join("none/f2"), Path::new("/dev/hotset-no-such-device").to_owned()] {
        let new = mistyped.display().to_string();
        for args in [&["flash", "add", &new][..], &["flash", "replace", &old, &new]] {
            let output = daemon.try_command(args);
            let text = text_of(&output);
            assert!(!output.status.success() && text.contains("does not exist"), "{args:?}: {text}");
        }
        assert!(!mistyped.exists() && !fixture.folder.join("none").exists(), "{new} was created");
    }
    // In an existing directory a file would be created, so the command asks.
    let (mistyped, socket) = (fixture.folder.join("f9"), fixture.folder.join("control.sock").display().to_string());
    let new = mistyped.display().to_string();
    for args in [&["flash", "add", &new][..], &["flash", "replace", "1", &new]] {
        let mut terminal = Terminal::run(&fixture.folder, &[args, &["--socket", &socket]].concat(), 250, 10);
        let asked = terminal.wait_for("the question", |text| text.contains("Create it?"));
        assert!(asked.contains("f9 does not exist: a file of 64 MiB is created there"), "{asked}");
        terminal.press("n\r");
        assert!(!terminal.wait().success(), "{}", terminal.text());
        assert!(!mistyped.exists(), "{new} was created");
    }
    daemon.stop();
    // The list of devices is as before.
    let daemon = fixture.start();
    assert!(!daemon.command(&["flash", "list"]).contains("does not exist"), "{}", daemon.log());
    daemon.stop();
    fixture.tables = fixture.tables.replace("size = \"64 MiB\"", "");
    let daemon = fixture.start();
    let new = fixture.folder.join("f2");
    let text = text_of(&daemon.try_command(&["flash", "add", &new.display().to_string()]));
    assert!(text.contains("does not exist") && !new.exists(), "without a size no file is created: {text}");
    daemon.stop();
}

#[test]
fn removed_flash_file_is_created_again_by_command_alone() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["f0", "f1", "f2"].map(|name| fixture.folder.join(name));
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1]]);
    let daemon = fixture.start();
    let added = paths[2].display().to_string();
    let output = daemon.try_command(&["flash", "add", &added]);
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("a file of 64 MiB is created there"), "{text}");
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    // A device of clean pages may be missing.
    fs::remove_file(&paths[2]).expect("the command has created it");
    let daemon = fixture.start();
    let list = daemon.command(&["flash", "list"]);
    assert!(list.contains("is not created again") && !paths[2].exists(), "{list}");
    daemon.command(&["flash", "add", &added]);
    assert!(allocated_bytes(&paths[2]) >= FLASH_BYTES, "{}", daemon.log());
    daemon.stop();
}

#[test]
fn removal_with_a_take_over_of_the_log_asks_before_it_drops_pages() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    let paths = ["f0", "f1", "f2"].map(|name| fixture.folder.join(name));
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1], &paths[2]]);
    let daemon = fixture.start();
    daemon.command(&["volume", "pin", "v"]);
    let list = || json(&daemon, &["flash", "list"]);
    wait_for("pinned pages on flash", || (list()["pages"]["pages"] == 256).then_some(()));
    let pages = |index: usize| list()["devices"][index]["pages"].as_u64().expect("a number");
    let dropped = pages(0) + pages(2);
    assert!(dropped > 0, "{}", list());
    let warning = format!("f2 are dropped: {dropped} clean page");
    let (device, socket) = (paths[0].display().to_string(), fixture.folder.join("control.sock").display().to_string());
    let mut terminal = Terminal::run(&fixture.folder, &["flash", "remove", &device, "--socket", &socket], 400, 10);
    let asked = terminal.wait_for("the question", |text| text.contains("Remove it?"));
    assert!(asked.contains(&warning), "{asked}");
    terminal.press("n\r");
    assert!(!terminal.wait().success(), "{}", terminal.text());
    assert_eq!(device_roles(&list()), roles(&[("f0", "log"), ("f1", "log"), ("f2", "pages")]));
    let removed = daemon.try_command(&["flash", "remove", &device, "--yes"]);
    let text = text_of(&removed);
    assert!(removed.status.success() && text.contains("f2 takes over the log; all clean pages of "), "{text}");
    assert_eq!(device_roles(&list()), roles(&[("f1", "log"), ("f2", "log")]));
    daemon.stop();
}

#[test]
fn file_that_names_a_replaced_device_is_a_problem_until_a_reload() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["f0", "f1", "f2"].map(|name| fixture.folder.join(name));
    let [f0, f1, f2] = &paths;
    set_flash_devices(&mut fixture, &[f0, f1]);
    let daemon = fixture.start();
    let named = format!("names {}, {} in [flash], and the devices in use are", f0.display(), f1.display());
    let to_write = format!("set devices = [\"{}\", \"{}\"] there", f1.display(), f2.display());
    let answer = daemon.command(&["flash", "replace", &f0.display().to_string(), &f2.display().to_string()]);
    assert!(answer.contains(&named) && answer.contains(&to_write), "{answer}");
    let has_alert = |daemon: &Daemon| {
        let status = json(daemon, &["status"]);
        let mut active = status["active_alerts"].as_array().expect("a list").iter();
        active.any(|alert| {
            alert["kind"] == "flash-unlisted" && alert["cause"].to_string().contains("may miss dirty data")
        })
    };
    wait_for("the alert", || has_alert(&daemon).then_some(()));
    daemon.stop();
    // It lasts across a restart with the unchanged file.
    let daemon = fixture.start();
    assert!(daemon.command(&["flash", "list"]).contains(&to_write), "{}", daemon.log());
    wait_for("the alert", || has_alert(&daemon).then_some(()));
    set_flash_devices(&mut fixture, &[f1, f2]);
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("the end of the problem", || (!daemon.command(&["flash", "list"]).contains(&to_write)).then_some(()));
    wait_for("the end of the alert", || (!has_alert(&daemon)).then_some(()));
    // A command after the reload changes the list that the file has now.
    daemon.command(&["flash", "replace", &f1.display().to_string(), &f0.display().to_string()]);
    wait_for("the alert", || has_alert(&daemon).then_some(()));
    daemon.stop();
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!(device_roles(&list), roles(&[("f2", "log"), ("f0", "log")]), "{list}");
    wait_for("the alert", || has_alert(&daemon).then_some(()));
    set_flash_devices(&mut fixture, &[f0, f2]);
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.stop();
    let daemon = fixture.start();
    let list = json(&daemon, &["flash", "list"]);
    assert_eq!(device_roles(&list), roles(&[("f2", "log"), ("f0", "log")]), "{list}");
    assert_eq!(list["alerts"].as_array().map(Vec::len), Some(0), "{list}");
    daemon.stop();
}

#[test]
fn file_that_names_a_device_by_a_link_names_the_device_in_use() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["f0", "f1", "f2", "by-id"].map(|name| fixture.folder.join(name));
    let [f0, f1, f2, link] = &paths;
    set_flash_devices(&mut fixture, &[f0, f1]);
    let daemon = fixture.start();
    daemon.command(&["flash", "replace", &f0.display().to_string(), &f2.display().to_string()]);
    let has_problem = || daemon.command(&["flash", "list"]).contains("may miss dirty data");
    assert!(has_problem(), "the file names f0");
    symlink("f2", link).expect("the folder can be written");
    set_flash_devices(&mut fixture, &[link, f1]);
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("the end of the problem", || (!has_problem()).then_some(()));
    let refused = text_of(&daemon.try_command(&["flash", "add", &link.display().to_string()]));
    assert!(refused.contains("already, in service"), "{refused}");
    daemon.stop();
}

#[test]
fn replacement_says_how_many_clean_pages_are_kept() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    let paths = ["f0", "f1", "f2"].map(|name| fixture.folder.join(name));
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1]]);
    let daemon = fixture.start();
    daemon.command(&["volume", "pin", "v"]);
    let list = || json(&daemon, &["flash", "list"]);
    wait_for("pinned pages on flash", || (list()["pages"]["pages"] == 256).then_some(()));
    let kept = list()["devices"][0]["pages"].as_u64().expect("a number");
    let [old, new] = [&paths[0], &paths[2]].map(|path| path.display().to_string());
    let text = text_of(&daemon.try_command(&["flash", "replace", &old, &new]));
    let announced = format!("{old}: its {kept} clean pages");
    assert!(text.contains(&announced) && text.contains("or to other devices with room"), "{text}");
    assert_eq!((&list()["pages"]["pages"], &list()["pages"]["unmapped_slots"]), (&256.into(), &0.into()));
    daemon.stop();
}

#[test]
fn several_absent_devices_are_named_with_number_and_possible_paths() {
    let mut fixture = Fixture::with_volume(MIB);
    let paths = ["f0", "f1", "f2", "f3"].map(|name| fixture.folder.join(name));
    set_flash_devices(&mut fixture, &[&paths[0], &paths[1], &paths[2], &paths[3]]);
    fixture.start().stop();
    // Devices of clean pages may be missing.
    paths[2..].iter().for_each(|path| fs::remove_file(path).expect("the start has created it"));
    let daemon = fixture.start();
    let list = daemon.command(&["flash", "list"]);
    let possible = format!("its path may be {} or {}", paths[2].display(), paths[3].display());
    for number in [2, 3] {
        let start = format!("flash device number {number} is lost: ");
        let line = list.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{list}"));
        assert!(line.contains(&possible), "{line}");
    }
    daemon.stop();
}

#[test]
fn flush_on_one_copy_fails_until_the_state_records_it() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    let Some(devices) = failing_devices(&fixture, &["l0", "l1"]) else { return };
    set_flash_devices(&mut fixture, &[devices[0].path(), devices[1].path()]);
    fixture.tables += "allow_single_copy = true\n";
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[1; 4096]).expect("the write succeeds");
    client.flush().expect("two copies");
    let obstacle = Obstacle::create(&fixture);
    devices[0].fail();
    client.write(0, &[2; 4096]).expect("memory has space");
    assert!(client.flush().is_err(), "one copy, and no record of it for the next start:\n{}", daemon.log());
    let list = daemon.command(&["flash", "list"]);
    assert!(list.contains("flushes fail"), "{list}");
    obstacle.remove();
    wait_for("successful flushes", || client.flush().ok());
    assert!(!daemon.command(&["flash", "list"]).contains("flushes fail"), "{}", daemon.log());
    drop(client);
    daemon.kill();
    let daemon = fixture.start();
    let mut client =
        Client::connect(&fixture.endpoint(), "v").unwrap_or_else(|error| panic!("{error}:\n{}", daemon.log()));
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [2; 4096]);
    drop(client);
    daemon.stop();
}
