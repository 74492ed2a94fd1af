//! A flash store whose log lies on an image of a real Ceph cluster.

use std::cell::Cell;
use std::time::Duration;

use e2e::ceph::{Cluster, cluster};
use e2e::client::Op;
use e2e::daemon::{Daemon, hotset, text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};

use super::rbd_losses::{helper_of, json, lose_power, signal, write_during};
use super::rbd_owners::write_dirty_block;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Size of the image with the log.
const LOG_MIB: u64 = 96;

/// A host with volume `v` on a local file, whose log lies on the new image `name`. `local` are further devices.
fn host(cluster: &Cluster, name: &str, local: &str) -> Fixture {
    let mut fixture = Fixture::with_volume(8 * MIB);
    fixture.keep_in = "none".to_owned();
    let image = cluster.create_image(name, LOG_MIB);
    fixture.tables = format!("[flash]\ndevices = [\"{image}\"{local}]\nsize = \"64 MiB\"\n");
    fixture
}

/// Roles of the devices in service, in the order of their numbers.
fn roles(daemon: &Daemon) -> Vec<String> {
    let devices = json(daemon, &["flash", "list"])["devices"].as_array().expect("a list").clone();
    let in_service = devices.iter().filter(|device| device["state"] == "in-service");
    in_service.map(|device| device["role"].as_str().expect("a role").to_owned()).collect()
}

#[test]
fn killed_host_with_its_log_on_an_image_keeps_what_was_flushed() {
    let Some(cluster) = cluster("SIGKILL of a daemon with its log on RBD") else { return };
    let fixture = host(cluster, "log-killed", "");
    let daemon = Cell::new(Some(fixture.start()));
    let mut random = Random::new(seed("rbd-log-killed"));
    for _ in 0..3 {
        let mut history = write_during(&fixture, random.draw(), |_| {
            std::thread::sleep(Duration::from_millis(200 + random.below(400)));
            daemon.take().expect("the daemon runs").kill();
        });
        let next = fixture.start();
        assert_eq!(roles(&next), ["log"]);
        let image = fixture.connect("v").read_all().expect("the volume is read");
        assert_eq!(history.check_after_crash(&image), []);
        // The next round begins with zeroes, as its history does.
        let mut client = fixture.connect("v");
        client.call(Op::WriteZeroes, 0, 0, 8 * MIB as usize, &[]).expect("the volume is zeroed");
        // The first flush fails if unflushed writes may be lost.
        wait_for("a flush", || client.flush().ok());
        daemon.set(Some(next));
    }
    let daemon = daemon.take().expect("the daemon runs");
    assert!(!daemon.command(&["status"]).contains("single copy"), "the cluster keeps the copies");
    daemon.stop();
}

#[test]
fn helper_killed_under_load_does_not_take_the_log_out_of_service() {
    let Some(cluster) = cluster("SIGKILL of the helper of a log on RBD") else { return };
    let fixture = host(cluster, "log-helper", "");
    let daemon = fixture.start();
    let mut random = Random::new(seed("rbd-log-helper"));
    let mut history = write_during(&fixture, random.draw(), |history| {
        let write_count = || history.lock().expect("no writer panicked").sequence();
        for _ in 0..3 {
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
    assert_eq!(roles(&daemon), ["log"]);
    daemon.kill();
    let daemon = fixture.start();
    let image = fixture.connect("v").read_all().expect("the volume is read");
    assert_eq!(history.check_after_crash(&image), []);
    daemon.stop();
}

#[test]
fn host_without_its_local_flash_has_all_flushed_data() {
    let Some(cluster) = cluster("loss of the local flash beside a log on RBD") else { return };
    let fixture = Fixture::new();
    let local = fixture.folder.join("f0");
    let fixture = host(cluster, "log-only", &format!(", \"{}\"", local.display()));
    let daemon = fixture.start();
    assert_eq!(roles(&daemon), ["log", "pages"]);
    write_dirty_block(&mut fixture.connect("v"));
    let refused = daemon.try_command(&["flash", "remove", "0", "--yes"]);
    assert!(!refused.status.success(), "{}", text_of(&refused));
    let text = text_of(&daemon.try_command(&["flash", "add", "rbd:rbd/other", "--yes"]));
    assert!(text.contains("new store only"), "{text}");
    lose_power(daemon);
    std::fs::remove_file(&local).expect("the device exists");

    let daemon = fixture.start();
    assert_eq!(roles(&daemon), ["log"]);
    assert_eq!(fixture.connect("v").read(0, BLOCK).expect("it is served"), [0xdd; BLOCK]);
    daemon.stop();
}

#[test]
fn data_of_a_lost_host_is_rescued_from_the_image_of_its_log() {
    let Some(cluster) = cluster("rescue of the log of a lost host from RBD") else { return };
    let fixture = host(cluster, "log-lost", "");
    let daemon = fixture.start();
    write_dirty_block(&mut fixture.connect("v"));
    lose_power(daemon);
    // The host does not come back. Its log is read as a file.
    let log = fixture.folder.join("log.img");
    std::fs::write(&log, cluster.export("log-lost")).expect("the folder can be written");
    let (log, to) = (log.display().to_string(), fixture.folder.join("rescued").display().to_string());
    let output = hotset(&["--json", "flash", "rescue", &log, "--to", &to]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let file = report["volumes"][0]["file"].as_str().expect("one volume has dirty data");
    let rescued = std::fs::read(file).expect("the image exists");
    assert_eq!(rescued[..BLOCK], [0xdd; BLOCK], "{report}");
}

#[test]
#[ignore = "long: about a minute"]
fn flushes_wait_for_a_cluster_that_does_not_answer() {
    let Some(cluster) = cluster("a cluster that hangs under a log") else { return };
    let fixture = host(cluster, "log-hung", "");
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    write_dirty_block(&mut client);
    let signal_storage = |name: &str| cluster.processes("osd").into_iter().for_each(|process| signal(process, name));
    signal_storage("STOP");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| {
            let mut client = fixture.connect("v");
            client.write(BLOCK as u64, &[0xcc; BLOCK]).and_then(|()| client.flush())
        });
        // Longer than the lease, so that the helper is started again, and than a mirror's hang.
        std::thread::sleep(Duration::from_secs(45));
        assert!(!flush.is_finished(), "the log does not answer");
        assert_eq!(client.read(0, BLOCK).expect("it is cached"), [0xdd; BLOCK]);
        signal_storage("CONT");
        wait_at_most(Duration::from_secs(90), "the flush", || flush.is_finished().then_some(()));
        flush.join().expect("it ends").expect("the flush succeeds late");
    });
    assert_eq!(roles(&daemon), ["log"]);
    daemon.kill();
    let daemon = fixture.start();
    assert_eq!(fixture.connect("v").read(0, 2 * BLOCK).expect("it is served")[BLOCK..], [0xcc; BLOCK]);
    daemon.stop();
}
