//! Starts, stops and reloads, with locks and drains.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::server::Nbdkit;

const MIB: u64 = 1 << 20;

/// A fixture whose volume lies on another fixture's backing.
fn rival_of(fixture: &Fixture) -> Fixture {
    let mut rival = Fixture::new();
    rival.add_volume_on("v", &fixture.backing("v").to_string_lossy(), "");
    rival
}

#[test]
fn second_daemon_on_a_backing_is_refused() {
    let fixture = Fixture::with_volume(4 * MIB);
    let first = fixture.start();
    let rival = rival_of(&fixture);
    let second = Daemon::launch(&rival);
    wait_for("the refusal", || second.log().contains("in use by another process").then_some(()));
    assert!(Client::connect(&rival.endpoint(), "v").is_err(), "the second daemon serves the first one's backing");
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the first still serves");
    client.write(0, &[1; 512]).expect("the write succeeds");
    drop(client);
    first.stop();
}

#[test]
fn second_daemon_on_a_state_directory_is_refused() {
    let fixture = Fixture::with_volume(4 * MIB);
    let first = fixture.start();
    let mut second = Daemon::launch(&fixture);
    assert!(!second.wait().success());
    assert!(second.log().contains("state directory"), "{}", second.log());
    Client::connect(&fixture.endpoint(), "v").expect("the first still serves");
    first.stop();
}

#[test]
fn start_waits_for_a_predecessor_with_requests_in_flight() {
    let fixture = Fixture::with_volume(4 * MIB);
    let first = fixture.start();
    // A stopped process holds its backing like a killed one with a request in flight.
    first.signal("STOP");
    let rival = rival_of(&fixture);
    let mut second = Daemon::launch(&rival);
    std::thread::sleep(Duration::from_millis(500));
    assert!(Client::connect(&rival.endpoint(), "v").is_err(), "the second did not wait");
    first.kill();
    second.wait_until_ready();
    Client::connect(&rival.endpoint(), "v")
        .and_then(|mut client| client.write(0, &[1; 512]))
        .expect("the volume is served");
    second.stop();
}

#[test]
fn stop_destages_all_data() {
    let fixture = Fixture::with_volume(16 * MIB);
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for number in 0..1000u64 {
        client.write(number * 16384, &[number as u8 | 1; 4096]).expect("the write succeeds");
    }
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "{}", daemon.log());
    let content = fs::read(fixture.backing("v")).expect("the backing exists");
    for number in 0..1000usize {
        assert_eq!(content[number * 16384..][..4096], [number as u8 | 1; 4096], "write {number}");
    }
}

#[test]
fn stop_destage_leaves_the_backing_complete() {
    let fixture = Fixture::with_volume(8 * MIB);
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(512, &[7; 65536]).expect("the write succeeds");
    daemon.command(&["stop", "--destage"]);
    assert!(daemon.wait().success(), "{}", daemon.log());
    let content = fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content[512..512 + 65536], [7; 65536]);
}

#[test]
fn volume_flush_leaves_the_backing_complete_while_serving() {
    let fixture = Fixture::with_volume(8 * MIB);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(512, &[8; 65536]).expect("the write succeeds");
    daemon.command(&["volume", "flush", "v"]);
    let content = fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content[512..512 + 65536], [8; 65536]);
    drop(client);
    daemon.stop();
}

#[test]
fn second_sigterm_ends_a_slow_drain_and_keeps_flushed_data() {
    let mut fixture = Fixture::new();
    let (socket, disk) = (fixture.folder.join("below"), fixture.folder.join("disk"));
    fs::File::create(&disk).and_then(|file| file.set_len(32 * MIB)).expect("the folder can be written");
    let args = format!("--filter=delay --filter=noparallel file {} delay-write=100ms delay-zero=100ms", disk.display());
    let backing_server = Nbdkit::start(&socket, &args);
    fixture.add_volume_on("v", &backing_server.uri(), "");
    let mut daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[5; 4096]).expect("the write succeeds");
    client.flush().expect("the flush succeeds");
    // 500 scattered blocks take the backing 50 seconds.
    for number in 0..500u64 {
        client.write(65536 + number * 61440, &[6; 4096]).expect("the write succeeds");
    }
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(500));
    assert!(daemon.is_running(), "the drain cannot be over:\n{}", daemon.log());
    daemon.signal("TERM");
    let pid = daemon.pid();
    let started_at = std::time::Instant::now();
    daemon.wait();
    assert!(started_at.elapsed() < Duration::from_secs(20), "process {pid} went on draining");
    let content = fs::read(&disk).expect("the backing exists");
    assert_eq!(content[..4096], [5; 4096]);
}

#[test]
fn sighup_adds_a_new_volume_and_keeps_connections() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[1; 512]).expect("the write succeeds");
    fixture.add_volume("later", 2 * MIB, "");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    let later = wait_for("the new volume", || Client::connect(&fixture.endpoint(), "later").ok());
    assert_eq!(later.size, 2 * MIB);
    assert_eq!(client.read(0, 512).expect("the old connection is open"), [1; 512]);
    drop((client, later));
    daemon.stop();
}

#[test]
fn sighup_names_keys_that_need_a_restart_and_refuses_a_bad_file() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    fixture.memory = "80 MiB".to_owned();
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("a line on memory.size", || {
        let log = daemon.log();
        (log.contains("memory") && log.contains("restart")).then_some(())
    });
    fs::write(fixture.config(), "[memory]\nsize = \"lots\"\n").expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("a line on the broken file", || daemon.log().contains("lots").then_some(()));
    Client::connect(&fixture.endpoint(), "v").expect("the daemon serves as before");
    daemon.stop();
}

#[test]
fn status_and_volumes_are_shown_as_text_and_json() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[1; 4096]).expect("the write succeeds");
    client.read(0, 4096).expect("the read succeeds");
    assert!(daemon.command(&["status"]).contains('v'));
    assert!(daemon.command(&["volume", "list"]).contains("write-back"));
    let shown = daemon.command(&["volume", "show", "v", "--json"]);
    for key in
        ["\"reads\"", "\"writes\"", "\"memory_hits\"", "\"dirty_bytes\"", "\"latency_us\"", "\"p999\"", "\"state\""]
    {
        assert!(shown.contains(key), "{key} is missing in {shown}");
    }
    let missing = daemon.try_command(&["volume", "show", "nothing"]);
    assert_eq!(missing.status.code(), Some(1), "{}", text_of(&missing));
    drop(client);
    daemon.stop();
}

#[test]
fn command_without_a_daemon_reports_it() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let socket = fixture.folder.join("nobody.sock");
    daemon.stop();
    let output = e2e::daemon::hotset(&["status", "--socket", &socket.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    assert!(text_of(&output).contains("nobody.sock"), "{}", text_of(&output));
}

#[test]
fn idle_control_connections_delay_neither_commands_nor_stop() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let socket = fixture.folder.join("control.sock");
    let idle: Vec<_> = (0..80).map(|_| UnixStream::connect(&socket).expect("the daemon listens")).collect();
    assert!(daemon.command(&["status"]).contains('v'));
    daemon.stop();
    drop(idle);
}
