//! SIGKILL at any moment, under a writer that records the flushed and the unflushed writes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::sizes::size;
use e2e::write_history::{Fault, WriteHistory};
use e2e::writer::{StopOnDrop, Writer};
use serde_json::Value;

const BYTES: u64 = 16 << 20;
const FLASH_BYTES: u64 = 12 << 20;
/// Offset of the second superblock of a flash device (`docs/design/format.md`).
const SECOND_SUPERBLOCK: u64 = 64 << 10;
const DAMAGE_BYTES: u64 = 4096;
const DAMAGED_BLOCKS: u64 = 1000;

/// Rounds to run: `HOTSET_KILL_ROUNDS`, 10 by default.
pub fn kill_rounds() -> u64 {
    size("HOTSET_KILL_ROUNDS", 10)
}

/// An action that runs while no daemon runs.
type StoppedAction = fn(&Fixture, &mut Random);

fn no_action(_: &Fixture, _: &mut Random) {}

/// Overwrites one mirror of the flash log with random bytes, a superblock included.
fn damage_mirror(fixture: &Fixture, random: &mut Random) {
    let file = File::options().write(true).open(fixture.folder.join("f0")).expect("the device exists");
    let mut bytes = vec![0; DAMAGE_BYTES as usize];
    for number in 0..DAMAGED_BLOCKS {
        bytes.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let offset =
            if number == 0 { 0 } else { SECOND_SUPERBLOCK + DAMAGE_BYTES + random.below(FLASH_BYTES - (1 << 18)) };
        file.write_all_at(&bytes, offset).expect("the file can be written");
    }
}

/// Writes, kills the daemon at a random moment, restarts it and reads the whole volume back.
fn kill_once(
    fixture: &Fixture,
    daemon: Daemon,
    history: &Mutex<WriteHistory>,
    random: &mut Random,
    while_stopped: StoppedAction,
) -> (Daemon, Vec<Fault>) {
    let (endpoint, stop) = (fixture.endpoint(), AtomicBool::new(false));
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 1 + random.below(4), seed: random.draw() };
    let before = history.lock().expect("no writer panicked").sequence();
    let pause = Duration::from_millis(20 + random.below(400));
    let mut faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(history, &stop));
        let stop_guard = StopOnDrop(&stop);
        std::thread::sleep(pause);
        daemon.kill();
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    while_stopped(fixture, random);
    let daemon = fixture.start();
    let image =
        Client::connect(&endpoint, "v").and_then(|mut client| client.read_all()).expect("the volume is served again");
    let mut history = history.lock().expect("no writer panicked");
    println!("killed after {pause:?} and {} writes", history.sequence() - before);
    faults.extend(history.check_after_crash(&image));
    (daemon, faults)
}

/// A volume larger than the memory, so that destage and eviction run at the time of the kill.
fn fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(BYTES);
    fixture.memory = "20 MiB".to_owned();
    // With persisted memory no data would depend on flushes.
    fixture.keep_in = "none".to_owned();
    fixture
}

/// A flash log so small that it wraps before the kill.
fn fixture_with_flash() -> Fixture {
    let mut fixture = fixture();
    let folder = fixture.folder.path().display();
    fixture.tables = format!("[flash]\ndevices = [\"{folder}/f0\", \"{folder}/f1\"]\nsize = \"{FLASH_BYTES} B\"\n");
    fixture
}

/// Content of the volume after a stop, from its backing.
fn stopped_image(fixture: &Fixture) -> Vec<u8> {
    std::fs::read(fixture.backing("v")).expect("the backing exists")
}

fn check_repeated_kills(fixture: &Fixture, seed: u64, while_stopped: StoppedAction) {
    check_kills(fixture, seed, |_| (), while_stopped, stopped_image);
}

/// Repeats kills; `before_writes` runs at the start of each round, `image` reads the volume after the last stop.
fn check_kills(
    fixture: &Fixture,
    seed: u64,
    mut before_writes: impl FnMut(&Daemon),
    while_stopped: StoppedAction,
    image: fn(&Fixture) -> Vec<u8>,
) {
    let mut random = Random::new(seed);
    let history = Mutex::new(WriteHistory::new(BYTES, false));
    let mut daemon = fixture.start();
    for number in 0..kill_rounds() {
        before_writes(&daemon);
        let faults;
        (daemon, faults) = kill_once(fixture, daemon, &history, &mut random, while_stopped);
        assert!(faults.is_empty(), "round {number}: {:?}", &faults[..faults.len().min(20)]);
    }
    let writes = history.lock().expect("no writer panicked").sequence();
    assert!(writes > 100 * kill_rounds(), "only {writes} writes: the writer is broken");
    daemon.command(&["stop", "--destage"]);
    let faults = history.into_inner().expect("no writer panicked").check_after_crash(&image(fixture));
    assert!(faults.is_empty(), "after the stop: {faults:?}");
}

