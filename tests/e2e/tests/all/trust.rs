//! The state directory, the flash log and the backing have to agree, or the volume is refused. The cases: copies,
//! replaced devices, a lost directory and disks that change while the daemon is stopped.

use std::fs;
use std::io::Write;
use std::path::Path;

use e2e::blocks::{BLOCKS, VOLUME_BYTES, count, read, write, write_some};
use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;
use e2e::loop_device::LoopDevice;
use e2e::refusal::causes::{
    DEVICES, STATE, backing, newer_devices, on_file, on_slow_disks, path, persisted_memory_file, rename,
    restore_devices, restored_state, save_devices, set_flash, slow_disks,
};
use e2e::refusal::{flash_refusal, json, rebuild, show, volume_refusal};

#[test]
fn stale_device_is_refused() {
    let mut fixture = on_slow_disks(&["a0", "a1"], "");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    set_flash(&mut fixture, &["a1"], "allow_single_copy = true");
    let daemon = fixture.start();
    write(&fixture, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    assert_eq!(count(&slow_disks(&fixture), 2), BLOCKS);
    set_flash(&mut fixture, &["b0", "b1"], "");
    fixture.start().stop();
    set_flash(&mut fixture, &["a0"], "allow_single_copy = true");
    let daemon = fixture.start();
    flash_refusal(&daemon, "store-older");
    assert_eq!(count(&read(&fixture), 2), BLOCKS, "the backing has everything, and needs no flash");
    daemon.stop();
    assert_eq!(count(&slow_disks(&fixture), 2), BLOCKS, "nothing old was destaged");
}

#[test]
fn lost_state_directory_beside_one_of_two_devices_refuses_the_volume() {
    let fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.kill();
    rename(&fixture, STATE, "lost");
    rename(&fixture, DEVICES[1], "away");
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "data-unclaimed");
    daemon.stop();
    // The start may have created a file in place of the missing one.
    let _ = fs::remove_file(path(&fixture, DEVICES[1]));
    rename(&fixture, "lost", STATE);
    rename(&fixture, "away", DEVICES[1]);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn lost_state_directory_beside_a_single_unused_device_is_refused() {
    let mut fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.kill();
    rename(&fixture, STATE, "lost");
    set_flash(&mut fixture, &DEVICES[..1], "");
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "data-unclaimed");
    daemon.stop();
    rename(&fixture, STATE, "new");
    rename(&fixture, "lost", STATE);
    let daemon = fixture.start();
    let reason = volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    assert!(reason.contains("has the whole log: set allow_single_copy") && !reason.contains("give-up"), "{reason}");
    daemon.stop();
    set_flash(&mut fixture, &DEVICES, "");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn lost_state_directory_beside_undecodable_devices_refuses_the_volume() {
    let fixture = newer_devices();
    rename(&fixture, STATE, "lost");
    let daemon = fixture.start();
    let reason = volume_refusal(&fixture, &daemon, "flash-absent");
    assert!(reason.contains("f0: its flash store was written by a newer version"), "{reason}");
    daemon.stop();
}

#[test]
fn single_device_with_dirty_data_is_not_given_up_for_a_missing_key() {
    let mut fixture = on_slow_disks(&["f0"], "allow_single_copy = true");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    set_flash(&mut fixture, &["f0"], "");
    let daemon = fixture.start();
    let reason = volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    assert!(reason.contains("has the whole log: set allow_single_copy") && !reason.contains("give-up"), "{reason}");
    daemon.stop();
}

#[test]
fn clean_device_of_a_lost_state_directory_refuses_nothing() {
    let mut fixture = on_slow_disks(&["f0"], "allow_single_copy = true");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    rename(&fixture, STATE, "lost");
    set_flash(&mut fixture, &["f0"], "");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn devices_restored_from_a_copy_before_a_destage_are_refused() {
    let fixture = on_slow_disks(&DEVICES, "");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    save_devices(&fixture, ".copy");
    let daemon = fixture.start();
    write(&fixture, 2);
    daemon.command(&["stop", "--destage"]);
    drop(daemon);
    restore_devices(&fixture, ".copy");
    let daemon = fixture.start();
    flash_refusal(&daemon, "store-older");
    assert_eq!(count(&read(&fixture), 2), BLOCKS);
    daemon.stop();
    assert_eq!(count(&slow_disks(&fixture), 2), BLOCKS);
}

#[test]
fn copy_taken_while_the_daemon_ran_is_refused_after_its_stop() {
    let fixture = on_slow_disks(&DEVICES, "");
    let daemon = fixture.start();
    write(&fixture, 1);
    save_devices(&fixture, ".copy");
    write(&fixture, 2);
    daemon.stop();
    restore_devices(&fixture, ".copy");
    let daemon = fixture.start();
    let reason = volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    assert!(reason.contains("older copy of their log"), "{reason}");
    daemon.stop();
    assert!(count(&slow_disks(&fixture), 1) < BLOCKS, "nothing was destaged");
}

#[test]
fn lost_state_directory_is_rebuilt_from_the_devices() {
    let mut fixture = on_slow_disks(&DEVICES, "");
    fixture.keep_in = "/dev/shm".to_owned();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    write(&fixture, 2);
    let before = show(&daemon, "v")["incarnation"].clone();
    daemon.kill();
    let memory = persisted_memory_file(&fixture);
    rename(&fixture, STATE, "state.json.away");
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "data-unclaimed");
    daemon.stop();
    let output = rebuild(&fixture);
    assert!(output.contains("of dirty data on flash") && output.contains("records of 1 volume"), "{output}");
    let named = output.lines().find(|line| line.contains(&memory.display().to_string()));
    assert!(named.is_some_and(|line| line.contains("is not used, because no record names it")), "{output}");
    fs::remove_file(memory).expect("a rebuild changes no persisted memory");
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
    assert_eq!(show(&daemon, "v")["incarnation"], before);
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&slow_disks(&fixture), 2), BLOCKS);
}

