//! A disk with an ext4 file system becomes a volume of a pool in place, its slices move, and a script of `dd` commands
//! makes it a plain disk again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SLICE: u64 = MIB;
/// Bytes of the file system, and of a tail that fills no slice.
const FILE_SYSTEM_BYTES: u64 = 24 * MIB;
const TAIL_BYTES: u64 = (64 << 10) + 512;
const DISK_BYTES: u64 = FILE_SYSTEM_BYTES + TAIL_BYTES;
/// The blocks that the superblocks of the pool overwrite.
const SUPERBLOCKS: [std::ops::Range<usize>; 2] = [0..4096, 65_536..69_632];

/// A fixture with a pool "tank" of 9 and 17 MiB in slices of 1 MiB, whose slices move by command.
fn with_pool() -> Fixture {
    let mut fixture = Fixture::new();
    let folder = fixture.folder.path().to_owned();
    for (name, mib) in [("ssd", 9), ("hdd", 17)] {
        let file = File::create(folder.join(name)).expect("the folder can be written");
        file.set_len(mib * MIB).expect("a sparse file can be created");
    }
    let folder = folder.display();
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\nrelocation = \"off\"\nrate = \"high\"\n\
         [[pool.tier]]\nname = \"ssd\"\nclass = \"nvme\"\ndevices = [\"{folder}/ssd\"]\n\
         [[pool.tier]]\nname = \"hdd\"\nclass = \"nl-sas\"\ndevices = [\"{folder}/hdd\"]\n"
    );
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let created = hotset(&["pool", "create", "tank", "--config", &fixture.config().display().to_string()]);
    assert!(created.status.success(), "{}", text_of(&created));
    fixture
}

/// A disk image with a file system that has this crate's sources, and a tail behind it.
fn disk_with_data(fixture: &Fixture) -> PathBuf {
    let image = fixture.folder.join("disk.img");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    tool("mke2fs").args("-q -t ext4 -E root_owner=0:0 -d").arg(&sources).arg(&image).arg("24M").ok();
    let mut file = File::options().append(true).open(&image).expect("the image exists");
    let tail: Vec<u8> = (0..TAIL_BYTES).map(|at| (at / 512) as u8 ^ 0x5a).collect();
    file.write_all(&tail).expect("the folder can be written");
    image
}

fn show(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.command(&["pool", "show", "tank", "--json"])).expect("the report is JSON")
}

fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.try_command(args);
    assert!(!output.status.success(), "{args:?} is refused: {}", text_of(&output));
    text_of(&output)
}

/// Reads the volume through NBD: it has the expected content, and its file system is clean.
fn assert_volume_is(fixture: &Fixture, expected: &[u8]) {
    let copy = fixture.folder.join("copy.img");
    tool("nbdcopy").arg(fixture.uri("old")).arg(&copy).ok();
    assert_is_clean(&copy, expected);
}

fn assert_is_clean(image: &Path, expected: &[u8]) {
    let found = fs::read(image).expect("the image exists");
    assert_eq!(found.len(), expected.len(), "{}", image.display());
    let difference = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(difference, None, "{} differs", image.display());
    tool("e2fsck").args("-f -n").arg(image).ok();
}

/// The script that writes the volume to `to`.
fn export(fixture: &Fixture, to: &Path) -> (bool, String) {
    let (config, to) = (fixture.config().display().to_string(), to.display().to_string());
    let output = hotset(&["pool", "export-map", "tank", "--config", &config, "--volume", "old", "--to", &to]);
    (output.status.success(), text_of(&output))
}

fn run_script(fixture: &Fixture, script: &str) {
    let path = fixture.folder.join("export.sh");
    fs::write(&path, script).expect("the folder can be written");
    tool("sh").arg(&path).ok();
}

