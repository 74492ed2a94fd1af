//! Kills and hangs of the daemon and of its helper process over images of a real Ceph cluster; loss of the lock.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use e2e::ceph::cluster;
use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::tool::tool;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// The helper process of the daemon's only volume on RBD.
pub fn helper_of(daemon: &Daemon) -> u32 {
    let parent = daemon.pid().to_string();
    let find = || {
        let output = tool("pgrep").args("-P").arg(&parent).args("-x hotset-rbd").output();
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    wait_for("the helper process", find)
}

/// All helper processes of the daemon.
pub fn helpers_of(daemon: &Daemon) -> Vec<u32> {
    let output = tool("pgrep").args("-P").arg(daemon.pid().to_string()).args("-x hotset-rbd").output();
    String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|text| text.parse().ok()).collect()
}

pub fn signal(process: u32, name: &str) {
    tool("kill").arg(format!("-{name}")).arg(process.to_string()).ok();
}

/// The machine of a host loses its power: its daemon and all its helpers end at once. The daemon is stopped first, and
/// not a helper: the kernel resumes a stopped process whose parent ends.
pub fn lose_power(daemon: Daemon) {
    cut_power(&daemon);
    daemon.kill();
}

/// As [`lose_power`], while other threads use the daemon. Its processes have ended once it is dropped.
pub fn cut_power(daemon: &Daemon) {
    signal(daemon.pid(), "STOP");
    // Between two helpers there is none.
    tool("pkill").args("-KILL -x hotset-rbd -P").arg(daemon.pid().to_string()).output();
    signal(daemon.pid(), "KILL");
}

pub fn json(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(&[args, &["--json"]].concat())).expect("valid JSON")
}

pub fn has_alert(daemon: &Daemon, kind: &str) -> Option<()> {
    let alerts = json(daemon, &["status"])["active_alerts"].as_array().expect("a list").clone();
    alerts.iter().any(|alert| alert["kind"] == kind).then_some(())
}

/// A flash log beside the state directory; without persisted memory, data depends on flushes.
pub fn add_flash(fixture: &mut Fixture) {
    fixture.keep_in = "none".to_owned();
    let folder = fixture.folder.path().display();
    fixture.tables = format!("[flash]\ndevices = [\"{folder}/f0\", \"{folder}/f1\"]\nsize = \"64 MiB\"\n");
}

/// Runs a writer while `disturb` runs; returns the history of its writes.
pub fn write_during(fixture: &Fixture, seed: u64, disturb: impl FnOnce(&Mutex<WriteHistory>)) -> WriteHistory {
    let (endpoint, stop) = (fixture.endpoint(), AtomicBool::new(false));
    let history = Mutex::new(WriteHistory::new(8 * MIB, false));
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed };
    let faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let stop_guard = StopOnDrop(&stop);
        disturb(&history);
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    });
    assert_eq!(faults, []);
    history.into_inner().expect("no writer panicked")
}

#[test]
fn daemon_killed_with_dirty_data_on_flash_keeps_what_was_flushed() {
    let Some(cluster) = cluster("SIGKILL of a daemon on RBD") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("killed", 8), "");
    add_flash(&mut fixture);
    let mut daemon = Some(fixture.start());
    let mut random = Random::new(seed("rbd-killed"));
    for _ in 0..3 {
        let mut history = write_during(&fixture, random.draw(), |_| {
            std::thread::sleep(Duration::from_millis(200 + random.below(400)));
            daemon.take().expect("the daemon runs").kill();
        });
        let next = fixture.start();
        wait_for("the volume", || (json(&next, &["volume", "show", "v"])["state"] != "refused").then_some(()));
        let image = fixture.connect("v").read_all().expect("the volume is read");
        assert_eq!(history.check_after_crash(&image), []);
        // The next round begins with zeroes, as its history does.
        let mut client = fixture.connect("v");
        client.call(Op::WriteZeroes, 0, 0, 8 * MIB as usize, &[]).expect("the volume is zeroed");
        // The first flush fails if unflushed writes may be lost.
        wait_for("a flush", || client.flush().ok());
        daemon = Some(next);
    }
    daemon.expect("the daemon runs").stop();
}

#[test]
fn killed_helper_is_started_again_under_load_and_nothing_is_lost() {
    let Some(cluster) = cluster("SIGKILL of the helper of RBD") else { return };
    let mut fixture = Fixture::new();
    fixture.memory = "20 MiB".to_owned();
    fixture.add_volume_on("v", &cluster.create_image("restarted", 8), "");
    let daemon = fixture.start();
    let mut random = Random::new(seed("rbd-helper"));
    let mut history = write_during(&fixture, random.draw(), |history| {
        let write_count = || history.lock().expect("no writer panicked").sequence();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(200 + random.below(400)));
            let killed = helper_of(&daemon);
            signal(killed, "KILL");
            wait_for("another helper", || (helper_of(&daemon) != killed).then_some(()));
            let before = write_count();
            wait_for("writes after the restart", || (write_count() > before + 100).then_some(()));
            let mut client = fixture.connect("v");
            wait_for("a flush after the restart", || client.flush().ok());
        }
    });
    let mut client = fixture.connect("v");
    wait_for("a flush", || client.flush().ok());
    let image = client.read_all().expect("the volume is read");
    assert_eq!(history.check_after_crash(&image), []);
    drop(client);
    daemon.stop();
    assert_eq!(history.check_after_crash(&cluster.export("restarted")), []);
}

