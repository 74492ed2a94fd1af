//! Causes of refusals: restored copies, replaced devices, a lost directory, disks that change while the daemon is
//! stopped.
//!
//! Each function returns a fixture whose next start refuses its volume `v` or its flash store. The volume's blocks are
//! those of [`crate::blocks`].

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::show;
use crate::blocks::{BLOCKS, VOLUME_BYTES, count_some, offset_of, write, write_some};
use crate::client::Client;
use crate::daemon::Daemon;
use crate::fixture::Fixture;
use crate::server::Nbdkit;

/// Attempts to stop the daemon before it has destaged everything.
const ATTEMPTS_MAX: usize = 20;
/// Changes a version to one that no test uses.
const OTHER_VERSION: u8 = 0x80;
/// Flash devices of every fixture.
pub const DEVICES: [&str; 2] = ["f0", "f1"];
/// State file.
pub const STATE: &str = "state/state.json";

/// Configures the flash devices, files of 64 MiB in the fixture's folder.
pub fn set_flash(fixture: &mut Fixture, devices: &[&str], lines: &str) {
    let devices: Vec<_> = devices.iter().map(|name| format!("\"{}\"", fixture.folder.join(name).display())).collect();
    fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n{lines}\n", devices.join(", "));
}

/// A volume on a file, with two flash devices.
pub fn on_file() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.add_volume("v", VOLUME_BYTES, "");
    set_flash(&mut fixture, &DEVICES, "");
    fixture
}

/// A volume on disks so slow that a stop leaves nearly all its data in the flash log.
pub fn on_slow_disks(devices: &[&str], lines: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", "sim://raid5?disks=3&type=nlsas", "size = \"64 MiB\"");
    set_flash(&mut fixture, devices, lines);
    fixture
}

/// Content of the modelled disks of [`on_slow_disks`].
pub fn slow_disks(fixture: &Fixture) -> Vec<u8> {
    fs::read(path(fixture, "state/sim/v.img")).expect("the backing exists")
}

/// Content of the backing of [`on_file`].
pub fn backing(fixture: &Fixture) -> Vec<u8> {
    fs::read(fixture.backing("v")).expect("the backing exists")
}

/// Path of a file in the fixture's folder.
pub fn path(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.folder.join(name)
}

/// Copies one file's content over another file, which keeps its identity.
pub fn copy(fixture: &Fixture, from: &str, to: &str) {
    fs::copy(path(fixture, from), path(fixture, to)).expect("the file exists");
}

/// Renames a file.
pub fn rename(fixture: &Fixture, from: &str, to: &str) {
    fs::rename(path(fixture, from), path(fixture, to)).expect("the file exists");
}

/// Copies both flash devices to names with `suffix`, for example `.old`.
pub fn save_devices(fixture: &Fixture, suffix: &str) {
    DEVICES.iter().for_each(|name| copy(fixture, name, &format!("{name}{suffix}")));
}

/// Restores both flash devices from copies.
pub fn restore_devices(fixture: &Fixture, suffix: &str) {
    DEVICES.iter().for_each(|name| copy(fixture, &format!("{name}{suffix}"), name));
}

/// Truncates both device files, as a message proposes for files.
pub fn empty_devices(fixture: &Fixture) {
    DEVICES.iter().for_each(|name| drop(File::create(path(fixture, name)).expect("the device exists")));
}

/// Writes blocks and stops the daemon while the backing lacks some of them. Destage of an idle volume begins after a
/// second; if the stop came too late, another version is destaged, and the blocks are written again.
pub fn stop_dirty(fixture: &Fixture, mut daemon: Daemon, numbers: Range<u64>, version: u8) {
    for _ in 0..ATTEMPTS_MAX {
        write_some(fixture, numbers.clone(), version);
        daemon.stop();
        if count_some(&backing(fixture), numbers.clone(), version) < numbers.end - numbers.start {
            return;
        }
        daemon = fixture.start();
        write_some(fixture, numbers.clone(), version ^ OTHER_VERSION);
        daemon.command(&["stop", "--destage"]);
        daemon = fixture.start();
    }
    panic!("every stop came after the destage");
}

/// Flash devices restored from a copy (`.old`); `.new` holds their last content. The backing lacks blocks of version 2.
pub fn restored_devices() -> Fixture {
    let fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    save_devices(&fixture, ".old");
    stop_dirty(&fixture, fixture.start(), 0..BLOCKS, 2);
    save_devices(&fixture, ".new");
    restore_devices(&fixture, ".old");
    fixture
}

