//! The state directory, the flash log and the backing have to agree, or the volume is refused. The cases: copies,
//! exchanged devices, a lost directory and disks that change while the daemon is stopped.

use std::fs;
use std::io::Write;
use std::path::Path;

use e2e::blocks::{BLOCKS, VOLUME_BYTES, count, read, write, write_some};
use e2e::daemon::{Daemon, wait_for};
use e2e::loop_device::LoopDevice;
use e2e::refusal::scenes::{
    DEVICES, STATE, backing, on_file, on_slow_disks, path, rename, restore_devices, restored_state, save_devices,
    set_flash, slow_disks,
};
use e2e::refusal::{flash_refusal, rebuild, show, volume_refusal};
use e2e::site::Site;

#[test]
fn device_left_behind_is_refused() {
    let mut site = on_slow_disks(&["a0", "a1"], "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    set_flash(&mut site, &["a1"], "allow_single_copy = true");
    let daemon = site.start();
    write(&site, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    assert_eq!(count(&slow_disks(&site), 2), BLOCKS);
    set_flash(&mut site, &["b0", "b1"], "");
    site.start().stop();
    set_flash(&mut site, &["a0"], "allow_single_copy = true");
    let daemon = site.start();
    flash_refusal(&daemon, "store-older");
    assert_eq!(count(&read(&site), 2), BLOCKS, "the backing has everything, and needs no flash");
    daemon.stop();
    assert_eq!(count(&slow_disks(&site), 2), BLOCKS, "nothing old was destaged");
}

#[test]
fn devices_restored_from_a_copy_before_a_destage_are_refused() {
    let site = on_slow_disks(&DEVICES, "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    save_devices(&site, ".copy");
    let daemon = site.start();
    write(&site, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    restore_devices(&site, ".copy");
    let daemon = site.start();
    flash_refusal(&daemon, "store-older");
    assert_eq!(count(&read(&site), 2), BLOCKS);
    daemon.stop();
    assert_eq!(count(&slow_disks(&site), 2), BLOCKS);
}

#[test]
fn a_copy_taken_while_the_daemon_ran_is_refused_after_its_stop() {
    let site = on_slow_disks(&DEVICES, "");
    let daemon = site.start();
    write(&site, 1);
    save_devices(&site, ".copy");
    write(&site, 2);
    daemon.stop();
    restore_devices(&site, ".copy");
    let daemon = site.start();
    let why = volume_refusal(&site, &daemon, "dirty-elsewhere");
    assert!(why.contains("older copy of their log"), "{why}");
    daemon.stop();
    assert!(count(&slow_disks(&site), 1) < BLOCKS, "nothing was destaged");
}

#[test]
fn lost_state_directory_is_rebuilt_from_the_devices() {
    let site = on_slow_disks(&DEVICES, "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "flush", "v"]);
    write(&site, 2);
    let before = show(&daemon, "v")["incarnation"].clone();
    daemon.kill();
    rename(&site, STATE, "state.json.away");
    let daemon = site.start();
    volume_refusal(&site, &daemon, "data-unclaimed");
    daemon.stop();
    let said = rebuild(&site);
    assert!(said.contains("of dirty data on flash") && said.contains("records of 1 volumes"), "{said}");
    let daemon = site.start();
    assert_eq!(count(&read(&site), 2), BLOCKS, "{}", daemon.log());
    assert_eq!(show(&daemon, "v")["incarnation"], before);
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&slow_disks(&site), 2), BLOCKS);
}

#[test]
fn an_older_state_directory_is_recognised_at_every_start() {
    let mut site = restored_state();
    for _ in 0..3 {
        let daemon = site.start();
        volume_refusal(&site, &daemon, "state-older");
        daemon.stop();
    }
    // Without the store that showed its age, the directory is as old.
    let tables = std::mem::take(&mut site.tables);
    let daemon = site.start();
    volume_refusal(&site, &daemon, "state-older");
    daemon.stop();
    site.tables = tables;
    rebuild(&site);
    let daemon = site.start();
    assert_eq!(count(&read(&site), 2), BLOCKS, "{}", daemon.log());
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn damaged_state_file_names_the_rebuild_command() {
    let site = on_slow_disks(&DEVICES, "");
    let daemon = site.start();
    write(&site, 1);
    daemon.stop();
    let file = path(&site, STATE);
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
fn pages_of_a_store_missing_during_writes_are_dropped() {
    let mut site = Site::new();
    site.volume("v", VOLUME_BYTES, "policy = \"write-through\"");
    set_flash(&mut site, &DEVICES, "");
    site.tables = site.tables.replace("64 MiB", "256 MiB");
    let daemon = site.start();
    write(&site, 1);
    // All pages, since a sample of the cached blocks finds three blocks seldom.
    daemon.command(&["volume", "pin", "v"]);
    let on_flash = || show(&daemon, "v")["flash"]["cached_bytes"].as_u64().unwrap_or(0);
    wait_for("pages on flash", || (on_flash() >= VOLUME_BYTES / 10 * 9).then_some(()));
    daemon.stop();
    rename(&site, "f1", "away");
    let daemon = site.start();
    assert!(daemon.log().contains("flash is not used"), "{}", daemon.log());
    // Blocks that are not among the last destaged, either.
    write_some(&site, 100..103, 2);
    daemon.stop();
    rename(&site, "away", "f1");
    let daemon = site.start();
    let image = read(&site);
    assert_eq!((count(&image, 2), count(&image, 1)), (3, BLOCKS - 3), "old pages were served");
    wait_for("the note that the old pages are gone", || {
        fs::read_to_string(path(&site, STATE)).is_ok_and(|text| !text.contains("\"cached_on\": []")).then_some(())
    });
    daemon.stop();
}

#[test]
fn a_volume_added_under_a_removed_name_keeps_it_over_a_restart() {
    let site = on_file();
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "remove", "v"]);
    let other = path(&site, "other.img");
    fs::File::create(&other).and_then(|file| file.set_len(VOLUME_BYTES)).expect("the folder can be written");
    daemon.command(&["volume", "add", "v", "--backing", &other.to_string_lossy()]);
    write(&site, 2);
    daemon.stop();
    let daemon = site.start();
    assert_eq!(show(&daemon, "v")["state"], "active", "{}", daemon.log());
    assert_eq!(count(&read(&site), 2), BLOCKS, "the added volume is the one that has the name");
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&backing(&site), 1), BLOCKS, "the removed one was left alone");
}

#[test]
fn device_known_by_number_only_needs_proof() {
    let mut site = Site::new();
    let made = LoopDevice::attach(&path(&site, "a.img"), VOLUME_BYTES, 512);
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
    set_flash(&mut site, &DEVICES, "");
    let daemon = site.start();
    write(&site, 1);
    daemon.command(&["volume", "flush", "v"]);
    write_some(&site, 0..10, 2);
    daemon.stop();
    // Another disk under the same number.
    let node = node.to_owned();
    drop(disk);
    let other = LoopDevice::attach(&path(&site, "b.img"), VOLUME_BYTES, 512).expect("one could be made before");
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
