//! Another NBD server as the backing: another daemon, nbdkit, and nbdkit that is killed and restarted.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::wait_for;
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::server::Nbdkit;
use e2e::tool::tool;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};

const MIB: u64 = 1 << 20;

#[test]
fn daemon_behind_a_daemon_passes_everything_through() {
    let lower_fixture = Fixture::with_volume(16 * MIB);
    let lower = lower_fixture.start();
    let mut upper_fixture = Fixture::new();
    upper_fixture.add_volume_on("v", &lower_fixture.uri("v"), "");
    let upper = upper_fixture.start();
    let image = upper_fixture.folder.join("image");
    tool("sh").arg("-c").arg("head -c 16777216 /dev/urandom > image").within(upper_fixture.folder.path()).ok();
    tool("nbdcopy").arg("--flush").arg(&image).arg(upper_fixture.uri("v")).ok();
    upper.kill();
    tool("qemu-img").args("compare -f raw -F raw").arg(&image).arg(lower_fixture.uri("v")).ok();
    lower.kill();
    tool("cmp").arg(&image).arg(lower_fixture.backing("v")).ok();
}

#[test]
fn case_15_returning_backing_under_load_keeps_flushed_data() {
    let mut fixture = Fixture::new();
    let (socket, disk) = (fixture.folder.join("backing"), fixture.folder.join("disk"));
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 * MIB)).expect("the folder can be written");
    let args = format!("file {}", disk.display());
    let first = Nbdkit::start(&socket, &args);
    fixture.add_volume_on("v", &first.uri(), "");
    // Declared here, so that the last server lives until the test's end.
    let mut backing_server = Some(first);
    let daemon = fixture.start();
    let seed = seed("chained");
    let mut random = Random::new(seed);
    let (endpoint, stop) = (fixture.endpoint(), AtomicBool::new(false));
    let history = Mutex::new(WriteHistory::new(8 * MIB, false));
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed };
    let faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(100 + random.below(300)));
            drop(backing_server.take());
            std::thread::sleep(Duration::from_millis(random.below(300)));
            backing_server = Some(Nbdkit::start(&socket, &args));
        }
        let write_count = || history.lock().expect("no writer panicked").sequence();
        let before = write_count();
        wait_for("writes after the backing came back", || (write_count() > before + 100).then_some(()));
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    assert_eq!(faults, []);
    let mut client = Client::connect(&endpoint, "v").expect("the volume is served");
    let image = client.read_all().expect("the volume is read");
    drop(client);
    let mut history = history.into_inner().expect("no writer panicked");
    assert_eq!(history.check_after_crash(&image), []);
    daemon.stop();
    let content = std::fs::read(&disk).expect("the backing exists");
    assert_eq!(history.check_after_crash(&content), []);
}

#[test]
fn backing_errors_reach_only_the_reader_of_that_volume() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let socket = fixture.folder.join("backing");
    let args = "--filter=error memory 4M error-pread=EIO error-pread-rate=1 error-pread-file=TRIGGER";
    let trigger = fixture.folder.join("trigger");
    let backing_server = Nbdkit::start(&socket, &args.replace("TRIGGER", &trigger.to_string_lossy()));
    fixture.add_volume_on("failing", &backing_server.uri(), "");
    let daemon = fixture.start();
    let mut failing = Client::connect(&fixture.endpoint(), "failing").expect("the volume is served");
    let mut healthy = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    std::fs::write(&trigger, "").expect("the folder can be written");
    assert_eq!(failing.read(MIB, 4096).expect_err("the backing is failing").raw_os_error(), Some(5));
    assert_eq!(healthy.read(MIB, 4096).expect("the other volume is healthy").len(), 4096);
    std::fs::remove_file(&trigger).expect("the file exists");
    assert_eq!(failing.read(MIB, 4096).expect("the backing has recovered"), [0; 4096]);
    drop((failing, healthy));
    daemon.stop();
}
