//! Stopped threads: clients of volumes are unaffected by a stopped control thread; a stopped data core is reported.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use e2e::client::{Client, FUA, Op};
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::stopped_thread;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Time within which all notifications from before the stop have been read from the service manager's socket.
const STALE_NOTIFICATIONS_TIME: Duration = Duration::from_secs(30);

/// A volume four times the memory, with its log on two devices: requests, destage and flushes all have work.
fn fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(80 * MIB);
    fixture.memory = "20 MiB".to_owned();
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", fixture.folder.join(name).display()));
    fixture.tables =
        format!("[api]\nlisten = \"127.0.0.1:0\"\n[flash]\ndevices = [{}]\nsize = \"256 MiB\"", devices.join(", "));
    fixture
}

/// Sends an HTTP request without reading the reply.
fn send_request(http: &Http) -> TcpStream {
    let mut stream = TcpStream::connect(http.address()).expect("the kernel accepts connections");
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", http.address())
        .expect("the request is sent");
    stream
}

/// Number of bytes received within the timeout.
fn received_bytes(stream: &mut TcpStream, timeout: Duration) -> usize {
    stream.set_read_timeout(Some(timeout)).expect("a socket");
    stream.read(&mut [0; 64]).unwrap_or(0)
}

fn volume_report(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.command(&["volume", "show", "v", "--json"])).expect("valid JSON")
}

#[test]
fn volumes_are_served_while_the_control_thread_is_stopped() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    assert!(received_bytes(&mut send_request(&http), Duration::from_secs(60)) > 0);
    let Some(stopped) = stopped_thread::stop_control(&daemon) else { return };
    let mut pending = send_request(&http);
    // fio connects, writes more than memory holds with flushes in between, and verifies every block; a failed request
    // ends it.
    let mut fio =
        tool("fio").args("--name=f --ioengine=nbd --rw=randwrite --bs=16k --iodepth=16 --size=80m --fsync=64");
    fio = fio.args("--verify=crc32c --verify_fatal=1 --randseed=7 --output-format=json");
    let out = fio.arg(format!("--uri={}", fixture.uri("v"))).within(fixture.folder.path()).ok();
    let report: Value = serde_json::from_str(&out[out.find('{').expect("valid JSON")..]).expect("valid JSON");
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.call(Op::Write, FUA, 0, 4096, &[7; 4096]).expect("the write succeeds");
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [7; 4096]);
    assert!(stopped.is_stopped(), "the control thread ran meanwhile");
    assert_eq!(received_bytes(&mut pending, Duration::from_millis(100)), 0);
    drop(stopped);
    assert!(received_bytes(&mut pending, Duration::from_secs(60)) > 0, "the control thread does not continue");
    let volume = volume_report(&daemon);
    let fio_count = |kind: &str| report["jobs"][0][kind]["total_ios"].as_u64().expect("a count");
    let counter = |figure: &str| volume[figure].as_u64().expect("a count");
    assert_eq!(fio_count("write"), 80 * MIB / 16_384);
    assert_eq!((counter("reads"), counter("writes")), (fio_count("read") + 1, fio_count("write") + 1), "{volume}");
    assert_eq!((counter("flushes"), counter("errors")), (fio_count("sync"), 0), "{volume}");
    assert!(counter("backing_writes") > 0, "no destage while the control thread was stopped: {volume}");
    daemon.stop();
}

#[test]
fn stopped_data_core_raises_an_alert() {
    let fixture = fixture();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    let before = volume_report(&daemon)["reads"].as_u64().expect("a count");
    let read_status = || -> Value { serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON") };
    let flash_before = read_status()["flash"].clone();
    let Some(stopped) = stopped_thread::stop_data_core(&daemon) else { return };
    client.send(Op::Read, 0, 0, 4096, &[]).expect("the kernel accepts the connection");
    let (status, alert) = e2e::daemon::wait_for("the alert", || {
        let status = read_status();
        let alerts = status["active_alerts"].as_array().expect("a list").clone();
        let alert = alerts.into_iter().find(|alert| alert["kind"] == "core-silent")?;
        Some((status, alert))
    });
    assert!(stopped.is_stopped() && alert["severity"] == "critical", "{alert}");
    // Figures of flash are the last ones, so that history and rates have no step to 0.
    let (flash, figures) = (&status["flash"], ["copies", "segments", "free_segments"]);
    assert!(flash["silent"] == true && figures.iter().all(|figure| flash[figure] == flash_before[figure]), "{flash}");
    assert_eq!(flash["devices"].as_array().expect("a list").len(), 2, "{flash}");
    drop(stopped);
    assert_eq!(client.receive().expect("the core continues").error, 0);
    assert_eq!(volume_report(&daemon)["reads"], before + 1);
    assert_eq!(read_status()["flash"]["silent"], false);
    daemon.stop();
}

/// Next notification to the service manager; `None` after a time in which several should have arrived.
fn next_notification(manager: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 4096];
    let len = manager.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

#[test]
fn watchdog_needs_running_data_core_and_control_thread() {
    let mut fixture = fixture();
    let manager = UnixDatagram::bind(fixture.folder.join("manager")).expect("a socket in the folder");
    manager.set_read_timeout(Some(Duration::from_secs(10))).expect("a positive time");
    fixture.watchdog_socket = Some(fixture.folder.join("manager"));
    let daemon = fixture.start();
    for stop_thread in [stopped_thread::stop_control, stopped_thread::stop_data_core] {
        // More notifications than the socket can have buffered before.
        for _ in 0..20 {
            while next_notification(&manager).expect("a watchdog notification") != "WATCHDOG=1" {}
        }
        let Some(stopped) = stop_thread(&daemon) else { return };
        let started_at = Instant::now();
        while let Some(text) = next_notification(&manager) {
            assert!(stopped.is_stopped(), "the thread runs and sent {text}");
            assert!(started_at.elapsed() < STALE_NOTIFICATIONS_TIME, "the watchdog is fed by a stopped thread: {text}");
        }
        drop(stopped);
    }
    while next_notification(&manager).expect("a watchdog notification after the stop") != "WATCHDOG=1" {}
    daemon.stop();
}
