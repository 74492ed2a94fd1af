//! No needless I/O: no writes of clean data, no I/O while idle, no endless flushes.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::cache_disk::CacheDisk;
use e2e::client::Client;
use e2e::fixture::Fixture;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};

const MIB: u64 = 1 << 20;

#[test]
fn case_21_clean_data_is_never_written_and_idle_daemon_sends_no_io() {
    let mut fixture = Fixture::new();
    let socket = fixture.folder.join("disk");
    let disk = CacheDisk::serve(&socket, 8 << 20).expect("a socket can be created");
    fixture.add_volume_on("v", &disk.uri(), "");
    for _ in 0..2 {
        let daemon = fixture.start();
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        client.read_all().expect("the read succeeds");
        client.flush().expect("the flush succeeds");
        drop(client);
        daemon.stop();
    }
    assert_eq!(disk.requests().1, 0, "reads alone made the daemon write");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(4096, &[1; 65536]).expect("the write succeeds");
    daemon.command(&["volume", "flush", "v"]);
    std::thread::sleep(Duration::from_millis(300));
    let before = disk.requests();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(disk.requests(), before, "the idle daemon sent requests");
    drop(client);
    daemon.stop();
}

#[test]
fn case_20_single_and_concurrent_flushes_complete_under_full_load() {
    let fixture = Fixture::with_volume(16 * MIB);
    let daemon = fixture.start();
    let (endpoint, stop) = (fixture.endpoint(), AtomicBool::new(false));
    let history = Mutex::new(WriteHistory::new(16 * MIB, false));
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed: 20 };
    let faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_millis(300));
        let flush = || daemon.command(&["volume", "flush", "v"]);
        let flushes = [scope.spawn(flush), scope.spawn(flush)];
        let results = flushes.map(|thread| thread.join());
        flush();
        drop(stop_guard);
        assert!(results.iter().all(Result::is_ok), "a flush failed");
        run.join().expect("the writer does not panic")
    });
    assert_eq!(faults, []);
    daemon.stop();
}

#[test]
fn forbidden_io_uring_is_reported_with_its_remedy() {
    // A seccomp filter as in containers: io_uring_setup (425) fails with EPERM, all other calls are allowed.
    let script = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(rules), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"#;
    let fixture = Fixture::with_volume(MIB);
    std::fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let output = e2e::tool::tool("python3").arg("-c").arg(script).arg(e2e::daemon::binary());
    let output = output.args("serve --config").arg(fixture.config()).fails();
    assert!(output.contains("io_uring") && output.contains("seccomp"), "{output}");
}
