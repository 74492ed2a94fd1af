//! Every refusal on the real daemon. Messages and choices form `docs/admin/refusals.md`.
//! Each choice is tried, and its cost is the one on the page. `UPDATE_DOCS=1` writes the page.

use std::fs;

use e2e::blocks::{BLOCK_BYTES, BLOCKS, VOLUME_BYTES, block, count, count_some, offset_of, read};
use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;
use e2e::refusal::causes::{
    DEVICES, EXPORTED_BLOCKS, EXPORTED_BLOCKS_INSIDE, ExportedDisk, LAST_SECTOR_FILL, MEMORY_FORMAT, SHORT_BYTES,
    STATE, UNFLUSHED_BYTES, UNFLUSHED_FILL, backing, cloned_backing, cloned_dirty_backing, copy, emptied_log_restored,
    empty_devices, grown_backing, lost_state, lost_state_and_devices, newer_devices, newer_memory, path,
    persisted_memory_file, rename, replaced_dirty_backing, restore_devices, restored_devices, restored_state,
    rolled_back_backing, set_backing_size, set_flash, set_later_format, set_memory_format, shared_backing,
    shrunk_backing, stop_dirty, unused_flash,
};
use e2e::refusal::page::{Entry, check_codes};
use e2e::refusal::{flash_refusal, json, rebuild, run_proposed_command, show, volume_refusal};

pub const ADOPT: &str = "hotset volume adopt NAME";
const ADOPT_SHRUNK: &str = "hotset volume adopt NAME --discard-dirty";
pub const GIVE_UP: &str = "hotset volume adopt NAME --give-up DATA";
const GIVE_UP_STORE: &str = "hotset volume adopt NAME --give-up STORE";
const REBUILD: &str = "hotset state rebuild --config FILE";
/// Cost of a rebuild of a lost directory.
const REBUILD_COST: &str = "tokens; changes by command since the last start; after a kill, unflushed writes (persisted \
                            memory is not used)";
const NOTHING_LOST: &str = "none";

fn assert_served(daemon: &Daemon, name: &str) {
    let shown = show(daemon, name);
    assert_eq!(shown["state"], "active", "{shown}\n{}", daemon.log());
}

fn assert_flash_in_use(daemon: &Daemon) {
    let flash = json(daemon, &["status"])["flash"].clone();
    assert_eq!(flash["in_use"], true, "{flash}\n{}", daemon.log());
}

fn token_names(daemon: &Daemon) -> Vec<String> {
    let tokens = json(daemon, &["token", "list"]);
    let names =
        tokens.as_array().expect("a list").iter().map(|token| token["name"].as_str().expect("a name").to_owned());
    names.collect()
}

/// Checks that dirty data is given up only when the command names it.
fn assert_unnamed_adopt_fails(daemon: &Daemon) {
    let output = daemon.try_command(&["volume", "adopt", "v"]);
    assert!(!output.status.success(), "data was given up without being named: {}", text_of(&output));
    assert_eq!(show(daemon, "v")["state"], "refused");
}

pub fn destage(daemon: Daemon) {
    daemon.command(&["stop", "--destage"]);
}

/// Checks that a volume refused with `code` has all its data after a rebuild, and the state directory the given tokens.
fn assert_rebuild_keeps_data(fixture: &Fixture, code: &str, tokens: &[&str]) {
    let daemon = fixture.start();
    volume_refusal(fixture, &daemon, code);
    daemon.stop();
    let output = rebuild(fixture);
    assert!(output.contains("records of 1 volume"), "{output}");
    let daemon = fixture.start();
    assert_eq!(count(&read(fixture), 2), BLOCKS, "{}", daemon.log());
    assert_eq!(token_names(&daemon), tokens);
    let shares = show(&daemon, "v")["qos"]["shares"].clone();
    assert_eq!(shares, 1000, "a change by command is in no copy of the records");
    daemon.stop();
}

#[test]
fn refusals_page_lists_exactly_all_refusals() {
    check_codes(concat!(include_str!("refusals.rs"), include_str!("refusals_of_images.rs")));
}