#[test]
fn ext4_disk_is_imported_in_place_moved_and_exported_again() {
    for program in ["mke2fs", "e2fsck", "nbdcopy"] {
        if !tool("sh").arg("-c").arg(format!("command -v {program}")).output().status.success() {
            println!("skipped: {program} is not installed");
            return;
        }
    }
    let fixture = with_pool();
    let image = disk_with_data(&fixture);
    let path = image.display().to_string();
    let mut expected = fs::read(&image).expect("the image exists");
    assert_eq!(expected.len() as u64, DISK_BYTES);
    let daemon = fixture.start();
    let import = ["pool", "import", "tank", &path, "--tier", "hdd", "--volume", "old", "--yes"];
    let text = refused(&daemon, &["pool", "import", "tank", &path, "--tier", "tape", "--volume", "old", "--yes"]);
    assert!(text.contains("ssd, hdd"), "{text}");
    let hdd = fixture.folder.join("hdd").display().to_string();
    let text = refused(&daemon, &["pool", "import", "tank", &hdd, "--tier", "hdd", "--volume", "old", "--yes"]);
    assert!(text.contains("in use") || text.contains("already"), "{text}");
    assert_eq!(fs::read(&image).expect("the image exists"), expected, "a refusal changes nothing");

    let imported = daemon.command(&import);
    assert!(imported.contains(&path) && imported.contains("hotset volume add old"), "{imported}");
    let mut on_disk = fs::read(&image).expect("the image exists");
    for range in SUPERBLOCKS {
        assert!(on_disk[range.clone()].starts_with(b"HOTSETPL"), "{range:?} is a superblock");
        on_disk[range.clone()].copy_from_slice(&expected[range]);
    }
    assert!(on_disk == expected, "no other byte of the disk has changed");
    assert!(refused(&daemon, &import).contains("in use") || refused(&daemon, &import).contains("already"));

    // Without a cache each read reaches the pool.
    daemon.command(&["volume", "add", "old", "--backing", "pool://tank", "--policy", "none"]);
    assert_volume_is(&fixture, &expected);
    let mut client = Client::connect(&fixture.endpoint(), "old").expect("the volume is served");
    let tail_at = FILE_SYSTEM_BYTES + 4096;
    client.write(tail_at, &[9; 4096]).expect("its slice is allocated");
    expected[tail_at as usize..][..4096].fill(9);
    for round in 0..60 {
        for slice in 8..14 {
            client.read(slice * SLICE + (round * 37 % 256) * 4096, 4096).expect("the pool is whole");
        }
    }
    client.flush().expect("the pool is whole");
    daemon.command(&["pool", "relocate", "tank"]);
    wait_for("the end of the moves", || {
        let pool = show(&daemon);
        let has_ended = pool["relocation"]["state"] == "off" && pool["relocation"]["moves"].as_u64() > Some(0);
        has_ended.then_some(())
    });
    assert_volume_is(&fixture, &expected);
    drop(client);
    daemon.kill();
    let daemon = fixture.start();
    assert!(daemon.log().contains("was added by command"), "{}", daemon.log());
    assert_volume_is(&fixture, &expected);

    let (succeeded, text) = export(&fixture, &image);
    assert!(!succeeded, "the daemon uses the devices: {text}");
    daemon.command(&["volume", "remove", "old"]);
    daemon.stop();
    // The configuration names the imported disk from now on, as the command has said.
    let config = fixture.config_text().replace(&format!("[\"{hdd}\"]"), &format!("[\"{hdd}\", \"{path}\"]"));
    fs::write(fixture.config(), config).expect("the folder can be written");
    let elsewhere = fixture.folder.join("it's elsewhere.img");
    let (succeeded, script) = export(&fixture, &elsewhere);
    assert!(succeeded, "{script}");
    run_script(&fixture, &script);
    assert_is_clean(&elsewhere, &expected);
    // A script from before a change of the pool copies nothing.
    let daemon = fixture.start();
    daemon.command(&["volume", "add", "new", "--backing", "pool://tank", "--size", "1MiB"]);
    daemon.command(&["volume", "remove", "new"]);
    daemon.stop();
    fs::remove_file(&elsewhere).expect("the script has written it");
    let output = tool("sh").arg(fixture.folder.join("export.sh")).output();
    assert!(!output.status.success() && text_of(&output).contains("the pool has changed"), "{}", text_of(&output));
    assert!(!elsewhere.exists());
    let (succeeded, script) = export(&fixture, &image);
    assert!(succeeded && script.contains("in place"), "{script}");
    run_script(&fixture, &script);
    assert_is_clean(&image, &expected);
    // A script that was interrupted is run again from its start.
    run_script(&fixture, &script);
    assert_is_clean(&image, &expected);
}

