//! `hotset undestaged` and the end of `hotset stop`: package removal relies on their answers.

use std::fs::{self, File};
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::server::Nbdkit;

const MIB: u64 = 1 << 20;

/// A volume whose dirty data stays on flash at a stop.
fn fixture_with_flash() -> Fixture {
    let mut fixture = Fixture::with_volume(16 * MIB);
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", fixture.folder.join(name).display()));
    fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"256 MiB\"\n", devices.join(", "));
    fixture
}

fn write_blocks(fixture: &Fixture) -> Client {
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for number in 0..64u64 {
        client.write(number * 65536, &[7; 4096]).expect("the write succeeds");
    }
    client
}

/// Exit code, the listed volumes, and the whole output.
fn undestaged(args: &[&str]) -> (Option<i32>, String, String) {
    let output = hotset(&[&["undestaged"], args].concat());
    let names = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.code(), names, text_of(&output))
}

#[test]
fn stop_returns_when_the_process_has_ended() {
    let fixture = fixture_with_flash();
    let config = fixture.config().display().to_string();
    for round in 0..6 {
        let mut daemon = fixture.start();
        drop(write_blocks(&fixture));
        daemon.command(&["stop"]);
        assert!(!daemon.is_running(), "round {round}: the process runs after `hotset stop`");
        let (code, names, text) = undestaged(&["--config", &config]);
        assert_eq!((code, names.as_str()), (Some(1), "v"), "round {round}: {text}");
    }
    let daemon = fixture.start();
    daemon.command(&["stop", "--destage"]);
    let (code, names, text) = undestaged(&["--config", &config]);
    assert_eq!((code, names.as_str()), (Some(0), ""), "{text}");
}

#[test]
fn stopping_daemon_has_undestaged_data() {
    let mut fixture = Fixture::new();
    let (socket, disk) = (fixture.folder.join("backing"), fixture.folder.join("disk"));
    File::create(&disk).and_then(|file| file.set_len(32 * MIB)).expect("the folder can be written");
    let args = format!("--filter=error --filter=noparallel file {} error-pwrite-rate=100%", disk.display());
    let backing_server = Nbdkit::start(&socket, &args);
    fixture.add_volume_on("v", &backing_server.uri(), "");
    fixture.add_volume("whole", MIB, "");
    let daemon = fixture.start();
    drop(write_blocks(&fixture));
    daemon.signal("TERM");
    wait_for("the stop", || daemon.log().contains("; retrying, a second signal").then_some(()));
    let (code, names, text) = undestaged(&["--config", &fixture.config().display().to_string()]);
    assert_eq!(code, Some(1), "{text}");
    assert!(names.lines().any(|name| name == "v") && text.contains("is stopping"), "{text}");
    // The volume without dirty data is recorded as clean by then.
    assert!(!names.lines().any(|name| name == "whole"), "{text}");
    drop((daemon, backing_server));
}

#[test]
fn starting_daemon_is_named_and_waited_for() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    drop(write_blocks(&fixture));
    daemon.stop();
    // The start waits up to 10 s for the lock of the backing.
    let lock_holder = File::open(fixture.backing("v")).expect("the backing exists");
    lock_holder.lock().expect("no process holds it");
    let mut daemon = Daemon::launch(&fixture);
    let listed = wait_for("the control socket", || {
        let listed = daemon.try_command(&["volume", "list"]);
        listed.status.success().then(|| text_of(&listed))
    });
    assert!(listed.contains("the daemon is starting"), "{listed}");
    let listed = text_of(&daemon.try_command(&["flash", "list"]));
    assert!(listed.contains("the daemon is starting"), "{listed}");
    assert!(daemon.command(&["status"]).contains(", starting"));
    let config = fixture.config().display().to_string();
    let (code, names, text) = std::thread::scope(|scope| {
        let check = scope.spawn(|| undestaged(&["--config", &config]));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!check.is_finished(), "the volumes' counters are not complete yet");
        drop(lock_holder);
        check.join().expect("the command ends")
    });
    assert_eq!((code, names.as_str()), (Some(1), "v"), "{text}");
    assert!(text.contains("hotset stop --destage") && !text.contains("not in the configuration"), "{text}");
    daemon.wait_until_ready();
    wait_for("the end of the start", || (!daemon.command(&["status"]).contains(", starting")).then_some(()));
    let listed = text_of(&daemon.try_command(&["volume", "list"]));
    assert!(!listed.contains("starting"), "{listed}");
    daemon.stop();
}

#[test]
fn state_directory_is_found_from_the_socket() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    let client = write_blocks(&fixture);
    let socket = fixture.folder.join("control.sock").display().to_string();
    // No default configuration names this socket.
    let (code, names, text) = undestaged(&["--socket", &socket]);
    assert_eq!((code, names.as_str()), (Some(1), "v"), "{text}");
    drop(client);
    daemon.command(&["volume", "flush", "v"]);
    let (code, names, text) = undestaged(&["--socket", &socket]);
    assert_eq!((code, names.as_str()), (Some(0), ""), "{text}");
    daemon.command(&["stop"]);
    let (code, names, text) = undestaged(&["--socket", &socket]);
    assert_eq!((code, names.as_str()), (Some(1), ""), "a socket without a daemon is no proof: {text}");
    assert!(text.contains("--state") && text.contains("--config"), "{text}");
}