#[test]
fn restored_flash_devices_are_refused_as_documented() {
    let fixture = restored_devices();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "store-older",
        "the flash devices are from an earlier start than the one that last used their store",
        "they were absent, or restored from a copy: their log is outdated",
    );
    entry.message("", &flash_refusal(&daemon, "store-older"));
    volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    daemon.stop();
    entry.choice("attach the current devices", NOTHING_LOST, || {
        restore_devices(&fixture, ".new");
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS);
        stop_dirty(&fixture, daemon, 0..BLOCKS, 3);
        restore_devices(&fixture, ".old");
    });
    let cost = "content of these devices; volumes whose newer data is missing stay refused: `dirty-elsewhere`";
    entry.choice("empty these devices", cost, || {
        empty_devices(&fixture);
        let daemon = fixture.start();
        assert_flash_in_use(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "dirty-elsewhere"), GIVE_UP);
        assert!(count(&read(&fixture), 3) < BLOCKS, "data came from devices that are empty");
        daemon.stop();
    });
    entry.check();
}

#[test]
fn one_restored_flash_device_is_refused_as_documented() {
    let mut fixture = restored_devices();
    copy(&fixture, "f0.new", "f0");
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "device-older",
        "one flash device is from an earlier start than the others of its store",
        "it was restored from a copy: its log and clean pages are outdated",
    );
    entry.message("", &flash_refusal(&daemon, "device-older"));
    volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    daemon.stop();
    entry.choice("attach the current device", NOTHING_LOST, || {
        restore_devices(&fixture, ".new");
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS);
        stop_dirty(&fixture, daemon, 0..BLOCKS, 3);
        copy(&fixture, "f1.old", "f1");
        let daemon = fixture.start();
        flash_refusal(&daemon, "device-older");
        daemon.stop();
    });
    entry.choice("hotset flash add DEVICE", "none: the other devices have the same data", || {
        fs::remove_file(path(&fixture, "f1")).expect("the device exists");
        set_flash(&mut fixture, &DEVICES[..1], "allow_single_copy = true");
        let daemon = fixture.start();
        assert_flash_in_use(&daemon);
        assert_eq!(count(&read(&fixture), 3), BLOCKS, "{}", daemon.log());
        daemon.command(&["flash", "add", &path(&fixture, "f1").to_string_lossy()]);
        daemon.stop();
    });
    entry.check();
}

#[test]
fn flash_devices_of_a_newer_version_are_refused_as_documented() {
    let fixture = newer_devices();
    let devices = || DEVICES.map(|name| fs::read(path(&fixture, name)).expect("the device exists"));
    let before = devices();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "store-newer",
        "a flash device has a store in a later format than this version supports",
        "a newer version has used it: this version would damage parts that it does not know",
    );
    let message = flash_refusal(&daemon, "store-newer");
    assert!(message.contains("written by a newer version of Hotset (format 2, this one reads up to 1)"), "{message}");
    assert!(daemon.log().contains(&message), "{}", daemon.log());
    entry.message("", &message);
    volume_refusal(&fixture, &daemon, "dirty-elsewhere");
    daemon.stop();
    assert!(devices() == before, "a store of a newer version was changed");
    let paths = DEVICES.map(|name| path(&fixture, name).to_string_lossy().into_owned());
    let output = hotset(&["flash", "check", &paths[0], &paths[1]]);
    assert!(!output.status.success() && text_of(&output).contains("newer version"), "{}", text_of(&output));
    let config = fixture.config().to_string_lossy().into_owned();
    let output = hotset(&["state", "rebuild", "--yes", "--config", &config]);
    assert!(!output.status.success() && text_of(&output).contains("newer version"), "{}", text_of(&output));
    assert!(devices() == before, "a store of a newer version was changed");
    entry.choice("start that version", NOTHING_LOST, || {
        restore_devices(&fixture, ".known");
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 1), BLOCKS, "{}", daemon.log());
        stop_dirty(&fixture, daemon, 0..BLOCKS, 2);
        set_later_format(&fixture);
    });
    let cost = "content of these devices; volumes whose dirty data was there stay refused: `dirty-elsewhere`";
    entry.choice("empty the devices", cost, || {
        empty_devices(&fixture);
        let daemon = fixture.start();
        assert_flash_in_use(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "dirty-elsewhere"), GIVE_UP);
        assert!(count(&read(&fixture), 2) < BLOCKS, "data came from devices that are empty");
        daemon.stop();
    });
    entry.check();
}

