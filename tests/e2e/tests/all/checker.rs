//! The checkers on servers with known behaviour: they pass the correct one and catch the faulty one.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::client::Client;
use e2e::folder::Folder;
use e2e::random::{Random, seed};
use e2e::server::Nbdkit;
use e2e::write_history::{Fault, WriteHistory};
use e2e::writer::{StopOnDrop, Writer};

const BYTES: u64 = 4 << 20;

/// Writes for a while, kills and restarts the server, and checks its content.
fn kill_once(args: &str, seed: u64) -> Vec<Fault> {
    let folder = Folder::new();
    let socket = folder.join("s");
    let disk = folder.join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(BYTES)).expect("the folder can be written");
    let args = args.replace("DISK", &disk.to_string_lossy());
    let server = Nbdkit::start(&socket, &args);
    let history = Mutex::new(WriteHistory::new(BYTES, false));
    let stop = AtomicBool::new(false);
    let endpoint = server.endpoint();
    let writer = Writer { endpoint: &endpoint, export: "", connections: 2, seed };
    let mut faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_millis(300 + Random::new(seed).below(200)));
        drop(server);
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    let mut history = history.into_inner().expect("no writer panicked");
    assert!(history.sequence() > 100, "only {} writes: the writer is broken", history.sequence());
    let server = Nbdkit::start(&socket, &format!("file {}", disk.display()));
    let image = Client::connect(&server.endpoint(), "").and_then(|mut client| client.read_all());
    faults.extend(history.check_after_crash(&image.expect("the server answers")));
    faults
}

#[test]
fn server_that_keeps_flushed_data_passes() {
    let seed = seed("checker");
    for round in 0..3 {
        let faults = kill_once("file DISK", seed + round);
        assert!(faults.is_empty(), "{faults:?}");
    }
}

#[test]
fn server_that_fakes_flushes_is_caught() {
    let faults = kill_once("--filter=cache file DISK cache=unsafe", seed("checker"));
    assert!(faults.iter().any(|fault| matches!(fault, Fault::Lost { .. })), "{faults:?}");
}

#[test]
fn read_of_anything_but_the_newest_write_is_caught() {
    let folder = Folder::new();
    let server = Nbdkit::start(&folder.join("s"), &format!("memory {BYTES}"));
    let endpoint = server.endpoint();
    let (history, stop) = (Mutex::new(WriteHistory::new(BYTES, false)), AtomicBool::new(false));
    let writer = Writer { endpoint: &endpoint, export: "", connections: 1, seed: 1 };
    let faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_millis(200));
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    assert_eq!(faults, []);
    // The history does not know this client's write, so the check of the next read must fail.
    let mut client = Client::connect(&endpoint, "").expect("the server answers");
    client.write(0, &[7; 512]).expect("the server writes");
    let read = client.read(0, 512).expect("the server reads");
    let faults = history.into_inner().expect("no writer panicked").check_read(0, &read);
    assert_eq!(faults, [Fault::Garbage { sector: 0 }]);
}
