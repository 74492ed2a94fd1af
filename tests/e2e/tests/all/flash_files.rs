//! Flash files and the file systems that they lie on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use e2e::client::Client;
use e2e::daemon::{text_of, wait_for};
use e2e::fixture::Fixture;

use crate::flash::{failing_devices, set_flash_devices};
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