#[test]
fn memory_of_a_newer_version_is_refused_as_documented() {
    let first_bytes = |fixture: &Fixture| {
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        client.read(0, UNFLUSHED_BYTES).expect("the read succeeds")
    };
    let fixture = newer_memory();
    let file = persisted_memory_file(&fixture);
    let before = fs::read(&file).expect("the file was left behind");
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "memory-newer",
        "a killed daemon of a newer version left a persisted memory file; the volume was not cleanly stopped",
        "that file may contain acknowledged writes of the volume",
    );
    let message = volume_refusal(&fixture, &daemon, "memory-newer");
    assert!(message.contains("written by a newer version of Hotset (format 3, this one reads up to 2)"), "{message}");
    entry.message("", &message);
    daemon.stop();
    assert!(fs::read(&file).expect("the file exists") == before, "memory of a newer version was changed");
    entry.choice("start and stop that version, then start this one", NOTHING_LOST, || {
        set_memory_format(&file, MEMORY_FORMAT);
        let daemon = fixture.start();
        assert_eq!(first_bytes(&fixture), [UNFLUSHED_FILL; UNFLUSHED_BYTES]);
        daemon.stop();
    });
    entry.choice(ADOPT, "unflushed writes", || {
        let fixture = newer_memory();
        let file = persisted_memory_file(&fixture);
        let daemon = fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "memory-newer"), ADOPT);
        assert_eq!(first_bytes(&fixture), [0; UNFLUSHED_BYTES]);
        daemon.stop();
        fs::remove_file(file).expect("the daemon never removes the file");
    });
    entry.check();
}

#[test]
fn restored_state_directory_is_refused_as_documented() {
    let fixture = restored_state();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "state-older",
        "the flash store was used by a later start of this installation than the state directory has",
        "the directory was restored from a copy: every volume is refused, with or without that store",
    );
    entry.message("", &volume_refusal(&fixture, &daemon, "state-older"));
    flash_refusal(&daemon, "state-older");
    daemon.stop();
    entry.choice("restore the newest directory", NOTHING_LOST, || {
        copy(&fixture, "state.new", STATE);
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        assert_eq!(token_names(&daemon), ["early", "late"]);
        assert_eq!(show(&daemon, "v")["qos"]["shares"], 2000);
        daemon.stop();
    });
    let cost = "tokens created since the copy; changes by command since the last start; after a kill, unflushed \
                writes (persisted memory is not used)";
    entry.choice(REBUILD, cost, || assert_rebuild_keeps_data(&restored_state(), "state-older", &["early"]));
    entry.check();
}

#[test]
fn store_of_a_lost_state_directory_is_refused_as_documented() {
    let fixture = lost_state();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "store-foreign",
        "the flash store belongs to another state directory, or none, and its log has dirty data",
        "the directory was lost, or the devices are from another machine",
    );
    let message = flash_refusal(&daemon, "store-foreign");
    assert!(
        message.contains(&format!(", in directory {}. Either directory ", path(&fixture, "state").display())),
        "{message}"
    );
    entry.message("", &message);
    daemon.stop();
    let devices = DEVICES.map(|name| path(&fixture, name).to_string_lossy().into_owned());
    let checked = hotset(&["flash", "check", &devices[0], &devices[1]]);
    assert!(checked.status.success(), "{}", text_of(&checked));
    entry.choice("restore that directory", NOTHING_LOST, || {
        copy(&fixture, "state.away", STATE);
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        assert_eq!(token_names(&daemon), ["early"]);
        daemon.stop();
    });
    entry.choice(REBUILD, REBUILD_COST, || assert_rebuild_keeps_data(&lost_state(), "data-unclaimed", &[]));
    let cost = "their dirty data; volumes new to the directory stay refused: `data-unclaimed`";
    entry.choice("empty the devices", cost, || {
        let fixture = lost_state();
        fixture.start().stop();
        empty_devices(&fixture);
        let daemon = fixture.start();
        assert_flash_in_use(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "data-unclaimed"), GIVE_UP_STORE);
        assert!(count(&read(&fixture), 2) < BLOCKS, "data came from devices that are empty");
        daemon.stop();
    });
    entry.check();
}

