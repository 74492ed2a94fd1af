//! Absent backings: each prevents only its own volume from being served, until it appears.

use std::fs::{self, File};

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::server::Nbdkit;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn state_of(daemon: &Daemon, volume: &str) -> Value {
    let shown: Value =
        serde_json::from_str(&daemon.command(&["volume", "show", volume, "--json"])).expect("valid JSON");
    shown["state"].clone()
}

fn connect(fixture: &Fixture, volume: &str) -> Client {
    wait_for("the volume", || Client::connect(&fixture.endpoint(), volume).ok())
}

#[test]
fn absent_backing_refuses_only_its_volume() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let path = fixture.folder.join("away.img");
    fixture.add_volume_on("away", &path.display().to_string(), "");
    fixture.add_volume_on("device", "/dev/no-such-disk", "size = \"1 MiB\"");
    let daemon = fixture.start();
    let log = daemon.log();
    let line = |volume: &str| {
        let start = format!("volume {volume} is not served: ");
        log.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{volume}: {log}")).to_owned()
    };
    assert!(line("away").contains("does not exist") && line("away").contains("add size ="), "{log}");
    assert!(line("device").contains("does not exist") && line("device").contains("attach the disk"), "{log}");
    connect(&fixture, "v").write(0, &[1; 4096]).expect("the others are served");
    let config = fixture.config().display().to_string();
    let checked = hotset(&["check-config", &config]);
    let text = text_of(&checked);
    assert_eq!(checked.status.code(), Some(2), "{text}");
    assert!(text.contains("away.img does not exist") && text.contains("the device /dev/no-such-disk"), "{text}");
    let checked = hotset(&["check-config", "--any-devices", &config]);
    assert_eq!(checked.status.code(), Some(0), "{}", text_of(&checked));
    File::create(&path).and_then(|file| file.set_len(2 * MIB)).expect("the folder can be written");
    assert_eq!(connect(&fixture, "away").size, 2 * MIB, "the daemon opens it without a command");
    assert_eq!(state_of(&daemon, "device"), "refused");
    assert!(!fs::exists("/dev/no-such-disk").expect("/dev can be read"), "the daemon creates no file in /dev");
    daemon.stop();
}

#[test]
fn reload_with_an_absent_backing_takes_effect() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    fixture.add_volume_on("away", &fixture.folder.join("away.img").display().to_string(), "");
    let daemon = fixture.start();
    fixture.add_volume("later", 2 * MIB, "");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    assert_eq!(connect(&fixture, "later").size, 2 * MIB);
    assert_eq!(state_of(&daemon, "away"), "refused");
    daemon.stop();
}

#[test]
fn daemon_waits_for_its_only_absent_backing() {
    let mut fixture = Fixture::new();
    let (socket, disk) = (fixture.folder.join("below"), fixture.folder.join("disk"));
    File::create(&disk).and_then(|file| file.set_len(4 * MIB)).expect("the folder can be written");
    fixture.add_volume_on("v", &format!("nbd+unix:///?socket={}", socket.display()), "");
    let daemon = fixture.start();
    assert!(daemon.log().contains("start the server of nbd+unix"), "{}", daemon.log());
    let backing_server = Nbdkit::start(&socket, &format!("file {}", disk.display()));
    let mut client = connect(&fixture, "v");
    client.write(0, &[1; 4096]).and_then(|()| client.flush()).expect("the volume is served");
    drop(client);
    daemon.stop();
    drop(backing_server);
}

#[test]
fn no_new_file_is_created_for_a_known_volume() {
    let mut fixture = Fixture::new();
    let (path, elsewhere) = (fixture.backing("v"), fixture.folder.join("unmounted.img"));
    fixture.add_volume_on("v", &path.display().to_string(), "size = \"4 MiB\"");
    let daemon = fixture.start();
    connect(&fixture, "v").write(0, &[5; 4096]).expect("the file was created");
    daemon.stop();
    fs::rename(&path, &elsewhere).expect("both are in one folder");
    let daemon = fixture.start();
    assert_eq!(state_of(&daemon, "v"), "refused", "{}", daemon.log());
    assert!(daemon.log().contains("no new file"), "{}", daemon.log());
    let refused = daemon.try_command(&["volume", "adopt", "v"]);
    assert!(!refused.status.success() && text_of(&refused).contains("no new file"), "{}", text_of(&refused));
    assert!(!path.exists(), "a new, empty file replaces the volume's data");
    fs::rename(&elsewhere, &path).expect("both are in one folder");
    assert_eq!(connect(&fixture, "v").read(0, 4096).expect("the read succeeds"), [5; 4096]);
    daemon.stop();
}