#[test]
fn daemon_with_another_state_directory_is_no_proof_of_destaged_data() {
    let (fixture, other) = (fixture_with_flash(), Fixture::with_volume(MIB));
    let (first, second) = (fixture.start(), other.start());
    let state = fixture.folder.join("state").display().to_string();
    let socket = other.folder.join("control.sock").display().to_string();
    let (code, names, text) = undestaged(&["--state", &state, "--socket", &socket]);
    assert_eq!((code, names.as_str()), (Some(1), ""), "{text}");
    assert!(text.contains("does not hold"), "{text}");
    first.stop();
    second.stop();
}

#[test]
fn unresponsive_daemon_is_no_proof_of_destaged_data() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    daemon.signal("STOP");
    let (code, names, text) = undestaged(&["--config", &fixture.config().display().to_string()]);
    assert_eq!((code, names.as_str()), (Some(1), ""), "{text}");
    assert!(text.contains("no reply within the time-out"), "{text}");
    daemon.signal("CONT");
    Daemon::stop(daemon);
    let missing = fixture.folder.join("no-such-folder");
    assert!(!fs::exists(&missing).expect("the folder can be read"));
    let (code, _, text) = undestaged(&["--state", &missing.display().to_string()]);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn lost_state_directory_beside_a_flash_store_is_no_proof() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    drop(write_blocks(&fixture));
    daemon.stop();
    let (config, state) = (fixture.config().display().to_string(), fixture.folder.join("state"));
    fs::rename(&state, fixture.folder.join("away")).expect("the daemon has made the directory");
    for finding in ["does not exist", "has no records"] {
        let (code, names, text) = undestaged(&["--config", &config]);
        assert_eq!((code, names.as_str()), (Some(1), ""), "{text}");
        let rebuild = format!("hotset state rebuild --config {config}");
        for part in [finding, "belongs to flash store", &rebuild] {
            assert!(text.contains(part), "{part}: {text}");
        }
        if finding == "does not exist" {
            assert!(!state.exists(), "the check has made the directory");
            fs::create_dir(&state).expect("the folder can be written");
        }
    }
    fs::remove_dir(&state).expect("the check has written nothing");
    fs::rename(fixture.folder.join("away"), &state).expect("the directory was moved");
    let daemon = fixture.start();
    daemon.command(&["stop", "--destage"]);
    let (code, _, text) = undestaged(&["--config", &config]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn new_installation_with_absent_or_blank_flash_is_destaged() {
    let fixture = fixture_with_flash();
    let config = fixture.config().display().to_string();
    fs::write(&config, fixture.config_text()).expect("the folder can be written");
    let (first, second) = (fixture.folder.join("f0"), fixture.folder.join("f1"));
    let (code, names, text) = undestaged(&["--config", &config]);
    assert_eq!((code, names.as_str()), (Some(0), ""), "{text}");
    assert!(!first.exists() && !fixture.folder.join("state").exists(), "the check creates nothing");
    File::create(&first).and_then(|file| file.set_len(64 * MIB)).expect("the folder can be written");
    File::create(&second).expect("the folder can be written");
    let (code, names, text) = undestaged(&["--config", &config]);
    assert_eq!((code, names.as_str()), (Some(0), ""), "{text}");
}

#[test]
fn refused_volume_without_a_record_is_undestaged() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    drop(write_blocks(&fixture));
    daemon.stop();
    fs::rename(fixture.folder.join("state"), fixture.folder.join("away")).expect("the daemon has made the directory");
    let daemon = fixture.start();
    let config = fixture.config().display().to_string();
    let (code, names, text) = undestaged(&["--config", &config]);
    assert_eq!((code, names.as_str()), (Some(1), "v"), "{text}");
    assert!(text.contains("hotset volume show v") && !text.contains("stop --destage"), "{text}");
    daemon.stop();
    let (code, names, text) = undestaged(&["--config", &config]);
    assert_eq!((code, names.as_str()), (Some(1), ""), "{text}");
    let rebuild = format!("hotset state rebuild --config {config}");
    assert!(text.contains("does not know") && text.contains(&rebuild), "{text}");
}

#[test]
fn remedy_for_a_refused_volume_is_not_a_destage() {
    let fixture = fixture_with_flash();
    let daemon = fixture.start();
    drop(write_blocks(&fixture));
    daemon.stop();
    // The volume is refused because its dirty data lies in a log that is not in use.
    for name in ["f0", "f1"] {
        fs::rename(fixture.folder.join(name), fixture.folder.join(&format!("{name}.away"))).expect("the file exists");
    }
    let daemon = fixture.start();
    let (code, names, text) = undestaged(&["--config", &fixture.config().display().to_string()]);
    assert_eq!((code, names.as_str()), (Some(1), "v"), "{text}");
    assert!(text.contains("hotset volume show v") && !text.contains("stop --destage"), "{text}");
    daemon.stop();
}