#[test]
fn lost_state_directory_after_a_replacement_names_the_new_device() {
    let mut fixture = on_slow_disks(&DEVICES, "");
    let daemon = fixture.start();
    let [old, new] = ["f0", "f2"].map(|name| path(&fixture, name).to_string_lossy().into_owned());
    daemon.command(&["flash", "replace", "--yes", &old, &new]);
    write(&fixture, 1);
    daemon.stop();
    rename(&fixture, STATE, "state.json.away");
    let daemon = fixture.start();
    let flash = json(&daemon, &["status"])["flash"].clone();
    let reason = flash["alerts"][0].as_str().expect("a reason").to_owned();
    let remedy = format!("also uses {new}, which [flash] does not name: name it there in place of {old}, and restart");
    assert!(flash["in_use"] == false && reason.contains(&remedy), "{flash}");
    volume_refusal(&fixture, &daemon, "data-unclaimed");
    daemon.stop();
    set_flash(&mut fixture, &["f1", "f2"], "");
    rebuild(&fixture);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS, "{}", daemon.log());
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn older_state_directory_is_detected_at_every_start() {
    let mut fixture = restored_state();
    for _ in 0..3 {
        let daemon = fixture.start();
        volume_refusal(&fixture, &daemon, "state-older");
        daemon.stop();
    }
    // The directory stays refused without the store that proved its age.
    let tables = std::mem::take(&mut fixture.tables);
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "state-older");
    daemon.stop();
    fixture.tables = tables;
    rebuild(&fixture);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
    daemon.command(&["stop", "--destage"]);
}

#[test]
fn damaged_state_file_names_the_rebuild_command() {
    let fixture = on_slow_disks(&DEVICES, "");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    let file = path(&fixture, STATE);
    let content = fs::read(&file).expect("the file exists");
    fs::write(&file, &content[..content.len() / 2]).expect("the file can be written");
    let mut daemon = Daemon::launch(&fixture);
    assert!(!daemon.wait().success());
    let log = daemon.log();
    let rebuild_command = format!("hotset state rebuild --config {}", fixture.config().display());
    assert!(log.contains("is damaged") && log.contains(&rebuild_command), "{log}");
    for advice in ["move it away", "delete", "rm "] {
        assert!(!log.contains(advice), "{log}");
    }
    rebuild(&fixture);
    assert_eq!(fs::read(path(&fixture, "state/state.json.before-0")).expect("a copy"), content[..content.len() / 2]);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    daemon.stop();
}

