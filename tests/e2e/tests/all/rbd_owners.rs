//! Other clients of an image of a real Ceph cluster: dirty data of a daemon never overwrites what they have written.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::ceph::{Cluster, cluster};
use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use serde_json::Value;

use super::rbd_losses::{add_flash, has_alert, helper_of, json, signal};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// A client with librbd's automatic lock, as a virtual machine is one. It opens an image, says so, writes a block of
/// 0xee at 0 as soon as the lock permits, says so, and keeps the image open.
const AUTOMATIC_CLIENT: &str = "
import rados, rbd, sys, time
cluster = rados.Rados(conffile=sys.argv[1])
cluster.conf_set('rbd_cache', 'false')
cluster.connect()
image = rbd.Image(cluster.open_ioctx('rbd'), sys.argv[2])
print('open', flush=True)
while True:
    try:
        image.write(b'\\xee' * 4096, 0)
        break
    except rbd.ReadOnlyImage:
        time.sleep(0.005)
print('written', flush=True)
time.sleep(1000)
";

struct AutomaticClient {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl AutomaticClient {
    fn open(cluster: &Cluster, image: &str) -> AutomaticClient {
        let mut command = Command::new("/usr/bin/python3");
        command.arg("-c").arg(AUTOMATIC_CLIENT).arg(cluster.conf()).arg(image).stdout(Stdio::piped());
        let mut process = command.spawn().expect("ceph-common depends on Python and its binding of librbd");
        let lines = BufReader::new(process.stdout.take().expect("it is a pipe")).lines();
        let mut client = AutomaticClient { process, lines };
        client.wait_for("open");
        client
    }