#[test]
fn case_2_kill_loses_no_flushed_write_and_tears_no_block() {
    check_repeated_kills(&fixture(), seed("kill"), no_action);
}

#[test]
fn case_2_kill_with_the_flash_log_loses_no_flushed_write() {
    check_repeated_kills(&fixture_with_flash(), seed("kill_flash"), no_action);
}

#[test]
fn kills_with_an_overwritten_flash_mirror_lose_no_flushed_write() {
    check_repeated_kills(&fixture_with_flash(), seed("kill_damage"), damage_mirror);
}

/// Devices of the pool. Each has room for the volume.
const POOL_DEVICES: [&str; 2] = ["d0", "d1"];
const POOL_DEVICE_BYTES: u64 = 24 << 20;

/// A thick volume on a pool whose slices move slowly enough for a drain to outlast a round.
fn fixture_with_pool() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.memory = "20 MiB".to_owned();
    fixture.keep_in = "none".to_owned();
    let devices = POOL_DEVICES.map(|name| {
        let path = fixture.folder.join(name);
        File::create(&path).and_then(|file| file.set_len(POOL_DEVICE_BYTES)).expect("the folder can be written");
        format!("\"{}\"", path.display())
    });
    fixture.tables = format!(
        "[[pool]]\nname = \"tank\"\nslice = \"256 KiB\"\nrelocation = \"off\"\nrate = \"3 MiB/s\"\n[[pool.tier]]\n\
         name = \"t\"\nclass = \"nl-sas\"\ndevices = [{}]\n",
        devices.join(", ")
    );
    fixture.add_volume_on("v", "pool://tank", &format!("size = \"{BYTES} B\"\nprovisioning = \"thick\""));
    fixture.create_pool("tank");
    fixture
}

/// Restarts a stopped daemon to read the volume.
fn image_after_restart(fixture: &Fixture) -> Vec<u8> {
    let daemon = fixture.start();
    let image = fixture.connect("v").read_all().expect("the volume is served again");
    daemon.stop();
    image
}

#[test]
fn kills_during_moves_of_a_pool_lose_no_flushed_write() {
    let fixture = fixture_with_pool();
    let (mut from, mut moved_bytes) = (0, 0);
    let move_slices = |daemon: &Daemon| {
        let pool: Value = serde_json::from_str(&daemon.command(&["pool", "show", "tank", "--json"])).expect("JSON");
        // A drain goes on after a kill; the counter begins again.
        moved_bytes += pool["relocation"]["moved_bytes"].as_u64().expect("a number");
        let former = fixture.folder.join(POOL_DEVICES[from]).display().to_string();
        daemon.try_command(&["pool", "drain", "tank", &former, "--cancel"]);
        from = 1 - from;
        let device = fixture.folder.join(POOL_DEVICES[from]).display().to_string();
        daemon.command(&["pool", "drain", "tank", &device]);
    };
    check_kills(&fixture, seed("kill_pool"), move_slices, no_action, image_after_restart);
    println!("{moved_bytes} bytes moved before the ends of the drains");
    assert!(moved_bytes > 0, "no slice moved beside the kills");
}

/// Offsets of the blocks that are flushed just before a kill: more than a first flush destages as evidence of the
/// backing, and no stream.
fn flushed_offsets() -> impl Iterator<Item = u64> {
    (0..16).map(|number| number * 7 % 16 * 3 * 4096)
}

/// True if data flushed just before a kill, before destage can have begun, is readable after the restart.
fn flushed_data_survives(sabotage: Option<&'static str>) -> bool {
    let mut fixture = fixture_with_flash();
    fixture.sabotage = sabotage;
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    flushed_offsets().for_each(|offset| client.write(offset, &[7; 4096]).expect("the write succeeds"));
    client.flush().expect("the flush succeeds");
    daemon.kill();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    let survives = flushed_offsets().all(|offset| client.read(offset, 4096).expect("the read succeeds") == [7; 4096]);
    drop(client);
    daemon.stop();
    survives
}

#[test]
fn flush_acknowledged_before_the_log_write_is_caught() {
    assert!(flushed_data_survives(None));
    assert!(!flushed_data_survives(Some("ack-before-log")));
}