#[test]
fn pages_of_a_store_missing_during_writes_are_dropped() {
    let mut fixture = Fixture::new();
    fixture.add_volume("v", VOLUME_BYTES, "policy = \"write-through\"");
    set_flash(&mut fixture, &DEVICES, "");
    fixture.tables = fixture.tables.replace("64 MiB", "256 MiB");
    let daemon = fixture.start();
    write(&fixture, 1);
    // Pins all pages, because a sample of the cached blocks rarely includes the three blocks that change.
    daemon.command(&["volume", "pin", "v"]);
    let on_flash = || show(&daemon, "v")["flash"]["cached_bytes"].as_u64().unwrap_or(0);
    wait_for("pages on flash", || (on_flash() >= VOLUME_BYTES / 10 * 9).then_some(()));
    daemon.stop();
    rename(&fixture, "f1", "away");
    let daemon = fixture.start();
    assert!(daemon.log().contains("flash is not used"), "{}", daemon.log());
    // Blocks that are not among the recent writes, either.
    write_some(&fixture, 100..103, 2);
    daemon.stop();
    rename(&fixture, "away", "f1");
    let daemon = fixture.start();
    let image = read(&fixture);
    assert_eq!((count(&image, 2), count(&image, 1)), (3, BLOCKS - 3), "old pages were served");
    wait_for("the note that the old pages are gone", || {
        fs::read_to_string(path(&fixture, STATE)).is_ok_and(|text| !text.contains("\"cached_on\": []")).then_some(())
    });
    daemon.stop();
}

#[test]
fn volume_added_under_a_removed_name_keeps_it_over_a_restart() {
    let fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "remove", "v"]);
    let other = path(&fixture, "other.img");
    fs::File::create(&other).and_then(|file| file.set_len(VOLUME_BYTES)).expect("the folder can be written");
    daemon.command(&["volume", "add", "v", "--backing", &other.to_string_lossy()]);
    write(&fixture, 2);
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(show(&daemon, "v")["state"], "active", "{}", daemon.log());
    assert_eq!(count(&read(&fixture), 2), BLOCKS, "the added volume is the one that has the name");
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&backing(&fixture), 1), BLOCKS, "the backing of the removed volume was changed");
}

#[test]
fn stop_with_destage_fails_if_a_volume_that_is_not_served_may_lack_data() {
    let fixture = on_slow_disks(&DEVICES, "");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    rename(&fixture, DEVICES[1], "away");
    let daemon = fixture.start();
    assert_eq!(show(&daemon, "v")["state"], "refused", "{}", daemon.log());
    let stopped = daemon.try_command(&["stop", "--destage"]);
    let text = text_of(&stopped);
    assert!(!stopped.status.success() && text.contains("volumes that are not served: v."), "{text}");
    drop(daemon);
    rename(&fixture, "away", DEVICES[1]);
    let daemon = fixture.start();
    assert_eq!(count(&read(&fixture), 1), BLOCKS);
    let message = daemon.command(&["stop", "--destage"]);
    assert!(message.contains("the backings are complete"), "{message}");
}

#[test]
fn stop_with_destage_fails_if_the_records_may_lack_marks() {
    let fixture = restored_state();
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "state-older");
    let stopped = daemon.try_command(&["stop", "--destage"]);
    assert!(!stopped.status.success(), "the records of the older directory have no mark: {}", text_of(&stopped));
    drop(daemon);
}

#[test]
fn record_of_a_volume_that_left_the_file_is_removed_by_its_name() {
    for (keep_in, is_in_memory) in [("none", false), ("/dev/shm", true)] {
        let mut fixture = Fixture::with_volume(VOLUME_BYTES);
        fixture.keep_in = keep_in.to_owned();
        let daemon = fixture.start();
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        client.write(0, &[7; 8192]).expect("the write succeeds");
        daemon.kill();
        fixture.clear_volumes();
        fixture.add_volume("other", 1 << 20, "");
        let daemon = fixture.start();
        let stopped = daemon.try_command(&["stop", "--destage"]);
        let text = text_of(&stopped);
        assert!(!stopped.status.success() && text.contains("are not served: v."), "{text}");
        drop(daemon);
        let daemon = fixture.start();
        let unknown = text_of(&daemon.try_command(&["volume", "remove", "unknown"]));
        assert!(unknown.contains("no volume"), "{unknown}");
        let mut command = vec!["volume", "remove", "v"];
        let refused = text_of(&daemon.try_command(&command));
        if is_in_memory {
            let data = refused.split("--give-up ").nth(1).unwrap_or_else(|| panic!("no name of the data: {refused}"));
            command.extend(["--give-up", data.trim_end_matches(['`', '\n'])]);
            let removed = daemon.command(&command);
            assert!(removed.contains("its dirty data is discarded"), "{removed}");
        } else {
            assert!(refused.contains("the record of volume"), "nothing of it is left in the cache: {refused}");
        }
        let message = daemon.command(&["stop", "--destage"]);
        assert!(message.contains("the backings are complete"), "{message}");
    }
}