/// Flash devices of a later format; `.known` is their former content. The backing lacks blocks of version 1.
pub fn newer_devices() -> Fixture {
    let fixture = on_file();
    stop_dirty(&fixture, fixture.start(), 0..BLOCKS, 1);
    save_devices(&fixture, ".known");
    set_later_format(&fixture);
    fixture
}

/// Sets format 2 in the superblocks of both flash devices, with correct checksums.
pub fn set_later_format(fixture: &Fixture) {
    for name in DEVICES {
        let mut device = fs::read(path(fixture, name)).expect("the device exists");
        for offset in [0, 64 << 10] {
            let superblock = &mut device[offset..offset + 4096];
            superblock[8..12].copy_from_slice(&2_u32.to_le_bytes());
            let checksum = crc32c::crc32c(&superblock[..4092]);
            superblock[4092..].copy_from_slice(&checksum.to_le_bytes());
        }
        fs::write(path(fixture, name), device).expect("the device exists");
    }
}

/// Length of the unflushed data at the start of the volume of [`newer_memory`].
pub const UNFLUSHED_BYTES: usize = 8192;
/// Value of each byte of that data.
pub const UNFLUSHED_FILL: u8 = 7;
/// Format of persisted-memory files of this version.
pub const MEMORY_FORMAT: u8 = 2;

/// Persisted memory of a killed daemon, in a later format. It holds the first bytes of the volume.
pub fn newer_memory() -> Fixture {
    let mut fixture = Fixture::with_volume(VOLUME_BYTES);
    fixture.keep_in = "/dev/shm".to_owned();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[UNFLUSHED_FILL; UNFLUSHED_BYTES]).expect("the write succeeds");
    daemon.kill();
    set_memory_format(&persisted_memory_file(&fixture), MEMORY_FORMAT + 1);
    fixture
}

/// First persisted-memory file that the state directory names.
pub fn persisted_memory_file(fixture: &Fixture) -> PathBuf {
    let state = fs::read(path(fixture, STATE)).expect("the state file exists");
    let state: serde_json::Value = serde_json::from_slice(&state).expect("valid JSON");
    state["kept"][0]["path"].as_str().expect("the state file names a persisted-memory file").into()
}

/// Changes the format number of a persisted-memory file.
pub fn set_memory_format(file: &Path, format: u8) {
    let file = File::options().write(true).open(file).expect("the file exists");
    // The format is the last byte of the magic.
    file.write_all_at(&[format], 7).expect("the file can be written");
}

/// A state directory restored from a copy (`state.old`); `state.new` holds its last content. The token `early` is older
/// than the copy; the token `late` and the volume's shares are newer.
pub fn restored_state() -> Fixture {
    let fixture = on_file();
    let daemon = fixture.start();
    daemon.command(&["token", "create", "early"]);
    daemon.stop();
    copy(&fixture, STATE, "state.old");
    stop_dirty(&fixture, fixture.start(), 0..BLOCKS, 2);
    let daemon = fixture.start();
    daemon.command(&["token", "create", "late"]);
    daemon.command(&["volume", "set", "v", "shares=high"]);
    daemon.stop();
    copy(&fixture, STATE, "state.new");
    copy(&fixture, "state.old", STATE);
    fixture
}

/// A state directory whose file was lost (moved to `state.away`). The token `early` was created before. The backing has
/// version 1 of all blocks and lacks blocks of version 2.
pub fn lost_state() -> Fixture {
    let fixture = on_file();
    let daemon = fixture.start();
    daemon.command(&["token", "create", "early"]);
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    stop_dirty(&fixture, daemon, 0..BLOCKS, 2);
    rename(&fixture, STATE, "state.away");
    fixture
}

/// Like [`lost_state`], with the flash devices renamed with the suffix `.away`.
pub fn lost_state_and_devices() -> Fixture {
    let mut fixture = lost_state();
    DEVICES.iter().for_each(|name| rename(&fixture, name, &format!("{name}.away")));
    // Otherwise the daemon creates the missing files.
    fixture.tables = fixture.tables.replace("size = ", "# size = ");
    fixture
}

/// A backing replaced by a clone after a clean stop without flash; the original is at `old.img`.
pub fn cloned_backing() -> Fixture {
    let fixture = Fixture::with_volume(VOLUME_BYTES);
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.stop();
    clone_backing(&fixture);
    fixture
}

