//! Hung parts of the control side stall no volume: a hung state directory, a stopped control thread, exhausted file
//! descriptors. Durations are measured where the daemon guarantees a bound.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;
use e2e::stopped_thread;
use serde_json::Value;

/// Longest duration of a command that writes to the state directory where that hangs: five seconds, plus a margin for a
/// busy machine.
const STATE_WRITE_TIME_MAX: Duration = Duration::from_secs(15);
/// Longest duration of a stop where the state directory hangs, the last batch of the history included.
const STOP_TIME_MAX: Duration = Duration::from_secs(45);

fn alerts(daemon: &Daemon) -> Vec<Value> {
    let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON");
    status["active_alerts"].as_array().expect("a list").clone()
}

fn alert(daemon: &Daemon, kind: &str) -> Option<Value> {
    alerts(daemon).into_iter().find(|alert| alert["kind"] == kind)
}

/// A daemon whose state directory can hang.
fn with_state_on_fuse() -> Option<(Fixture, Fuse, Daemon)> {
    let fixture = Fixture::with_volume(16 << 20);
    let fuse = Fuse::mount(&fixture.folder.join("state"))?;
    let daemon = fixture.start();
    Some((fixture, fuse, daemon))
}

#[test]
fn hung_state_directory_stalls_no_request_and_no_query() {
    let Some((fixture, fuse, mut daemon)) = with_state_on_fuse() else { return };
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[1; 4096]).expect("the write succeeds");
    fuse.hang();
    let started_at = Instant::now();
    let refused = daemon.try_command(&["volume", "set", "v", "policy=write-through"]);
    assert!(started_at.elapsed() < STATE_WRITE_TIME_MAX, "it took {:?}", started_at.elapsed());
    assert!(!refused.status.success() && text_of(&refused).contains("does not answer"), "{}", text_of(&refused));
    // The next command does not wait for a state directory that is known to hang.
    let started_at = Instant::now();
    assert!(!daemon.try_command(&["volume", "set", "v", "policy=none"]).status.success());
    assert!(started_at.elapsed() < STATE_TIMEOUT, "it took {:?}", started_at.elapsed());
    let state_alert = wait_for("the alert", || alert(&daemon, "state-disk"));
    let cause = state_alert["cause"].as_str().expect("a cause");
    assert!(cause.contains(&fuse.path().display().to_string()) && state_alert["severity"] == "critical", "{cause}");
    for round in 2..10 {
        client.write(0, &[round; 4096]).expect("the write succeeds");
        client.flush().expect("it is flushed");
        assert_eq!(client.read(0, 4096).expect("the read succeeds"), [round; 4096]);
    }
    assert!(daemon.is_running());
    fuse.resume();
    wait_for("the alert's end", || alert(&daemon, "state-disk").is_none().then_some(()));
    let shown: Value = serde_json::from_str(&daemon.command(&["volume", "show", "v", "--json"])).expect("valid JSON");
    assert_eq!(shown["policy"], "write-back", "the refused change was made");
    daemon.command(&["volume", "set", "v", "policy=write-through"]);
    daemon.stop();
    let daemon = fixture.start();
    let shown: Value = serde_json::from_str(&daemon.command(&["volume", "show", "v", "--json"])).expect("valid JSON");
    assert_eq!(shown["policy"], "write-through", "the accepted change survives a restart");
    daemon.stop();
}

/// The daemon's time-out of a write to the state directory.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn hung_state_directory_raises_an_alert_before_a_change() {
    let Some((_fixture, fuse, daemon)) = with_state_on_fuse() else { return };
    fuse.hang();
    wait_for("the alert", || alert(&daemon, "state-disk"));
    fuse.resume();
    wait_for("the alert's end", || alert(&daemon, "state-disk").is_none().then_some(()));
    daemon.stop();
}

#[test]
fn hung_disks_of_history_and_events_raise_alerts() {
    let fixture = Fixture::with_volume(16 << 20);
    let mount = |name: &str| Fuse::mount(&fixture.folder.join("state").join(name));
    let (Some(history), Some(events)) = (mount("history"), mount("events")) else { return };
    let daemon = fixture.start();
    history.hang();
    events.hang();
    daemon.command(&["volume", "set", "v", "policy=write-through"]);
    for (kind, fuse) in [("history-disk", &history), ("events-disk", &events)] {
        let raised = wait_for("the alert", || alert(&daemon, kind));
        let cause = raised["cause"].as_str().expect("a cause");
        assert!(cause.contains(&fuse.path().display().to_string()) && cause.contains("not answered"), "{cause}");
        fuse.resume();
        wait_for("the alert's end", || alert(&daemon, kind).is_none().then_some(()));
    }
    daemon.stop();
}

#[test]
fn stop_ends_with_a_hung_state_directory() {
    let Some((fixture, fuse, mut daemon)) = with_state_on_fuse() else { return };
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[5; 4096]).expect("the write succeeds");
    fuse.hang();
    let started_at = Instant::now();
    daemon.signal("TERM");
    let status = daemon.wait();
    assert!(status.success() && started_at.elapsed() < STOP_TIME_MAX, "{status} after {:?}", started_at.elapsed());
    let backing = std::fs::read(fixture.backing("v")).expect("the file exists");
    assert_eq!(backing[..4096], [5; 4096], "acknowledged writes are on the backing");
    fuse.resume();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [5; 4096]);
    client.flush().expect("nothing is lost, and the daemon reports no loss");
    drop(client);
    daemon.stop();
}

#[test]
fn second_signal_ends_a_daemon_with_a_hung_control_thread() {
    let fixture = Fixture::with_volume(16 << 20);
    let mut daemon = fixture.start();
    let Some(stopped) = stopped_thread::stop_control(&daemon) else { return };
    daemon.signal("TERM");
    daemon.signal("INT");
    let last_line = " again: ending at once; acknowledged writes stay";
    wait_for("the last log line", || daemon.log().contains(last_line).then_some(()));
    // A stopped thread has to be resumed before the process can end.
    drop(stopped);
    let status = daemon.wait();
    assert_eq!(status.code(), Some(1), "{status}");
}

#[test]
fn control_socket_answers_without_free_descriptors() {
    let mut fixture = Fixture::with_volume(16 << 20);
    let wrapper = fixture.folder.join("few");
    std::fs::write(&wrapper, "#!/bin/sh\nulimit -n 80\nexec \"$@\"\n").expect("the folder can be written");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("the file belongs to this user");
    fixture.wrapper = Some(wrapper);
    let daemon = fixture.start();
    let connections: Vec<_> =
        (0..120).map(|_| UnixStream::connect(fixture.socket()).expect("the kernel accepts the connection")).collect();
    let log_count = |text: &str| daemon.log().matches(text).count();
    wait_for("the log line", || (log_count("no file descriptor is left") > 0).then_some(()));
    for _ in 0..20 {
        daemon.command(&["status"]);
    }
    // Accepts have failed many times by now.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(log_count("no file descriptor is left"), 1);
    drop(connections);
    wait_for("the log line of the end", || (log_count("file descriptors are available again") > 0).then_some(()));
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("a descriptor is free");
    assert_eq!(client.read(0, 512).expect("the read succeeds"), [0; 512]);
    drop(client);
    daemon.stop();
}
