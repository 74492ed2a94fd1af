//! Take-over of volumes whose owner had flushed data in a log on an image of a real Ceph cluster.

use std::time::{Duration, Instant};

use e2e::ceph::{Cluster, cluster};
use e2e::client::Op;
use e2e::daemon::{Daemon, text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::sizes::size;

use super::fleet::{TAKE_OVER_MAX, host, is_state, read, shown, status, write_and_flush};
use super::rbd_losses::{cut_power, has_alert, lose_power, write_during};
use super::rbd_owners::write_dirty_block;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const LOG_MIB: u64 = 96;

/// A host of that name with volume `v` on the image, and its log on the new image `log`.
fn host_with_log(cluster: &Cluster, name: &str, image: &str, log: &str) -> Fixture {
    let mut fixture = host(name, image, "");
    add_log(&mut fixture, cluster, log);
    fixture
}

/// Adds a log on the new image `log` to a host.
pub fn add_log(fixture: &mut Fixture, cluster: &Cluster, log: &str) {
    fixture.keep_in = "none".to_owned();
    let log = cluster.create_image(log, LOG_MIB);
    fixture.tables += &format!("[flash]\ndevices = [\"{log}\"]\nsize = \"64 MiB\"\n");
}

fn with_log(cluster: &Cluster, image: &str, log: &str) -> Fixture {
    host_with_log(cluster, "alpha", image, log)
}

fn metadata(cluster: &Cluster, name: &str) -> String {
    cluster.rbd(&format!("image-meta list rbd/{name}")).ok()
}

fn take_over(daemon: &Daemon) -> String {
    text_of(&daemon.try_command(&["fleet", "take-over", "v", "--from", "alpha", "--fenced"]))
}

#[test]
fn volume_of_a_dead_host_is_taken_over_with_the_flushed_data_in_its_log() {
    let Some(cluster) = cluster("a take-over with data in a log on RBD") else { return };
    let image = cluster.create_image("log-taken", 8);
    let mut alpha = with_log(cluster, &image, "log-of-alpha");
    alpha.add_volume("local", 8 << 20, "");
    let beta = host("beta", &image, "");
    let first = alpha.start();
    let mut other = alpha.connect("local");
    other.write(0, &[0x77; BLOCK]).and_then(|()| other.flush()).expect("the log takes it");
    drop(other);
    let second = beta.start();
    let mut first = Some(first);
    let mut history = write_during(&alpha, seed("fleet-log"), |_| {
        std::thread::sleep(Duration::from_millis(800));
        lose_power(first.take().expect("the daemon runs"));
    });
    wait_for("the mark", || (status(&second)["fleet"]["undestaged_host"] == "alpha").then_some(()));

    // Without the log nothing is served, and the data keeps its mark.
    cluster.rbd("rename rbd/log-of-alpha rbd/log-hidden").ok();
    let refused = take_over(&second);
    assert!(refused.contains("log of host alpha") && refused.contains("--give-up"), "{refused}");
    assert!(metadata(cluster, "log-taken").contains("hotset.undestaged"), "{refused}");
    cluster.rbd("rename rbd/log-hidden rbd/log-of-alpha").ok();
    let began_at = Instant::now();
    second.command(&["fleet", "take-over", "v", "--fenced"]);
    println!("taken over after {} ms", began_at.elapsed().as_millis());
    let content = beta.connect("v").read_all().expect("it is served");
    assert_eq!(history.check_after_crash(&content), []);
    let marks = metadata(cluster, "log-taken");
    assert!(marks.contains("hotset.destaged") && !marks.contains("hotset.undestaged"), "{marks}");
    write_and_flush(&beta, MIB as u64, 0xee);

    // The host comes back: its log has the data of its other volume, and that of `v` is outdated.
    let first = alpha.start();
    assert!(is_state(&first, "standby").is_some(), "{}", shown(&first));
    assert_eq!(alpha.connect("local").read(0, BLOCK).expect("it is served"), [0x77; BLOCK]);
    second.command(&["fleet", "move", "v", "--to", "alpha"]);
    wait_for("the volume at its first host", || is_state(&first, "active"));
    assert_eq!(read(&alpha, MIB as u64), [0xee; BLOCK]);
    let mut client = alpha.connect("v");
    assert!(client.flush().is_err(), "unflushed writes before the take-over may be lost");
    client.write(2 * MIB as u64, &[0xdd; BLOCK]).and_then(|()| client.flush()).expect("the log takes it");
    drop(client);
    lose_power(first);
    // Its data has another mark by now.
    let first = alpha.start();
    wait_at_most(TAKE_OVER_MAX, "the volume after a crash", || is_state(&first, "active"));
    assert_eq!(read(&alpha, 2 * MIB as u64), [0xdd; BLOCK]);
    assert_eq!(read(&alpha, MIB as u64), [0xee; BLOCK]);
    first.stop();
    second.stop();
}

#[test]
fn all_volumes_of_a_dead_host_are_taken_over_by_one_command() {
    let Some(cluster) = cluster("a take-over of all volumes of a host") else { return };
    let names = ["log-all", "log-all-second", "log-all-plain", "log-all-own"];
    let [image, second_image, plain, own] = names.map(|name| cluster.create_image(name, 8));
    let mut alpha = with_log(cluster, &image, "log-of-all");
    let mut beta = host("beta", &image, "");
    for fixture in [&mut alpha, &mut beta] {
        fixture.add_volume_on("second", &second_image, "");
        fixture.add_volume_on("plain", &plain, "policy = \"write-through\"");
    }
    beta.add_volume_on("own", &own, "policy = \"write-through\"");
    let (first, second) = (alpha.start(), beta.start());
    write_dirty_block(&mut alpha.connect("v"));
    for (name, byte) in [("second", 0x66), ("plain", 0x55)] {
        let mut client = alpha.connect(name);
        client.write(0, &[byte; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    }
    lose_power(first);
    let take_over = |from: &str| second.try_command(&["fleet", "take-over", "--host", from, "--fenced"]);
    let unknown = take_over("gamma");
    assert!(!unknown.status.success() && text_of(&unknown).contains("host gamma"), "{}", text_of(&unknown));
    let taken = take_over("alpha");
    let text = text_of(&taken);
    assert!(taken.status.success() && !text.contains("volume own"), "{text}");
    for name in ["v", "second", "plain"] {
        assert!(text.contains(&format!("volume {name} is taken over")), "{text}");
    }
    assert_eq!(read(&beta, 0), [0xdd; BLOCK]);
    assert_eq!(beta.connect("second").read(0, BLOCK).expect("it is served"), [0x66; BLOCK]);
    assert_eq!(beta.connect("plain").read(0, BLOCK).expect("it is served"), [0x55; BLOCK]);
    let again = take_over("alpha");
    assert!(!again.status.success() && text_of(&again).contains("no volume on standby"), "{}", text_of(&again));
    second.stop();
}

#[test]
fn hosts_take_a_volume_over_from_each_other_in_turn() {
    let Some(cluster) = cluster("take-overs in turn with data in logs on RBD") else { return };
    let image = cluster.create_image("log-in-turn", 8);
    let hosts = ["alpha", "beta"].map(|name| host_with_log(cluster, name, &image, &format!("log-in-turn-of-{name}")));
    let mut random = Random::new(seed("fleet-log-in-turn"));
    let rounds = size("HOTSET_KILL_ROUNDS", 4);
    let mut owner = Some(hosts[0].start());
    for round in 0..rounds {
        let (from, to) = (&hosts[round % 2], &hosts[(round + 1) % 2]);
        let standby = to.start();
        assert!(is_state(&standby, "standby").is_some(), "round {round}: {}", shown(&standby));
        let mut history = write_during(from, random.draw(), |_| {
            std::thread::sleep(Duration::from_millis(300 + random.below(500)));
            lose_power(owner.take().expect("the daemon runs"));
        });
        // From the third round on, the log of the new owner has outdated data of the volume.
        let name = ["alpha", "beta"][round % 2];
        standby.command(&["fleet", "take-over", "v", "--from", name, "--fenced"]);
        let content = to.connect("v").read_all().expect("it is served");
        assert_eq!(history.check_after_crash(&content), [], "round {round}");
        // The next round begins with zeroes, as its history does.
        let mut client = to.connect("v");
        client.call(Op::WriteZeroes, 0, 0, 8 * MIB, &[]).expect("the volume is zeroed");
        wait_for("a flush", || client.flush().ok());
        owner = Some(standby);
    }
    owner.take().expect("the daemon runs").stop();
}

#[test]
fn log_is_not_destaged_over_writes_that_may_have_come_since() {
    let Some(cluster) = cluster("a take-over of an image whose lock is free") else { return };
    let image = cluster.create_image("log-free", 8);
    let (alpha, beta) = (with_log(cluster, &image, "log-of-free"), host("beta", &image, ""));
    let (first, second) = (alpha.start(), beta.start());
    write_dirty_block(&mut alpha.connect("v"));
    // Its helper releases the lock: any client could have written before the take-over.
    first.kill();
    wait_for("the release of the lock", || cluster.lock_owner("log-free").is_none().then_some(()));
    let (content, marks) = (cluster.export("log-free"), metadata(cluster, "log-free"));
    let refused = take_over(&second);
    assert!(refused.contains("flash log of host alpha"), "{refused}");
    assert!(cluster.export("log-free") == content && metadata(cluster, "log-free") == marks);
    let first = alpha.start();
    assert!(is_state(&first, "active").is_some(), "{}", shown(&first));
    assert_eq!(read(&alpha, 0), [0xdd; BLOCK]);
    first.stop();
    second.stop();
}

#[test]
#[ignore = "long: two minutes"]
fn absent_owner_with_its_log_on_an_image_is_taken_over_from_by_itself() {
    let Some(cluster) = cluster("an automatic take-over with data in a log on RBD") else { return };
    let image = cluster.create_image("log-absent", 8);
    let alpha = with_log(cluster, &image, "log-of-absent");
    let beta = host("beta", &image, "take_over = \"automatic\"\ntake_over_after = \"30s\"");
    let first = alpha.start();
    let second = beta.start();
    write_dirty_block(&mut alpha.connect("v"));
    lose_power(first);
    wait_at_most(TAKE_OVER_MAX, "the take-over", || is_state(&second, "active"));
    assert_eq!(read(&beta, 0), [0xdd; BLOCK]);
    let first = alpha.start();
    assert!(is_state(&first, "standby").is_some(), "{}", shown(&first));
    first.stop();
    second.stop();
}

#[test]
#[ignore = "long: 15 s a round"]
fn take_over_that_is_killed_is_repeated_without_a_loss() {
    let Some(cluster) = cluster("kills during a take-over") else { return };
    let image = cluster.create_image("log-killed-twice", 8);
    let alpha = with_log(cluster, &image, "log-of-killed");
    let beta = host("beta", &image, "");
    let mut random = Random::new(seed("fleet-log-kills"));
    let rounds = size("HOTSET_KILL_ROUNDS", 3);
    for round in 0..rounds {
        let mut first = Some(alpha.start());
        wait_at_most(TAKE_OVER_MAX, "the owner", || is_state(first.as_ref().expect("it runs"), "active"));
        let second = beta.start();
        let mut history = write_during(&alpha, random.draw(), |_| {
            std::thread::sleep(Duration::from_millis(300 + random.below(700)));
            lose_power(first.take().expect("the daemon runs"));
        });
        wait_for("the mark", || (status(&second)["fleet"]["undestaged_host"] == "alpha").then_some(()));
        let delay = Duration::from_millis(random.below(4_000));
        std::thread::scope(|scope| {
            scope.spawn(|| take_over(&second));
            std::thread::sleep(delay);
            cut_power(&second);
        });
        drop(second);
        let second = beta.start();
        wait_at_most(TAKE_OVER_MAX, "the take-over", || {
            is_state(&second, "active").or_else(|| {
                println!("round {round}, killed after {delay:?}: {}", take_over(&second));
                None
            })
        });
        let content = beta.connect("v").read_all().expect("it is served");
        assert_eq!(history.check_after_crash(&content), []);
        // The next round begins with zeroes at alpha, as its history does.
        let mut client = beta.connect("v");
        client.call(Op::WriteZeroes, 0, 0, 8 * MIB, &[]).expect("the volume is zeroed");
        wait_for("a flush", || client.flush().ok());
        drop(client);
        second.command(&["fleet", "move", "v", "--to", "alpha"]);
        second.stop();
    }
}

/// Longest time of the stop of a daemon that has lost its images.
pub const STOP_AFTER_LOSS_MAX: Duration = Duration::from_secs(30);

/// Ends a daemon that has lost its images: its exit status says that it could not destage.
pub fn end_after_loss(mut daemon: Daemon) {
    let began_at = Instant::now();
    daemon.signal("TERM");
    daemon.wait();
    assert!(began_at.elapsed() < STOP_AFTER_LOSS_MAX, "the stop waits for lost images: {:?}", began_at.elapsed());
}

#[test]
fn host_that_has_lost_its_images_and_its_log_stops_in_time() {
    let Some(cluster) = cluster("a stop after a take-over from a living host") else { return };
    let image = cluster.create_image("log-living", 8);
    let (alpha, beta) = (with_log(cluster, &image, "log-of-living"), host("beta", &image, ""));
    let (first, second) = (alpha.start(), beta.start());
    let mut history = write_during(&alpha, seed("fleet-log-living"), |_| {
        std::thread::sleep(Duration::from_millis(500));
        // Its unflushed writes can go nowhere any more.
        second.command(&["fleet", "take-over", "v", "--from", "alpha", "--fenced"]);
    });
    let content = beta.connect("v").read_all().expect("it is served");
    assert_eq!(history.check_after_crash(&content), []);
    ["backing-lost", "no-copy"].iter().for_each(|alert| wait_for(alert, || has_alert(&first, alert)));
    end_after_loss(first);
    let first = alpha.start();
    assert!(is_state(&first, "standby").is_some(), "{}", shown(&first));
    first.stop();
    second.stop();
    assert!(cluster.export("log-living") == content);
}
