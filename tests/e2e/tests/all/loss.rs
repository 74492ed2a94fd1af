//! A kill after acknowledged, unflushed writes: the writes survive, or the next flush of each client fails once.

use std::io;
use std::net::TcpListener;

use e2e::client::{Client, Endpoint, FUA, Op};
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::{Fixture, TARGET};
use e2e::initiator::{Initiator, lun, opcode};
use e2e::refusal::json;

const MIB: u64 = 1 << 20;
const EIO: i32 = 5;

fn connect(fixture: &Fixture) -> Client {
    Client::connect(&fixture.endpoint(), "v").expect("the volume is served")
}

/// A fixture without persisted memory.
fn without_persisted_memory() -> Fixture {
    let mut fixture = Fixture::with_volume(4 * MIB);
    fixture.keep_in = "none".to_owned();
    fixture
}

/// Kills a daemon after an acknowledged, unflushed write.
fn write_and_kill(fixture: &Fixture, daemon: Daemon) {
    let mut client = connect(fixture);
    client.write(0, &[7; 4096]).expect("the write succeeds");
    daemon.kill();
}

/// True if `status` has the alert of the loss.
fn has_loss_alert(daemon: &Daemon) -> bool {
    let status = json(daemon, &["status"]);
    let alerts = status["active_alerts"].as_array().expect("a list");
    alerts.iter().any(|alert| alert["id"] == "unflushed-writes-lost:v")
}

fn errors<const N: usize>(mut request: impl FnMut() -> io::Result<()>) -> [Option<i32>; N] {
    std::array::from_fn(|_| request().err().and_then(|error| error.raw_os_error()))
}

#[test]
fn memory_outlives_a_killed_daemon_for_nbd_clients_by_default() {
    let fixture = Fixture::with_volume(4 * MIB);
    let mut daemon = fixture.start();
    for round in 1..4 {
        let mut client = connect(&fixture);
        client.write(u64::from(round) * 4096, &[round; 4096]).expect("the write succeeds");
        daemon.kill();
        daemon = fixture.start();
        let mut client = connect(&fixture);
        assert_eq!(
            client.read(u64::from(round) * 4096, 4096).expect("the read succeeds"),
            [round; 4096],
            "round {round}"
        );
        assert_eq!(errors(|| client.flush()), [None], "nothing is lost: no flush fails");
    }
    daemon.stop();
}

#[test]
fn first_flush_of_each_nbd_client_after_a_loss_fails_once() {
    let fixture = without_persisted_memory();
    write_and_kill(&fixture, fixture.start());
    let daemon = fixture.start();
    wait_for("the alert", || has_loss_alert(&daemon).then_some(()));
    let (mut first, mut second, mut third) = (connect(&fixture), connect(&fixture), connect(&fixture));
    first.write(0, &[8; 4096]).expect("writes succeed");
    assert_eq!(errors(|| first.flush()), [Some(EIO), None, None]);
    assert_eq!(errors(|| second.flush()), [Some(EIO), None, None], "each connection sees the failure");
    let mut durable = || third.call(Op::Write, FUA, 4096, 4096, &[9; 4096]).map(drop);
    assert_eq!(errors(&mut durable), [Some(EIO), None, None], "a durable write fails once too");
    assert_eq!(errors(|| third.flush()), [None]);
    drop((first, second, third));
    // A daemon that is killed before its clients have returned passes the failure on; a clean stop ends it.
    daemon.kill();
    let daemon = fixture.start();
    assert_eq!(errors(|| connect(&fixture).flush()), [Some(EIO)]);
    wait_for("the alert again", || has_loss_alert(&daemon).then_some(()));
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(errors(|| connect(&fixture).flush()), [None]);
    let shown = json(&daemon, &["volume", "show", "v"]);
    assert_eq!(shown["alerts"].as_array().map(Vec::len), Some(0), "a clean stop ends the alert: {shown}");
    daemon.stop();
}

#[test]
fn no_flush_fails_where_writes_are_not_deferred() {
    let mut fixture = Fixture::new();
    fixture.keep_in = "none".to_owned();
    fixture.add_volume("v", 4 * MIB, "policy = \"write-through\"");
    write_and_kill(&fixture, fixture.start());
    let daemon = fixture.start();
    let mut client = connect(&fixture);
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [7; 4096]);
    assert_eq!(errors(|| client.flush()), [None]);
    // Writes that are deferred from now on may be lost.
    daemon.command(&["volume", "set", "v", "policy=write-back"]);
    write_and_kill(&fixture, daemon);
    let daemon = fixture.start();
    assert_eq!(errors(|| connect(&fixture).flush()), [Some(EIO)]);
    daemon.stop();
}

#[test]
fn flushes_of_local_clients_report_no_loss_after_a_boot() {
    let mut fixture = without_persisted_memory();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free");
    fixture.listen.push(format!("tcp:{port}"));
    write_and_kill(&fixture, fixture.start());
    // The state directory after a start of the machine: the kernel's boot identifier differs.
    let path = fixture.folder.join("state/state.json");
    let text = std::fs::read_to_string(&path).expect("the state file exists");
    let mut state: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    assert!(state["boot"]["id"].is_string(), "{state}");
    state["boot"]["id"] = "another".into();
    std::fs::write(&path, state.to_string()).expect("the folder can be written");
    let daemon = fixture.start();
    assert_eq!(errors(|| connect(&fixture).flush()), [None], "a file system that is mounted at boot");
    let remote = Endpoint::Tcp(port.to_string());
    let mut remote = wait_for("the other address", || Client::connect(&remote, "v").ok());
    assert_eq!(errors(|| remote.flush()), [Some(EIO), None], "another machine may have outlived this one");
    daemon.stop();
}

#[test]
fn first_synchronize_cache_after_a_loss_fails_once() {
    let mut fixture = Fixture::new();
    fixture.keep_in = "none".to_owned();
    fixture.add_volume("v", 4 * MIB, "lun = 0");
    let address = fixture.add_iscsi_target("");
    write_and_kill(&fixture, fixture.start());
    let daemon = fixture.start();
    let name = "iqn.2026-11.io.hotset:a";
    let log_in = |isid| wait_for("the portal", || Initiator::log_in(address, name, isid, TARGET).ok());
    // A hardware error: initiators repeat a request by themselves after a unit attention and after a write error.
    const INTERNAL_TARGET_FAILURE: (u8, u8, u8) = (4, 0x44, 0);
    const FORCE_UNIT_ACCESS: u8 = 0x08;
    for isid in 1..3 {
        let mut session = log_in(isid);
        assert_eq!(session.write(lun(0), 8, &[1; 512]).expect("the session is open").status, 0);
        let result = session.flush(lun(0)).expect("the session is open");
        assert_eq!((result.status, result.sense_code()), (2, INTERNAL_TARGET_FAILURE), "session {isid}");
        assert_eq!(session.flush(lun(0)).expect("the session is open").status, 0, "session {isid}");
    }
    let mut session = log_in(3);
    let mut durable = Initiator::transfer(opcode::WRITE_16, 16, 1);
    durable[1] = FORCE_UNIT_ACCESS;
    let statuses =
        [(); 2].map(|()| session.retry_command(lun(0), &durable, &[2; 512], 0).expect("the session is open").status);
    assert_eq!(statuses, [2, 0]);
    daemon.stop();
}