    fn wait_for(&mut self, word: &str) {
        assert_eq!(self.lines.next().and_then(Result::ok).as_deref(), Some(word));
    }
}

impl Drop for AutomaticClient {
    fn drop(&mut self) {
        let (Ok(()) | Err(_)) = self.process.kill();
        let (Ok(_) | Err(_)) = self.process.wait();
    }
}

/// Writes four blocks, which a flush destages to have evidence, and then a dirty block 0, which stays in the log.
pub fn write_dirty_block(client: &mut Client) {
    for number in 1..=4 {
        client.write(number * MIB, &[number as u8; BLOCK]).expect("the volume works");
    }
    client.flush().expect("the log takes it");
    // On a busy machine the evidence is destaged after the flush, and must not include the next block.
    std::thread::sleep(Duration::from_secs(3));
    client.write(0, &[0xdd; BLOCK]).and_then(|()| client.flush()).expect("the log takes it");
}

/// A write of another client with librbd's automatic lock, at offset 0.
pub fn write_elsewhere(cluster: &Cluster, name: &str) {
    let args = "bench --io-type write --io-size 4K --io-total 4K --io-threads 1 --io-pattern seq";
    cluster.rbd(&format!("{args} rbd/{name}")).ok();
}

fn remove_lock(cluster: &Cluster, name: &str, args: &str) {
    let locks: Value =
        serde_json::from_str(&cluster.rbd(&format!("lock ls --format json rbd/{name}")).ok()).expect("valid JSON");
    let (id, locker) = (locks[0]["id"].as_str().expect("text"), locks[0]["locker"].as_str().expect("text"));
    cluster.rbd(&format!("{args} lock rm rbd/{name}")).arg(id).arg(locker).ok();
}

/// The reason why volume `v` is refused.
fn refusal_of(daemon: &Daemon) -> String {
    let shown = json(daemon, &["volume", "show", "v"]);
    assert_eq!(shown["state"], "refused", "{shown}");
    shown.to_string()
}

/// Checks that volume `v`, whose image `name` another client has written, is refused, that its dirty data stays off the
/// image, and that it is served with the image's content after the dirty data was given up.
fn check_refused_until_adopted(cluster: &Cluster, fixture: &Fixture, daemon: &Daemon, name: &str) {
    let content = cluster.export(name);
    assert_ne!(content[..BLOCK], [0xdd; BLOCK], "the dirty data is not in the image");
    let refusal = refusal_of(daemon);
    assert!(refusal.contains("another client may have written there since"), "{refusal}");
    let data = refusal.split("--give-up ").nth(1).expect("the text has the choice")[..16].to_owned();
    std::thread::sleep(Duration::from_secs(1));
    assert!(cluster.export(name) == content, "the dirty data stays off the image");
    daemon.command(&["volume", "adopt", "v", "--give-up", &data]);
    let mut client = fixture.connect("v");
    assert!(client.read_all().expect("it is served") == content, "the volume has the content of the image");
}

#[test]
fn image_written_elsewhere_after_a_kill_is_not_overwritten() {
    let Some(cluster) = cluster("a write of another client while the daemon is down") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("elsewhere", 8), "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    write_dirty_block(&mut fixture.connect("v"));
    daemon.kill();
    wait_for("the release of the lock", || cluster.lock_owner("elsewhere").is_none().then_some(()));
    write_elsewhere(cluster, "elsewhere");
    let daemon = fixture.start();
    check_refused_until_adopted(cluster, &fixture, &daemon, "elsewhere");
    daemon.stop();
    // The next start continues the lineage that the adoption began.
    let daemon = fixture.start();
    assert_ne!(json(&daemon, &["volume", "show", "v"])["state"], "refused");
    daemon.stop();
}

#[test]
fn unchanged_image_is_served_after_a_kill_beside_readers() {
    let Some(cluster) = cluster("readers of an image while the daemon is down") else { return };
    let mut fixture = Fixture::new();
    let image = cluster.create_image("read", 8);
    // Time stamps in the header change with each second, not only once a minute.
    cluster.rbd("config image set rbd/read rbd_mtime_update_interval 1").ok();
    fixture.add_volume_on("v", &image, "");
    add_flash(&mut fixture);
    let mut daemon = fixture.start();
    write_dirty_block(&mut fixture.connect("v"));
    for _ in 0..2 {
        daemon.kill();
        wait_for("the release of the lock", || cluster.lock_owner("read").is_none().then_some(()));
        cluster.rbd("status rbd/read").ok();
        cluster.rbd("du rbd/read").ok();
        cluster.export("read");
        daemon = fixture.start();
        let shown = json(&daemon, &["volume", "show", "v"]);
        assert_ne!(shown["state"], "refused", "{shown}");
        assert_eq!(fixture.connect("v").read(0, BLOCK).expect("it is served"), [0xdd; BLOCK]);
    }
    daemon.stop();
}

#[test]
fn volume_with_a_lost_image_stops_and_is_refused_by_the_next_start() {
    let Some(cluster) = cluster("a restart after the loss of an image") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("lost", 8), "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    write_dirty_block(&mut fixture.connect("v"));
    remove_lock(cluster, "lost", "");
    write_elsewhere(cluster, "lost");
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    daemon.stop();
    let daemon = fixture.start();
    check_refused_until_adopted(cluster, &fixture, &daemon, "lost");
    daemon.stop();
}

#[test]
fn client_that_has_the_image_open_during_a_restart_keeps_its_write() {
    let Some(cluster) = cluster("a client with the automatic lock while the helper restarts") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("contended", 8), "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    write_dirty_block(&mut client);
    let mut other = AutomaticClient::open(cluster, "contended");
    signal(helper_of(&daemon), "KILL");
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    assert!(client.write(0, &[0xdd; BLOCK]).is_err());
    other.wait_for("written");
    assert_eq!(cluster.export("contended")[..BLOCK], [0xee; BLOCK]);
    drop((client, other));
    daemon.kill();
}

#[test]
fn stopped_helper_whose_client_is_not_blocked_never_writes_again() {
    let Some(cluster) = cluster("a loss of the lock without a block") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("paused", 8), "policy = \"write-through\"");
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    client.write(0, &[0xdd; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    let helper = helper_of(&daemon);
    signal(helper, "STOP");
    remove_lock(cluster, "paused", "--rbd_blocklist_on_break_lock=false");
    write_elsewhere(cluster, "paused");
    let content = cluster.export("paused");
    assert_ne!(content[..BLOCK], [0xdd; BLOCK]);
    std::thread::sleep(Duration::from_secs(27));
    signal(helper, "CONT");
    assert!(client.write(0, &[0xdd; BLOCK]).is_err(), "the write fails");
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    assert!(cluster.export("paused") == content);
    drop(client);
    daemon.kill();
}

#[test]
fn image_under_two_addresses_is_served_once() {
    let Some(cluster) = cluster("an image under two addresses") else { return };
    let mut fixture = Fixture::new();
    let image = cluster.create_image("twice", 8);
    fixture.add_volume_on("v", &image, "");
    let daemon = fixture.start();
    let owner = cluster.lock_owner("twice");
    let output = daemon.try_command(&["volume", "add", "w", "--backing", &format!("{image}&ceph_user=admin")]);
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("volume v"), "{text}");
    assert_eq!(cluster.lock_owner("twice"), owner);
    fixture.connect("v").write(0, &[1; BLOCK]).expect("the first volume works");
    daemon.stop();
}

#[test]
fn setting_of_the_image_that_weakens_the_lock_is_refused() {
    let Some(cluster) = cluster("a setting of an image") else { return };
    let mut fixture = Fixture::new();
    let image = cluster.create_image("weakened", 8);
    cluster.rbd("config image set rbd/weakened rbd_cache true").ok();
    fixture.add_volume_on("v", &image, "");
    let daemon = fixture.start();
    let refusal = refusal_of(&daemon);
    assert!(refusal.contains("rbd config image rm rbd/weakened rbd_cache"), "{refusal}");
    // The daemon retries, and closes the refused image each time.
    cluster.rbd("config image rm rbd/weakened rbd_cache").ok();
    let served = || (json(&daemon, &["volume", "show", "v"])["state"] != "refused").then_some(());
    wait_at_most(Duration::from_secs(60), "the volume", served);
    daemon.stop();
}

#[test]
fn lost_volume_is_removed_once_its_dirty_data_is_named() {
    let Some(cluster) = cluster("the removal of a lost volume") else { return };
    let mut fixture = Fixture::new();
    let image = cluster.create_image("removed", 8);
    fixture.add_volume_on("v", &image, "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    write_dirty_block(&mut fixture.connect("v"));
    remove_lock(cluster, "removed", "");
    write_elsewhere(cluster, "removed");
    wait_for("the alert", || has_alert(&daemon, "backing-lost"));
    let content = cluster.export("removed");
    let refused = text_of(&daemon.try_command(&["volume", "remove", "v"]));
    let data = refused.split("--give-up ").nth(1).expect("the text has the choice")[..16].to_owned();
    daemon.command(&["volume", "remove", "v", "--give-up", &data]);
    daemon.command(&["volume", "add", "again", "--backing", &image]);
    assert!(fixture.connect("again").read_all().expect("it is served") == content, "it has the image's content");
    daemon.stop();
    assert!(cluster.export("removed") == content, "the dirty data stays off the image");
}

#[test]
fn image_rolled_back_while_the_daemon_is_down_is_not_overwritten() {
    let Some(cluster) = cluster("a rollback of an image in a namespace") else { return };
    cluster.rbd("namespace create rbd/blue").ok();
    cluster.rbd("create --size 8M rbd/blue/rolled").ok();
    let mut fixture = Fixture::new();
    let address = format!("rbd:rbd/blue/rolled?ceph_conf={}", cluster.conf().display());
    fixture.add_volume_on("v", &address, "");
    add_flash(&mut fixture);
    let daemon = fixture.start();
    cluster.rbd("snap create --no-progress rbd/blue/rolled@before").ok();
    write_dirty_block(&mut fixture.connect("v"));
    daemon.kill();
    wait_for("the release of the lock", || cluster.lock_owner("blue/rolled").is_none().then_some(()));
    cluster.rbd("snap rollback --no-progress rbd/blue/rolled@before").ok();
    let daemon = fixture.start();
    let refusal = refusal_of(&daemon);
    assert!(refusal.contains("--give-up"), "{refusal}");
    std::thread::sleep(Duration::from_secs(1));
    assert!(cluster.export("blue/rolled").iter().all(|byte| *byte == 0), "the image stays as it was rolled back");
    daemon.stop();
}