#[test]
fn volume_of_a_lost_state_directory_is_refused_as_documented() {
    let fixture = lost_state();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "data-unclaimed",
        "volume and dirty data in a flash store are both unknown to the state directory",
        "that data may belong to this volume",
    );
    let message = volume_refusal(&fixture, &daemon, "data-unclaimed");
    entry.message("", &message);
    entry.choice(REBUILD, REBUILD_COST, || assert_rebuild_keeps_data(&lost_state(), "data-unclaimed", &[]));
    entry.choice(GIVE_UP_STORE, "that data", || {
        run_proposed_command(&daemon, &message, GIVE_UP_STORE);
        assert_served(&daemon, "v");
        assert!(count(&read(&fixture), 2) < BLOCKS);
        daemon.stop();
        let daemon = fixture.start();
        assert_served(&daemon, "v");
        flash_refusal(&daemon, "store-foreign");
        assert!(count(&read(&fixture), 2) < BLOCKS);
        destage(daemon);
        assert!(count(&backing(&fixture), 2) < BLOCKS);
    });
    entry.check();
}

#[test]
fn lost_state_directory_beside_absent_flash_is_refused_as_documented() {
    let fixture = lost_state_and_devices();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "flash-absent",
        "a flash device cannot be read, and the state directory has no record of the volume nor of any flash store",
        "a lost state directory is like a new one: that device may have flushed data of the volume",
    );
    let message = volume_refusal(&fixture, &daemon, "flash-absent");
    entry.message("", &message);
    daemon.stop();
    let output = hotset(&["undestaged", "--config", &fixture.config().to_string_lossy()]);
    assert!(!output.status.success() && text_of(&output).contains("is absent"), "{}", text_of(&output));
    entry.choice("attach the device", "none: other refusals follow if it has data", || {
        DEVICES.iter().for_each(|name| rename(&fixture, &format!("{name}.away"), name));
        let daemon = fixture.start();
        volume_refusal(&fixture, &daemon, "data-unclaimed");
        daemon.stop();
    });
    entry.choice("restore the directory", NOTHING_LOST, || {
        copy(&fixture, "state.away", STATE);
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        daemon.stop();
    });
    entry.choice(ADOPT, "flushed data of the volume on that device", || {
        let fixture = lost_state_and_devices();
        let daemon = fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "flash-absent"), ADOPT);
        assert_served(&daemon, "v");
        assert!(count(&read(&fixture), 2) < BLOCKS);
        daemon.stop();
        let daemon = fixture.start();
        assert_served(&daemon, "v");
        daemon.stop();
    });
    entry.check();
}