#[test]
fn adopted_volume_that_was_added_by_command_returns_at_the_next_start() {
    let fixture = Fixture::new();
    let (disk, copy) = (path(&fixture, "v.img"), path(&fixture, "copy.img"));
    fs::write(&disk, vec![5; VOLUME_BYTES as usize]).expect("the folder can be written");
    let daemon = fixture.start();
    daemon.command(&["volume", "add", "v", "--backing", &disk.to_string_lossy()]);
    daemon.stop();
    fs::copy(&disk, &copy).and_then(|_| fs::rename(&copy, &disk)).expect("the folder can be written");
    let daemon = fixture.start();
    volume_refusal(&fixture, &daemon, "backing-changed");
    daemon.command(&["volume", "adopt", "v"]);
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(show(&daemon, "v")["state"], "active", "{}", daemon.log());
    daemon.stop();
}

#[test]
fn volume_whose_backing_is_lost_is_removed_only_with_its_data_named() {
    let mut fixture = Fixture::new();
    let Some(fuse) = Fuse::mount(&fixture.folder.join("disks")) else { return };
    let (image, lost) = (fuse.path().join("v.img"), fuse.path().join("lost.img"));
    fs::write(&image, vec![5; VOLUME_BYTES as usize]).expect("the file system can be written");
    fixture.add_volume_on("v", &image.to_string_lossy(), "");
    set_flash(&mut fixture, &DEVICES, "");
    let daemon = fixture.start();
    fuse.hang();
    write_some(&fixture, 0..10, 1);
    daemon.kill();
    fuse.resume();
    fs::rename(&image, &lost).expect("both are in one folder");
    let daemon = fixture.start();
    assert_eq!(show(&daemon, "v")["state"], "refused", "{}", daemon.log());
    let refused = text_of(&daemon.try_command(&["volume", "remove", "v"]));
    let data = refused.split("--give-up ").nth(1).unwrap_or_else(|| panic!("no name of the data: {refused}"));
    let data = data.trim_end_matches(['`', '\n']);
    let other = daemon.try_command(&["volume", "remove", "v", "--give-up", "0123456789abcdef"]);
    assert!(!other.status.success(), "other data was named: {}", text_of(&other));
    let removed = daemon.command(&["volume", "remove", "v", "--give-up", data]);
    assert!(removed.contains("its dirty data is discarded"), "{removed}");
    daemon.stop();
    fs::rename(&lost, &image).expect("both are in one folder");
    let daemon = fixture.start();
    assert!(!daemon.try_command(&["volume", "show", "v"]).status.success(), "it stays removed");
    daemon.command(&["stop", "--destage"]);
    assert_eq!(count(&fs::read(&image).expect("the file exists"), 1), 0, "the discarded data was destaged");
}

#[test]
fn device_identified_only_by_its_number_needs_proof() {
    let mut fixture = Fixture::new();
    let attached = LoopDevice::attach(&path(&fixture, "a.img"), VOLUME_BYTES, 512);
    let disk = match attached {
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
    fixture.add_volume_on("v", &node.to_string_lossy(), "");
    set_flash(&mut fixture, &DEVICES, "");
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    write_some(&fixture, 0..10, 2);
    daemon.stop();
    // Another disk under the same number.
    let node = node.to_owned();
    drop(disk);
    let other = LoopDevice::attach(&path(&fixture, "b.img"), VOLUME_BYTES, 512).expect("one could be made before");
    if other.path() != node {
        let _ = writeln!(std::io::stderr(), "SKIPPED: another disk under the same number: the number was taken");
        return;
    }
    let daemon = fixture.start();
    let shown = show(&daemon, "v");
    assert_eq!(shown["state"], "refused", "{shown}");
    daemon.stop();
    assert!(
        fs::read(path(&fixture, "b.img")).expect("the file exists").iter().all(|byte| *byte == 0),
        "the other disk was written to"
    );
}