/// Like [`cloned_backing`], but the original has version 1 of all blocks, and the log has version 2 of some.
pub fn cloned_dirty_backing() -> Fixture {
    let fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    stop_dirty(&fixture, daemon, 0..BLOCKS, 2);
    clone_backing(&fixture);
    fixture
}

/// Like [`cloned_dirty_backing`], but the new backing lacks what was destaged.
pub fn replaced_dirty_backing() -> Fixture {
    let fixture = cloned_dirty_backing();
    let clone = File::create(path(&fixture, "v.img"));
    clone.and_then(|file| file.set_len(VOLUME_BYTES)).expect("the folder can be written");
    fixture
}

fn clone_backing(fixture: &Fixture) {
    rename(fixture, "v.img", "old.img");
    copy(fixture, "old.img", "v.img");
}

/// A second name of the backing of volume `first`. Both volumes are read-only, because a lock would already stop a
/// second writer.
pub fn shared_backing() -> Fixture {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.backing("first"), fixture.backing("v"));
    File::create(&first).and_then(|file| file.set_len(VOLUME_BYTES)).expect("the folder can be written");
    fs::hard_link(&first, &second).expect("both are in one folder");
    for (name, path) in [("first", &first), ("v", &second)] {
        fixture.add_volume_on(name, &path.to_string_lossy(), "read_only = true");
    }
    fixture
}

/// A configuration without its `[flash]`, and the removed text. The backing has version 1 of all blocks and lacks
/// blocks of version 2.
pub fn unused_flash() -> (Fixture, String) {
    let mut fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    stop_dirty(&fixture, daemon, 0..BLOCKS, 2);
    let tables = std::mem::take(&mut fixture.tables);
    (fixture, tables)
}

/// Flash devices restored from a copy (`.old`). The copy was made before the log was emptied in the same run; `.new`
/// holds their last content. The log has blocks of version 1, and the backing has version 2 of all blocks.
pub fn emptied_log_restored() -> Fixture {
    let mut fixture = on_file();
    fixture.keep_in = "none".to_owned();
    let daemon = fixture.start();
    let is_copied_dirty = (0..ATTEMPTS_MAX).any(|_| {
        write(&fixture, 1);
        save_devices(&fixture, ".old");
        show(&daemon, "v")["flash_dirty_bytes"].as_u64() > Some(0)
    });
    assert!(is_copied_dirty, "no copy was made before the destage: {}", daemon.log());
    daemon.command(&["volume", "set", "v", "policy=write-through"]);
    write(&fixture, 2);
    daemon.kill();
    save_devices(&fixture, ".new");
    restore_devices(&fixture, ".old");
    fixture
}

/// A backing rolled back in place (to `old.img`, version 1) while version 3 of ten blocks waits in the log;
/// `newest.img` holds its last content, with version 2 of the others.
pub fn rolled_back_backing() -> Fixture {
    let fixture = on_file();
    let daemon = fixture.start();
    write(&fixture, 1);
    daemon.command(&["volume", "flush", "v"]);
    copy(&fixture, "v.img", "old.img");
    write(&fixture, 2);
    daemon.command(&["volume", "flush", "v"]);
    stop_dirty(&fixture, daemon, 0..10, 3);
    copy(&fixture, "v.img", "newest.img");
    copy(&fixture, "old.img", "v.img");
    fixture
}

/// A backing shrunk to half its size while version 1 of all blocks waits in the log.
pub fn shrunk_backing() -> Fixture {
    let fixture = on_file();
    stop_dirty(&fixture, fixture.start(), 0..BLOCKS, 1);
    set_backing_size(&fixture, VOLUME_BYTES / 2);
    fixture
}

/// Size of [`grown_backing`] before its growth, not a multiple of the block size.
pub const SHORT_BYTES: u64 = VOLUME_BYTES / 2 + 512;
/// Value of each byte of the last sector before that size.
pub const LAST_SECTOR_FILL: u8 = 7;

