//! The state directory, the flash log and the backing have to agree, or the volume is refused: what an administrator can bring about with copies,
//! exchanged devices, a lost directory and disks that change while the daemon is stopped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::loop_device::LoopDevice;
use e2e::site::Site;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Blocks that are written, scattered over the volume.
const BLOCKS: u64 = 500;
const VOLUME: u64 = 64 * MIB;

fn flash(site: &mut Site, devices: &[&str], lines: &str) {
    let devices: Vec<_> = devices.iter().map(|name| format!("\"{}\"", site.folder.join(name).display())).collect();
    site.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n{lines}\n", devices.join(", "));
}

/// A site with a volume on spindles so slow that a stop leaves nearly everything in the flash log.
fn slow(devices: &[&str], lines: &str) -> Site {
    let mut site = Site::new();
    site.volume_on("v", "sim://raid5?disks=3&type=nlsas", "size = \"64 MiB\"");
    flash(&mut site, devices, lines);
    site
}

fn block(number: u64, version: u8) -> Vec<u8> {
    let mut block = vec![version; BLOCK as usize];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn place(number: u64) -> u64 {
    number * 29 % (VOLUME / BLOCK) * BLOCK
}

/// Writes the scattered blocks and flushes.
fn write(site: &Site, version: u8) {
    write_some(site, 0..BLOCKS, version);
}

fn write_some(site: &Site, numbers: std::ops::Range<u64>, version: u8) {
    let mut client = Client::connect(&site.endpoint(), "v").expect("it is served");
    for number in numbers {
        client.write(place(number), &block(number, version)).expect("it writes");
    }
    client.flush().expect("it flushes");
}

/// How many of the blocks hold `version` in a volume's content.
fn count(image: &[u8], version: u8) -> u64 {
    let held = |number: &u64| {
        let at = place(*number) as usize;
        image[at..at + BLOCK as usize] == block(*number, version)
    };
    (0..BLOCKS).filter(held).count() as u64
}

fn read(site: &Site) -> Vec<u8> {
    Client::connect(&site.endpoint(), "v").and_then(|mut client| client.read_all()).expect("it reads")
}

fn backing(site: &Site) -> Vec<u8> {
    fs::read(site.folder.join("state/sim/v.img")).expect("the backing is there")
}

fn path(site: &Site, name: &str) -> PathBuf {
    site.folder.join(name)
}

fn copy(site: &Site, from: &str, to: &str) {
    fs::copy(path(site, from), path(site, to)).expect("the file is there");
}

fn rename(site: &Site, from: &str, to: &str) {
    fs::rename(path(site, from), path(site, to)).expect("the file is there");
}

fn show(daemon: &Daemon, name: &str) -> Value {
    serde_json::from_str(&daemon.command(&["volume", "show", name, "--json"])).expect("JSON")
}

/// The volume is refused with that code, and nobody gets anything of it.
fn is_refused(site: &Site, daemon: &Daemon, code: &str) -> String {
    let shown = show(daemon, "v");
    assert_eq!((&shown["state"], &shown["refusal"]), (&"refused".into(), &code.into()), "{shown}\n{}", daemon.log());
    assert!(Client::connect(&site.endpoint(), "v").is_err(), "a refused volume is served");
    shown["alerts"][0].as_str().expect("it says why").to_owned()
}

/// The name of the data that a refusal's text would have given up.
fn give_up(text: &str) -> String {
    let after = text.split("--give-up ").nth(1).unwrap_or_else(|| panic!("no data is named: {text}"));
    after.chars().take_while(char::is_ascii_alphanumeric).collect()
}

fn rebuild(site: &Site) -> String {
    let config = site.config();
    fs::write(&config, site.config_text()).expect("the folder can be written");
    let output = hotset(&["state", "rebuild", "--yes", "--config", &config.to_string_lossy()]);
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

#[test]
fn a_device_left_behind_is_refused_whatever_was_used_since() {
    let mut site = slow(&["a0", "a1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    flash(&mut site, &["a1"], "allow_single_copy = true");
    let daemon = site.start();
    write(&site, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    assert_eq!(count(&backing(&site), 2), BLOCKS);
    flash(&mut site, &["b0", "b1"], "");
    site.start().stop();
    flash(&mut site, &["a0"], "allow_single_copy = true");
    let daemon = site.start();
    let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("JSON");
    assert_eq!(
        (&status["flash"]["in_use"], &status["flash"]["refusal"]),
        (&false.into(), &"store-older".into()),
        "{status}"
    );
    assert_eq!(count(&read(&site), 2), BLOCKS, "the backing has everything, and needs no flash");
    daemon.stop();
    assert_eq!(count(&backing(&site), 2), BLOCKS, "nothing old was destaged");
}

#[test]
fn devices_restored_from_a_copy_before_a_destage_are_refused() {
    let site = slow(&["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    ["f0", "f1"].iter().for_each(|name| copy(&site, name, &format!("{name}.copy")));
    let daemon = site.start();
    write(&site, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    ["f0", "f1"].iter().for_each(|name| copy(&site, &format!("{name}.copy"), name));
    let daemon = site.start();
    assert!(daemon.log().contains("hold an older copy of flash store"), "{}", daemon.log());
    assert_eq!(count(&read(&site), 2), BLOCKS);
    daemon.stop();
    assert_eq!(count(&backing(&site), 2), BLOCKS);
}

#[test]
fn a_copy_taken_while_the_daemon_ran_is_refused_after_its_stop() {
    let site = slow(&["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    ["f0", "f1"].iter().for_each(|name| copy(&site, name, &format!("{name}.copy")));
    write(&site, 2);
    daemon.stop();
    ["f0", "f1"].iter().for_each(|name| copy(&site, &format!("{name}.copy"), name));
    let daemon = site.start();
    let why = is_refused(&site, &daemon, "dirty-elsewhere");
    assert!(why.contains("older copy of their log"), "{why}");
    daemon.stop();
    assert!(count(&backing(&site), 1) < BLOCKS, "nothing was destaged");
}

#[test]
fn a_lost_state_directory_refuses_and_is_made_anew_from_the_devices() {
    let site = slow(&["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "flush", "v"]);
    write(&site, 2);
    let before = show(&daemon, "v")["incarnation"].clone();
    daemon.kill();
    rename(&site, "state/state.json", "state.json.away");
    let daemon = site.start();
    let why = is_refused(&site, &daemon, "data-unclaimed");
    assert!(why.contains("hotset state rebuild"), "{why}");
    daemon.stop();
    let said = rebuild(&site);
    assert!(said.contains("of dirty data on flash") && said.contains("records of 1 volumes"), "{said}");
    let daemon = site.start();
    assert_eq!(count(&read(&site), 2), BLOCKS, "{}", daemon.log());
    assert_eq!(show(&daemon, "v")["incarnation"], before);
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&backing(&site), 2), BLOCKS);
}

#[test]
fn an_older_state_directory_is_recognised_at_every_start() {
    let site = slow(&["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    copy(&site, "state/state.json", "state.json.old");
    let daemon = site.start();
    write(&site, 2);
    daemon.stop();
    copy(&site, "state.json.old", "state/state.json");
    for start in 0..3 {
        let daemon = site.start();
        let why = is_refused(&site, &daemon, "state-older");
        assert!(why.contains("the state directory is an older copy"), "start {start}: {why}");
        daemon.stop();
    }
    // Without the store that told, it is as old.
    let mut without = site;
    let tables = std::mem::take(&mut without.tables);
    let daemon = without.start();
    is_refused(&without, &daemon, "state-older");
    daemon.stop();
    without.tables = tables;
    rebuild(&without);
    let daemon = without.start();
    assert_eq!(count(&read(&without), 2), BLOCKS, "{}", daemon.log());
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn a_damaged_state_file_says_how_to_make_it_anew_and_never_to_delete_it() {
    let site = slow(&["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    let file = path(&site, "state/state.json");
    let whole = fs::read(&file).expect("it is there");
    fs::write(&file, &whole[..whole.len() / 2]).expect("it can be written");
    let mut daemon = Daemon::launch(&site);
    assert!(!daemon.wait().success());
    let log = daemon.log();
    assert!(log.contains("is damaged") && log.contains("hotset state rebuild"), "{log}");
    for advice in ["move it away", "delete", "rm "] {
        assert!(!log.contains(advice), "{log}");
    }
    rebuild(&site);
    assert_eq!(fs::read(path(&site, "state/state.json.before-0")).expect("a copy"), whole[..whole.len() / 2]);
    let daemon = site.start();
    assert_eq!(count(&read(&site), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn pages_of_a_store_that_was_away_while_its_volume_was_written_are_dropped() {
    let mut site = Site::new();
    site.volume("v", VOLUME, "policy = \"write-through\"");
    flash(&mut site, &["f0", "f1"], "");
    site.tables = site.tables.replace("64 MiB", "256 MiB");
    let daemon = site.start();
    write(&site, 1);
    // All of it, so that a sample of what is cached finds three blocks seldom.
    daemon.command(&["volume", "pin", "v"]);
    let on_flash = || show(&daemon, "v")["flash"]["cached_bytes"].as_u64().unwrap_or(0);
    wait_for("pages on flash", || (on_flash() >= VOLUME / 10 * 9).then_some(()));
    daemon.stop();
    rename(&site, "f1", "away");
    let daemon = site.start();
    assert!(daemon.log().contains("flash is not used"), "{}", daemon.log());
    // Not among those that were destaged last, either.
    write_some(&site, 100..103, 2);
    daemon.stop();
    rename(&site, "away", "f1");
    let daemon = site.start();
    let image = read(&site);
    assert_eq!((count(&image, 2), count(&image, 1)), (3, BLOCKS - 3), "old pages were served");
    wait_for("the note that the old pages are gone", || {
        fs::read_to_string(path(&site, "state/state.json"))
            .is_ok_and(|text| !text.contains("\"cached_on\": []"))
            .then_some(())
    });
    daemon.stop();
}

#[test]
fn a_backing_rolled_back_under_dirty_data_is_refused() {
    let mut site = Site::new();
    site.volume("v", VOLUME, "");
    flash(&mut site, &["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "flush", "v"]);
    let old = fs::read(site.backing("v")).expect("the backing is there");
    write(&site, 2);
    daemon.command(&["volume", "flush", "v"]);
    write_some(&site, 0..10, 3);
    daemon.stop();
    let newest = fs::read(site.backing("v")).expect("the backing is there");
    // In place: its inode stays, and so does its identity.
    fs::write(site.backing("v"), &old).expect("it can be written");
    let daemon = site.start();
    let dirty = show(&daemon, "v")["state"] == "refused";
    assert!(dirty, "the stop destaged everything: {}", daemon.log());
    let why = is_refused(&site, &daemon, "content-differs");
    daemon.stop();
    assert_eq!(count(&fs::read(site.backing("v")).expect("there"), 1), BLOCKS, "nothing was written to it");
    fs::write(site.backing("v"), &newest).expect("it can be written");
    let daemon = site.start();
    let image = read(&site);
    assert_eq!((count(&image, 3), count(&image, 2)), (10, BLOCKS - 10));
    write_some(&site, 0..10, 4);
    daemon.stop();
    fs::write(site.backing("v"), &old).expect("it can be written");
    let daemon = site.start();
    let why_again = is_refused(&site, &daemon, "content-differs");
    let unnamed = daemon.try_command(&["volume", "adopt", "v"]);
    assert!(!unnamed.status.success() && text_of(&unnamed).contains("--give-up"), "{}", text_of(&unnamed));
    assert_eq!(give_up(&why), give_up(&why_again));
    daemon.command(&["volume", "adopt", "v", "--give-up", &give_up(&why_again)]);
    assert_eq!(count(&read(&site), 1), BLOCKS);
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn a_backing_that_shrank_names_what_lies_past_its_end() {
    let mut site = Site::new();
    site.volume("v", VOLUME, "");
    flash(&mut site, &["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    let file = fs::File::options().write(true).open(site.backing("v")).expect("it is there");
    file.set_len(VOLUME / 2).expect("it can be cut");
    let daemon = site.start();
    let why = is_refused(&site, &daemon, "backing-shrank");
    assert!(why.contains(&format!("has {} bytes and had {VOLUME}", VOLUME / 2)), "{why}");
    assert!(why.contains("hotset volume resize v --discard-dirty"), "{why}");
    daemon.stop();
    file.set_len(VOLUME).expect("it can be grown");
    let daemon = site.start();
    assert_eq!(count(&read(&site), 1), BLOCKS, "with its old size everything is there");
    write(&site, 2);
    daemon.stop();
    file.set_len(VOLUME / 2).expect("it can be cut");
    let daemon = site.start();
    is_refused(&site, &daemon, "backing-shrank");
    daemon.command(&["volume", "resize", "v", "--discard-dirty"]);
    let image = read(&site);
    assert_eq!(image.len() as u64, VOLUME / 2);
    let inside = (0..BLOCKS).filter(|number| place(*number) < VOLUME / 2);
    assert!(inside.clone().all(|number| image[place(number) as usize..][..BLOCK as usize] == block(number, 2)));
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn a_volume_added_under_a_removed_name_keeps_it_over_a_restart() {
    let mut site = Site::new();
    site.volume("v", VOLUME, "");
    flash(&mut site, &["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "remove", "v"]);
    let other = path(&site, "other.img");
    fs::File::create(&other).and_then(|file| file.set_len(VOLUME)).expect("the folder can be written");
    daemon.command(&["volume", "add", "v", "--backing", &other.to_string_lossy()]);
    write(&site, 2);
    daemon.stop();
    let daemon = site.start();
    assert_eq!(show(&daemon, "v")["state"], "active", "{}", daemon.log());
    assert_eq!(count(&read(&site), 2), BLOCKS, "the added volume is the one that has the name");
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&fs::read(site.backing("v")).expect("there"), 1), BLOCKS, "the removed one was left alone");
}

#[test]
fn a_device_known_by_its_number_alone_has_to_prove_itself() {
    let mut site = Site::new();
    let made = LoopDevice::attach(&path(&site, "a.img"), VOLUME, 512);
    let disk = match made {
        Ok(disk) => disk,
        Err(reason) => {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: devices without a serial number: no loop device can be made ({reason})"
            );
            return;
        }
    };
    let node: &Path = disk.path();
    site.volume_on("v", &node.to_string_lossy(), "");
    flash(&mut site, &["f0", "f1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "flush", "v"]);
    write_some(&site, 0..10, 2);
    daemon.stop();
    // Another disk under the same number.
    let node = node.to_owned();
    drop(disk);
    let other = LoopDevice::attach(&path(&site, "b.img"), VOLUME, 512).expect("one could be made before");
    if other.path() != node {
        let _ = writeln!(std::io::stderr(), "SKIPPED: another disk under the same number: the number was taken");
        return;
    }
    let daemon = site.start();
    let shown = show(&daemon, "v");
    assert_eq!(shown["state"], "refused", "{shown}");
    daemon.stop();
    assert!(
        fs::read(path(&site, "b.img")).expect("there").iter().all(|byte| *byte == 0),
        "a strange disk was written to"
    );
}