#[test]
fn replaced_backing_is_refused_as_documented() {
    let fixture = cloned_backing();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "backing-changed",
        "the volume's name had a different backing before",
        "possibly a clone, an older snapshot or a replaced disk",
    );
    let message = volume_refusal(&fixture, &daemon, "backing-changed");
    entry.message("When nothing waits for the old backing", &message);
    let dirty = cloned_dirty_backing();
    let dirty_daemon = dirty.start();
    let dirty_message = volume_refusal(&dirty, &dirty_daemon, "backing-changed");
    entry.message("When dirty data waits for the old backing, and the new one is a current copy of it", &dirty_message);
    dirty_daemon.stop();
    let other = replaced_dirty_backing();
    let other_daemon = other.start();
    let other_message = volume_refusal(&other, &other_daemon, "backing-changed");
    entry.message("When dirty data waits for the old backing, and the new one has other content", &other_message);
    entry.choice("restore the old backing", NOTHING_LOST, || {
        rename(&dirty, "v.img", "clone.img");
        rename(&dirty, "old.img", "v.img");
        let daemon = dirty.start();
        assert_eq!(count(&read(&dirty), 2), BLOCKS, "{}", daemon.log());
        daemon.stop();
    });
    entry.choice("use another name for the new backing", NOTHING_LOST, || {
        let mut fixture = cloned_dirty_backing();
        fixture.clear_volumes();
        fixture.add_volume_on("v", &path(&fixture, "old.img").to_string_lossy(), "");
        fixture.add_volume_on("w", &path(&fixture, "v.img").to_string_lossy(), "");
        let daemon = fixture.start();
        assert_served(&daemon, "w");
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        daemon.stop();
    });
    entry.choice(ADOPT, "none: the old backing is complete", || {
        run_proposed_command(&daemon, &message, ADOPT);
        assert_served(&daemon, "v");
        assert_eq!(count(&read(&fixture), 1), BLOCKS);
        daemon.stop();
        assert_eq!(count(&fs::read(path(&fixture, "old.img")).expect("the file exists"), 1), BLOCKS);
    });
    entry.choice(ADOPT, "none if the new backing is a current copy: it gets the dirty data", || {
        let fixture = cloned_dirty_backing();
        let daemon = fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "backing-changed"), ADOPT);
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        daemon.stop();
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        destage(daemon);
        assert_eq!(count(&backing(&fixture), 2), BLOCKS);
        assert_eq!(count(&fs::read(path(&fixture, "old.img")).expect("the file exists"), 2), 0);
    });
    entry.choice(GIVE_UP, "dirty data of the old backing", || {
        assert_unnamed_adopt_fails(&other_daemon);
        run_proposed_command(&other_daemon, &other_message, GIVE_UP);
        assert_served(&other_daemon, "v");
        assert_eq!(count(&read(&other), 2), 0);
        destage(other_daemon);
        for content in [backing(&other), fs::read(path(&other, "old.img")).expect("the file exists")] {
            assert!(count(&content, 2) < BLOCKS, "data that was given up came back");
        }
    });
    entry.check();
}

#[test]
fn backing_of_two_volumes_is_refused_as_documented() {
    let mut fixture = shared_backing();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "backing-taken",
        "another volume in service has the same backing",
        "two volumes on one disk destroy each other's data",
    );
    assert_served(&daemon, "first");
    entry.message("", &volume_refusal(&fixture, &daemon, "backing-taken"));
    daemon.stop();
    entry.choice("use a separate backing", NOTHING_LOST, || {
        fs::remove_file(fixture.backing("v")).expect("the second name exists");
        fixture.clear_volumes();
        fixture.add_volume_on("first", &fixture.backing("first").to_string_lossy(), "read_only = true");
        fixture.add_volume("v", VOLUME_BYTES, "");
        let daemon = fixture.start();
        ["first", "v"].iter().for_each(|name| assert_served(&daemon, name));
        daemon.stop();
    });
    entry.check();
}

#[test]
fn volume_without_its_flash_log_is_refused_as_documented() {
    let (mut fixture, tables) = unused_flash();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "dirty-elsewhere",
        "flushed data of the volume may be in a flash log that is not in use",
        "that data would be missing",
    );
    entry.message("", &volume_refusal(&fixture, &daemon, "dirty-elsewhere"));
    daemon.stop();
    entry.choice("attach the devices again", NOTHING_LOST, || {
        fixture.tables.clone_from(&tables);
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        stop_dirty(&fixture, daemon, 0..BLOCKS, 3);
    });
    entry.choice(GIVE_UP, "that data, even if the devices return", || {
        fixture.tables.clear();
        let daemon = fixture.start();
        assert_unnamed_adopt_fails(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "dirty-elsewhere"), GIVE_UP);
        assert_served(&daemon, "v");
        assert!(count(&read(&fixture), 3) < BLOCKS);
        daemon.stop();
        fixture.tables.clone_from(&tables);
        let daemon = fixture.start();
        assert_flash_in_use(&daemon);
        assert!(count(&read(&fixture), 3) < BLOCKS, "data that was given up came back");
        destage(daemon);
        assert!(count(&backing(&fixture), 3) < BLOCKS, "data that was given up came back");
    });
    entry.check();
}

