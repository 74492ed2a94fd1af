//! NBD clients that cannot reconnect, across restarts of the daemon under a service manager that stores descriptors.

use std::fs;
use std::time::Duration;

use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::manager::Manager;
use e2e::refusal::json;
use e2e::server::Nbdkit;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;
/// Two flash files.
const FLASH: &str = "[flash]\ndevices = [\"one\", \"two\"]\nsize = \"64 MiB\"\n";

/// A fixture with a service manager that starts its daemons.
fn managed_fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(64 * MIB);
    fixture.service_manager = Some(Manager::start(fixture.folder.path()));
    fixture
}

fn manager(fixture: &Fixture) -> &Manager {
    fixture.service_manager.as_ref().expect("a managed fixture")
}

/// Stops the daemon with SIGTERM and starts the next one.
fn restart(fixture: &Fixture, daemon: Daemon) -> Daemon {
    daemon.stop();
    fixture.start()
}

/// Restarts the daemon under a verified load of four connections that cannot reconnect.
fn verify_fio_over_restarts(fixture: &Fixture) {
    let mut daemon = fixture.start();
    let folder = fixture.folder.path().to_owned();
    let uri = format!("--uri={}", fixture.uri("v"));
    let load = std::thread::spawn(move || {
        let args = "--name=v --ioengine=nbd --verify=crc32c --verify_fatal=1 --randseed=7 --rw=randrw \
                    --bsrange=4k-128k \
                    --iodepth=8 --numjobs=4 --size=16m --offset_increment=16m --thread --verify_backlog=64 \
                    --serialize_overlap=1 --time_based --runtime=12";
        tool("fio").args(args).arg(uri).within(&folder).ok()
    });
    let connections = |daemon: &Daemon| json(daemon, &["status"])["cores"][0]["connections"].as_u64();
    wait_for("fio's connections", || (connections(&daemon) >= Some(4)).then_some(()));
    let mut restarts = 0;
    // Once a client of fio has left, no further restart hands over all four.
    while connections(&daemon) >= Some(4) {
        std::thread::sleep(Duration::from_millis(900));
        daemon = restart(fixture, daemon);
        restarts += 1;
        wait_for("the release of the stored descriptors", || (manager(fixture).count() == 0).then_some(()));
    }
    load.join().expect("fio saw no error");
    let log = daemon.log();
    let handovers = log.matches("NBD clients taken over from the previous daemon: 4").count();
    // The last restart may come after some clients have left.
    assert!(restarts >= 3 && handovers + 1 >= restarts, "{restarts} restarts:\n{log}");
    daemon.stop();
}

#[test]
fn fio_survives_restarts_of_a_destaging_daemon() {
    verify_fio_over_restarts(&managed_fixture());
}

#[test]
fn fio_survives_restarts_with_dirty_data_on_flash() {
    let mut fixture = managed_fixture();
    fixture.tables += FLASH;
    verify_fio_over_restarts(&fixture);
}

#[test]
fn handed_over_client_is_disconnected_by_a_kill() {
    let fixture = managed_fixture();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(4096, &[5; 4096]).expect("the write succeeds");
    let daemon = restart(&fixture, daemon);
    assert_eq!(client.read(4096, 4096).expect("the next daemon answers"), [5; 4096]);
    client.write(8192, &[6; 4096]).expect("the next daemon writes");
    daemon.kill();
    assert!(client.read(8192, 4096).is_err(), "the client is still connected");
    let daemon = fixture.start();
    assert_eq!(manager(&fixture).count(), 0);
    daemon.stop();
}

#[test]
fn client_is_disconnected_when_a_destaging_stop_is_aborted() {
    let mut fixture = managed_fixture();
    let (socket, disk) = (fixture.folder.join("below"), fixture.folder.join("disk"));
    fs::File::create(&disk).and_then(|file| file.set_len(32 * MIB)).expect("the folder can be written");
    let args = format!("--filter=delay --filter=noparallel file {} delay-write=100ms", disk.display());
    let backing_server = Nbdkit::start(&socket, &args);
    fixture.add_volume_on("slow", &backing_server.uri(), "");
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "slow").expect("the volume is served");
    // 300 scattered blocks take the backing 30 seconds.
    for number in 0..300u64 {
        client.write(number * 61440, &[6; 4096]).expect("the write succeeds");
    }
    daemon.signal("TERM");
    wait_for("the start of the destage", || daemon.log().contains("destaging: ").then_some(()));
    assert!(daemon.is_running(), "the destage cannot be finished:\n{}", daemon.log());
    daemon.signal("TERM");
    daemon.wait();
    assert!(client.read(0, 4096).is_err(), "a possible loss is not reported");
    assert_eq!(manager(&fixture).count(), 0);
}

#[test]
fn request_during_a_restart_is_answered_by_the_next_daemon() {
    let mut fixture = managed_fixture();
    fixture.add_volume("other", MIB, "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    let mut other = Client::connect(&fixture.endpoint(), "other").expect("the volume is served");
    daemon.stop();
    assert_eq!(manager(&fixture).count(), 2);
    client.send(Op::Write, 0, 512, 512, &[9; 512]).expect("the connection is open");
    // The volume of a stored connection may be removed meanwhile.
    fixture.clear_volumes();
    fixture.add_volume_on("v", &fixture.backing("v").to_string_lossy(), "");
    let daemon = fixture.start();
    assert_eq!(client.receive().expect("the next daemon answers").error, 0);
    assert_eq!(client.read(512, 512).expect("the next daemon answers"), [9; 512]);
    assert!(other.read(0, 512).is_err(), "a removed volume is served");
    wait_for("the reason", || daemon.log().contains("disconnected: 1; its volume is not served").then_some(()));
    daemon.stop();
    manager(&fixture).release();
    assert!(client.read(512, 512).is_err(), "no daemon runs");
    let content = fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content[512..1024], [9; 512]);
}

#[test]
fn stop_by_command_disconnects_clients() {
    let fixture = managed_fixture();
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    daemon.command(&["stop"]);
    wait_for("the end", || (!daemon.is_running()).then_some(()));
    assert!(client.read(0, 512).is_err());
    assert_eq!(manager(&fixture).count(), 0);
}