#[test]
fn import_is_refused_for_the_disk_of_a_known_volume() {
    let mut fixture = with_pool();
    fixture.add_volume("other", DISK_BYTES, "");
    let disk = fixture.backing("other");
    let daemon = fixture.start();
    let import = |volume: &str, path: &Path| {
        let path = path.display().to_string();
        let args = ["pool", "import", "tank", &path, "--tier", "hdd", "--volume", volume, "--yes"];
        refused(&daemon, &args)
    };
    for name in ["two\nlines", "quote\"d", ""] {
        assert!(import(name, &disk).contains("cannot be a name"), "{name:?}");
    }
    let text = import("old", &disk);
    assert!(text.contains("the backing of volume other"), "{text}");
    daemon.stop();

    // The disk moves away before the start, and comes back under another path.
    let elsewhere = fixture.folder.join("elsewhere.img");
    fs::rename(&disk, &elsewhere).expect("the folder can be written");
    let daemon = fixture.start();
    let path = elsewhere.display().to_string();
    let text = refused(&daemon, &["pool", "import", "tank", &path, "--tier", "hdd", "--volume", "old", "--yes"]);
    assert!(text.contains("the backing of volume other") && text.contains("hotset volume remove other"), "{text}");
}

#[test]
fn device_of_a_pool_is_refused_as_the_backing_of_a_volume() {
    let mut fixture = with_pool();
    fixture.add_volume("other", DISK_BYTES, "");
    let disk = fixture.backing("other");
    let daemon = fixture.start();
    daemon.stop();
    // The record of the volume stays, but the file does not list it during the import.
    fixture.clear_volumes();
    let daemon = fixture.start();
    let path = disk.display().to_string();
    daemon.command(&["pool", "import", "tank", &path, "--tier", "hdd", "--volume", "old", "--yes"]);
    daemon.stop();
    let before = fs::read(&disk).expect("the disk exists");
    // Without the pool nothing else holds the disk.
    fixture.tables.clear();
    fixture.add_volume_on("other", &path, "");
    let daemon = fixture.start();
    let status = daemon.command(&["volume", "list"]);
    let text = format!("{status}{}", daemon.log());
    assert!(text.contains("is a device of a pool") && text.contains("take it out of the [[volume]]"), "{text}");
    let copy = fixture.folder.join("copy.img");
    fs::copy(&disk, &copy).expect("the folder can be written");
    let text = refused(&daemon, &["volume", "add", "copy", "--backing", &copy.display().to_string()]);
    assert!(text.contains("is a device of a pool"), "{text}");
    assert!(fs::read(&disk).expect("the disk exists") == before, "the refusals change nothing");
}

#[test]
fn import_of_a_physical_volume_of_lvm_has_to_be_confirmed() {
    let fixture = with_pool();
    let image = fixture.folder.join("pv.img");
    let mut content = vec![7; DISK_BYTES as usize];
    content[512..520].copy_from_slice(b"LABELONE");
    fs::write(&image, &content).expect("the folder can be written");
    let daemon = fixture.start();
    let path = image.display().to_string();
    let args = ["pool", "import", "tank", &path, "--tier", "hdd", "--volume", "old", "--yes"];
    let text = refused(&daemon, &args);
    assert!(text.contains("a physical volume of LVM") && text.contains("--force"), "{text}");
    assert!(fs::read(&image).expect("the image exists") == content, "the refusal changes nothing");
    daemon.command(&[&args[..], &["--force"]].concat());
}