#[test]
fn log_with_unexpected_data_is_refused_as_documented() {
    let fixture = emptied_log_restored();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "log-unexpected",
        "the flash log has dirty data of the volume, and the state directory records none",
        "the devices or the directory are an older copy",
    );
    entry.message("", &volume_refusal(&fixture, &daemon, "log-unexpected"));
    daemon.stop();
    entry.choice("restore the newest devices or directory", NOTHING_LOST, || {
        restore_devices(&fixture, ".new");
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        daemon.stop();
    });
    entry.choice(GIVE_UP, "the log's data; the backing stays unchanged", || {
        let fixture = emptied_log_restored();
        let daemon = fixture.start();
        assert_unnamed_adopt_fails(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "log-unexpected"), GIVE_UP);
        assert_eq!(count(&read(&fixture), 2), BLOCKS, "{}", daemon.log());
        destage(daemon);
        assert_eq!(count(&backing(&fixture), 2), BLOCKS, "old data was destaged");
    });
    entry.check();
}

#[test]
fn backing_rolled_back_under_dirty_data_is_refused_as_documented() {
    let fixture = rolled_back_backing();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "content-differs",
        "the backing lacks recently destaged blocks, and there is dirty data for it",
        "it was rolled back, restored or replaced: old and new data would be mixed",
    );
    entry.message("", &volume_refusal(&fixture, &daemon, "content-differs"));
    daemon.stop();
    assert_eq!(count(&backing(&fixture), 1), BLOCKS, "a refused volume was written to");
    entry.choice("restore the former content", NOTHING_LOST, || {
        copy(&fixture, "newest.img", "v.img");
        let daemon = fixture.start();
        let image = read(&fixture);
        assert_eq!((count(&image, 3), count(&image, 2)), (10, BLOCKS - 10), "{}", daemon.log());
        stop_dirty(&fixture, daemon, 0..10, 4);
    });
    entry.choice(GIVE_UP, "the dirty data; the backing stays unchanged", || {
        copy(&fixture, "old.img", "v.img");
        let daemon = fixture.start();
        assert_unnamed_adopt_fails(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "content-differs"), GIVE_UP);
        assert_eq!(count(&read(&fixture), 1), BLOCKS);
        destage(daemon);
        assert_eq!(count(&backing(&fixture), 1), BLOCKS, "data that was given up came back");
    });
    entry.check();
}