#[test]
fn stopped_helper_stalls_only_its_own_volume() {
    let Some(cluster) = cluster("SIGSTOP of the helper of RBD") else { return };
    let mut fixture = Fixture::with_volume(MIB);
    fixture.add_volume_on("stalled", &cluster.create_image("stalled", 8), "");
    let daemon = fixture.start();
    let mut client = fixture.connect("stalled");
    client.write(0, &[1; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    let helper = helper_of(&daemon);
    signal(helper, "STOP");
    client.send(Op::Read, 0, 4 * MIB, BLOCK, &[]).expect("the read is sent");
    let mut healthy = fixture.connect("v");
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        healthy.write(0, &[2; BLOCK]).and_then(|()| healthy.flush()).expect("the other volume works");
        std::thread::sleep(Duration::from_millis(50));
    }
    wait_for("the alert", || has_alert(&daemon, "backing-hung"));
    signal(helper, "CONT");
    assert_eq!(client.receive().expect("the read is answered").error, 0);
    client.write(0, &[3; BLOCK]).and_then(|()| client.flush()).expect("the volume works again");
    assert_eq!(cluster.export("stalled")[..BLOCK], [3; BLOCK]);
    drop((client, healthy));
    daemon.stop();
}

/// Takes the lock of a volume with dirty data on flash from its daemon by `take`. All requests then fail, nothing more
/// reaches the image, and the daemon stays so even if its helper is killed.
fn check_lost_lock(name: &str, take: impl FnOnce(&str)) {
    let Some(cluster) = cluster(name) else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image(name, 8), "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    client.write(0, &[1; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    client.read(4 * MIB, BLOCK).expect("the volume works");
    take(&cluster.lock_owner(name).expect("the daemon has the lock"));
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    let content = cluster.export(name);
    for _ in 0..2 {
        assert!(client.write(0, &[2; BLOCK]).is_err(), "a write fails");
        assert!(client.flush().is_err(), "a flush fails");
        assert!(client.read(0, BLOCK).is_err(), "even a cached read fails");
        std::thread::sleep(Duration::from_secs(2));
        assert!(cluster.export(name) == content, "nothing more reaches the image");
    }
    assert!(daemon.log().contains("the exclusive lock of the image is lost"), "{}", daemon.log());
    signal(helper_of(&daemon), "KILL");
    std::thread::sleep(Duration::from_secs(2));
    assert!(Client::connect(&fixture.endpoint(), "v").and_then(|mut client| client.read(0, BLOCK)).is_err());
    assert_eq!(cluster.lock_owner(name), None, "the lock is not acquired again");
    drop(client);
    daemon.kill();
    assert!(cluster.export(name) == content, "nothing more reaches the image");
}

#[test]
fn blocked_client_fails_its_volume_and_writes_nothing_more() {
    check_lost_lock("blocked", |owner| {
        let cluster = cluster("blocked").expect("the cluster runs");
        cluster.ceph("osd blocklist add").arg(owner).ok();
        let locks: Value = serde_json::from_str(&cluster.rbd("lock ls --format json rbd/blocked").ok()).expect("JSON");
        let (id, locker) = (locks[0]["id"].as_str().expect("text"), locks[0]["locker"].as_str().expect("text"));
        cluster.rbd("lock rm rbd/blocked").arg(id).arg(locker).ok();
    });
}

#[test]
fn killed_helper_whose_lock_was_broken_fails_its_volume() {
    let Some(cluster) = cluster("a lock that is broken while the helper restarts") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("broken", 8), "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    client.write(0, &[1; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    let helper = helper_of(&daemon);
    signal(helper, "STOP");
    let locks: Value = serde_json::from_str(&cluster.rbd("lock ls --format json rbd/broken").ok()).expect("JSON");
    let (id, locker) = (locks[0]["id"].as_str().expect("text"), locks[0]["locker"].as_str().expect("text"));
    cluster.rbd("lock rm rbd/broken").arg(id).arg(locker).ok();
    signal(helper, "KILL");
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    assert!(client.write(0, &[2; BLOCK]).is_err() && client.flush().is_err());
    assert!(daemon.log().contains("was lost while its process was restarted"), "{}", daemon.log());
    drop(client);
    daemon.kill();
}