/// A backing that has grown to [`VOLUME_BYTES`] while only the flash log held the data of its former partial last
/// block.
pub fn grown_backing() -> Fixture {
    let fixture = on_file();
    let created = File::create(fixture.backing("v")).and_then(|file| file.set_len(SHORT_BYTES));
    created.expect("the folder can be written");
    let write = |offset, content: &[u8]| {
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        let written = client.write(offset, content).and_then(|()| client.flush());
        written.expect("the volume can be written");
    };
    // Destaged blocks prove that the backing is the same one.
    let daemon = fixture.start();
    write(0, &[1; 64 << 10]);
    daemon.command(&["stop", "--destage"]);
    for version in 0..ATTEMPTS_MAX as u8 {
        let daemon = fixture.start();
        // Destage in address order reaches the last sector last.
        (0..SHORT_BYTES >> 20).for_each(|mib| write(mib << 20, &vec![version + 2; 1 << 20]));
        write(SHORT_BYTES - 512, &[LAST_SECTOR_FILL; 512]);
        daemon.stop();
        if backing(&fixture)[SHORT_BYTES as usize - 1] != LAST_SECTOR_FILL {
            set_backing_size(&fixture, VOLUME_BYTES);
            return fixture;
        }
        let daemon = fixture.start();
        write(SHORT_BYTES - 512, &[!LAST_SECTOR_FILL; 512]);
        daemon.command(&["stop", "--destage"]);
    }
    panic!("every stop came after the destage");
}

/// Shrinks or grows the backing.
pub fn set_backing_size(fixture: &Fixture, bytes: u64) {
    let file = File::options().write(true).open(fixture.backing("v")).expect("the backing exists");
    file.set_len(bytes).expect("the size can be changed");
}

/// Blocks whose version 1 is in the flash log, not on the disk of [`ExportedDisk`].
pub const EXPORTED_BLOCKS: Range<u64> = 0..50;

/// Number of these blocks that lie within the end of a disk that [`ExportedDisk::shrink`] has shrunk.
pub const EXPORTED_BLOCKS_INSIDE: u64 = 25;

/// A volume on an export of another server, whose disk can be replaced between starts.
pub struct ExportedDisk {
    /// Fixture whose next start finds another disk, or a disk without proof of identity.
    pub fixture: Fixture,
    server: Option<Nbdkit>,
}

impl ExportedDisk {
    /// The flash log holds blocks that the disk `a.img`, filled with `byte`, lacks. None is destaged, because the disk
    /// fails all writes.
    pub fn new(byte: u8) -> ExportedDisk {
        let mut disk = ExportedDisk { fixture: Fixture::new(), server: None };
        set_flash(&mut disk.fixture, &DEVICES, "");
        fs::write(disk.write_error_file(), "").expect("the folder can be written");
        disk.attach("a.img", byte);
        let uri = disk.server.as_ref().expect("the disk was just attached").uri();
        disk.fixture.add_volume_on("v", &uri, "");
        let daemon = disk.fixture.start();
        write_some(&disk.fixture, EXPORTED_BLOCKS, 1);
        daemon.stop();
        fs::remove_file(disk.write_error_file()).expect("the file exists");
        disk
    }

    /// Attaches a disk to the export; a new one is filled with `byte`.
    pub fn attach(&mut self, name: &str, byte: u8) {
        let file = path(&self.fixture, name);
        if !file.exists() {
            fs::write(&file, vec![byte; VOLUME_BYTES as usize]).expect("the folder can be written");
        }
        let error_file = self.write_error_file();
        let args = format!(
            "--filter=error --filter=noparallel file {} error-pwrite=EIO error-pwrite-rate=100% error-pwrite-file={}",
            file.display(),
            error_file.display()
        );
        // The socket is free after the end of its server.
        self.server = None;
        self.server = Some(Nbdkit::start(&path(&self.fixture, "export"), &args));
    }

    /// Shrinks the disk `a.img`, so that all blocks from [`EXPORTED_BLOCKS_INSIDE`] on lie past its end.
    pub fn shrink(&mut self) {
        let file = File::options().write(true).open(path(&self.fixture, "a.img")).expect("the disk exists");
        file.set_len(offset_of(EXPORTED_BLOCKS_INSIDE)).expect("the size can be changed");
        // The export has the size that its server has found at its start.
        self.attach("a.img", 0);
    }

    /// Content of a disk.
    pub fn content(&self, name: &str) -> Vec<u8> {
        fs::read(path(&self.fixture, name)).expect("the disk exists")
    }

    /// Path of a file whose existence makes the disk fail writes.
    fn write_error_file(&self) -> PathBuf {
        path(&self.fixture, "fail-writes")
    }
}