#[test]
fn backing_without_proof_of_identity_is_refused_as_documented() {
    // Bytes that fill the right disk and another one.
    let (right, other) = (0x41, 0x42);
    let dirty_blocks = EXPORTED_BLOCKS.end;
    let count_written = |content: &[u8]| count_some(content, EXPORTED_BLOCKS, 1);
    let mut replaced = ExportedDisk::new(right);
    replaced.attach("b.img", other);
    let daemon = replaced.fixture.start();
    let mut entry = Entry::new(
        "content-unproven",
        "there is dirty data for a backing without proof that it is the same disk",
        "another disk may have the same device number or export name",
    );
    let message = volume_refusal(&replaced.fixture, &daemon, "content-unproven");
    entry.message("When the size of the backing is unchanged", &message);
    daemon.stop();
    assert!(replaced.content("b.img").iter().all(|byte| *byte == other), "a refused volume was written to");
    entry.choice(ADOPT, "none if it is the same disk; otherwise content of that disk is overwritten", || {
        // The content cannot distinguish two disks of zeroes.
        let same = ExportedDisk::new(0);
        let mut wrong = ExportedDisk::new(right);
        wrong.attach("b.img", other);
        for (disk, name) in [(same, "a.img"), (wrong, "b.img")] {
            let daemon = disk.fixture.start();
            run_proposed_command(&daemon, &volume_refusal(&disk.fixture, &daemon, "content-unproven"), ADOPT);
            assert_eq!(count_written(&read(&disk.fixture)), dirty_blocks);
            destage(daemon);
            assert_eq!(count_written(&disk.content(name)), dirty_blocks);
        }
    });
    entry.choice("attach the right disk", NOTHING_LOST, || {
        replaced.attach("a.img", right);
        let daemon = replaced.fixture.start();
        assert_eq!(count_written(&read(&replaced.fixture)), dirty_blocks, "{}", daemon.log());
        destage(daemon);
        assert_eq!(count_written(&replaced.content("a.img")), dirty_blocks);
    });
    entry.choice(GIVE_UP, "the dirty data; the backing stays unchanged", || {
        let mut disk = ExportedDisk::new(right);
        disk.attach("b.img", other);
        let daemon = disk.fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&disk.fixture, &daemon, "content-unproven"), GIVE_UP);
        assert_served(&daemon, "v");
        destage(daemon);
        assert!(disk.content("b.img").iter().all(|byte| *byte == other), "data that was given up came back");
    });
    let mut shrunk = ExportedDisk::new(0);
    shrunk.shrink();
    let daemon = shrunk.fixture.start();
    let message = volume_refusal(&shrunk.fixture, &daemon, "content-unproven");
    entry.message("When the backing has shrunk, and there is dirty data past its end", &message);
    entry.choice(ADOPT_SHRUNK, "data past the end; otherwise as `hotset volume adopt NAME`", || {
        for words in [&["adopt", "v"] as &[&str], &["resize", "v", "--discard-dirty"]] {
            let output = daemon.try_command(&[&["volume"], words].concat());
            assert!(!output.status.success(), "{words:?} gives up data, or takes the disk: {}", text_of(&output));
        }
        assert!(shrunk.content("a.img").iter().all(|byte| *byte == 0), "a refused volume was written to");
        run_proposed_command(&daemon, &message, ADOPT_SHRUNK);
        assert_adopted_shrunk(&shrunk, daemon);
    });
    entry.check();
}

/// Checks that a shrunk disk has all dirty data within its end, and stops the daemon.
fn assert_adopted_shrunk(disk: &ExportedDisk, daemon: Daemon) {
    let image = read(&disk.fixture);
    assert_eq!(image.len() as u64, offset_of(EXPORTED_BLOCKS_INSIDE));
    assert_eq!(count_some(&image, EXPORTED_BLOCKS, 1), EXPORTED_BLOCKS_INSIDE, "{}", daemon.log());
    destage(daemon);
    assert_eq!(count_some(&disk.content("a.img"), EXPORTED_BLOCKS, 1), EXPORTED_BLOCKS_INSIDE);
}

#[test]
fn backing_shrunk_under_dirty_data_is_refused_as_documented() {
    let fixture = shrunk_backing();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "backing-shrank",
        "the backing has become smaller, and there is dirty data past its end",
        "that data would be dropped",
    );
    let message = volume_refusal(&fixture, &daemon, "backing-shrank");
    for bytes in [VOLUME_BYTES, VOLUME_BYTES / 2] {
        assert!(message.contains(&bytes.to_string()), "{message}");
    }
    entry.message("When the backing is proven to be the same disk", &message);
    daemon.stop();
    entry.choice("restore the size of the backing", NOTHING_LOST, || {
        set_backing_size(&fixture, VOLUME_BYTES);
        let daemon = fixture.start();
        assert_eq!(count(&read(&fixture), 1), BLOCKS, "{}", daemon.log());
        stop_dirty(&fixture, daemon, 0..BLOCKS, 2);
    });
    let resize = "hotset volume resize NAME --discard-dirty";
    entry.choice(resize, "data past the end", || {
        set_backing_size(&fixture, VOLUME_BYTES / 2);
        let daemon = fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "backing-shrank"), resize);
        let image = read(&fixture);
        assert_eq!(image.len() as u64, VOLUME_BYTES / 2);
        let block_in_image = |number: u64| &image[offset_of(number) as usize..][..BLOCK_BYTES as usize];
        let inside = (0..BLOCKS).filter(|number| offset_of(*number) < VOLUME_BYTES / 2);
        inside.for_each(|number| assert_eq!(block_in_image(number), block(number, 2), "block {number}"));
        destage(daemon);
    });
    let mut unproven = ExportedDisk::new(0);
    unproven.shrink();
    let daemon = unproven.fixture.start();
    let output = daemon.try_command(&["volume", "adopt", "v"]);
    assert!(!output.status.success(), "data was given up without a word about it: {}", text_of(&output));
    let message = volume_refusal(&unproven.fixture, &daemon, "backing-shrank");
    entry.message("When nothing proves the backing, after `hotset volume adopt NAME`", &message);
    entry.choice(ADOPT_SHRUNK, "data past the end; content of the disk if it is another one", || {
        run_proposed_command(&daemon, &message, ADOPT_SHRUNK);
        assert_adopted_shrunk(&unproven, daemon);
    });
    entry.check();
}

#[test]
fn backing_grown_past_a_dirty_short_block_is_refused_as_documented() {
    let fixture = grown_backing();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "backing-grew",
        "the backing has grown, its former size was not a multiple of 4096, and there is dirty data of the last block",
        "that data would overwrite content past the former end",
    );
    let message = volume_refusal(&fixture, &daemon, "backing-grew");
    for bytes in [VOLUME_BYTES, SHORT_BYTES] {
        assert!(message.contains(&bytes.to_string()), "{message}");
    }
    entry.message("", &message);
    daemon.stop();
    let last_sector = SHORT_BYTES as usize - 512..SHORT_BYTES as usize;
    let restore = "restore the former size of the backing, and let it grow while the volume is served";
    entry.choice(restore, NOTHING_LOST, || {
        set_backing_size(&fixture, SHORT_BYTES);
        let daemon = fixture.start();
        assert_eq!(read(&fixture)[last_sector.clone()], [LAST_SECTOR_FILL; 512], "{}", daemon.log());
        daemon.command(&["volume", "resize", "v", &VOLUME_BYTES.to_string()]);
        assert_eq!(read(&fixture).len() as u64, VOLUME_BYTES);
        destage(daemon);
        assert_eq!(backing(&fixture)[last_sector.clone()], [LAST_SECTOR_FILL; 512]);
    });
    entry.choice(GIVE_UP, "the dirty data; the backing stays unchanged", || {
        let fixture = grown_backing();
        let daemon = fixture.start();
        assert_unnamed_adopt_fails(&daemon);
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "backing-grew"), GIVE_UP);
        assert_served(&daemon, "v");
        destage(daemon);
        assert_ne!(backing(&fixture)[last_sector.clone()], [LAST_SECTOR_FILL; 512], "data that was given up came back");
    });
    entry.check();
}

#[test]
fn backing_that_hangs_is_refused_as_documented() {
    let mut fixture = Fixture::new();
    let Some(fuse) = Fuse::mount(&fixture.folder.join("hangs")) else { return };
    let backing = fuse.path().join("v.img");
    fs::File::create(&backing).and_then(|file| file.set_len(VOLUME_BYTES)).expect("the file system can be written");
    fixture.add_volume_on("v", &backing.to_string_lossy(), "");
    fuse.hang();
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "backing-hung",
        "the backing does not answer when it is opened",
        "its data cannot be read; other volumes would wait for it",
    );
    entry.message("", &volume_refusal(&fixture, &daemon, "backing-hung"));
    entry.choice("let the backing answer: a retry serves the volume", NOTHING_LOST, || {
        fuse.resume();
        wait_for("the volume", || Client::connect(&fixture.endpoint(), "v").ok());
        assert_served(&daemon, "v");
    });
    daemon.stop();
    entry.check();
}
