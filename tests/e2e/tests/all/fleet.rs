//! Several hosts with one volume on an image of a real Ceph cluster: standby, moves, take-overs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::ceph::{Cluster, cluster};
use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::random::{Random, seed};
use e2e::sizes::size;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};
use serde_json::Value;

use super::rbd_losses::{add_flash, helper_of, json, lose_power, signal};
use super::rbd_owners::write_dirty_block;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Time for the end of a dead client's watch, the shortest margin of an automatic take-over, and a reserve.
pub const TAKE_OVER_MAX: Duration = Duration::from_secs(120);

/// A host of that name with volume `v` on the image.
pub fn host(name: &str, image: &str, lines: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", image, lines);
    fixture.tables = format!("[fleet]\nhost = \"{name}\"\n");
    fixture
}

fn with_flash(mut fixture: Fixture) -> Fixture {
    add_flash_to(&mut fixture);
    fixture
}

/// Adds two flash devices to a host.
pub fn add_flash_to(fixture: &mut Fixture) {
    let fleet = std::mem::take(&mut fixture.tables);
    add_flash(fixture);
    fixture.tables += &fleet;
}

pub fn shown(daemon: &Daemon) -> Value {
    json(daemon, &["volume", "show", "v"])
}

pub fn is_state(daemon: &Daemon, state: &str) -> Option<()> {
    (shown(daemon)["state"] == state).then_some(())
}

/// The entry of volume `v` in `hotset fleet status`.
pub fn status(daemon: &Daemon) -> Value {
    json(daemon, &["fleet", "status"])[0].clone()
}

pub fn write_and_flush(fixture: &Fixture, at: u64, byte: u8) {
    let mut client = fixture.connect("v");
    client.write(at, &[byte; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
}

pub fn read(fixture: &Fixture, at: u64) -> Vec<u8> {
    fixture.connect("v").read(at, BLOCK).expect("the volume works")
}

fn lock_owner(cluster: &Cluster, name: &str) -> String {
    cluster.lock_owner(name).expect("a client has the lock")
}

/// Runs a writer on the volume, checks what is read, and stops it while the volume is in service. Returns the history.
fn write_for(
    fixture: &Fixture,
    history: WriteHistory,
    seconds: u64,
    text: &str,
    during: impl FnOnce(),
) -> WriteHistory {
    let (endpoint, stop, history) = (fixture.endpoint(), AtomicBool::new(false), Mutex::new(history));
    let writer = Writer { endpoint: &endpoint, export: "v", connections: 2, seed: seed(text) };
    let faults = std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(&history, &stop));
        let guard = StopOnDrop(&stop);
        std::thread::sleep(Duration::from_secs(seconds));
        during();
        drop(guard);
        run.join().expect("the writer does not panic")
    });
    assert_eq!(faults, []);
    history.into_inner().expect("no writer panicked")
}

#[test]
fn volume_moves_under_a_writer_to_the_named_host_and_back() {
    let Some(cluster) = cluster("a move between hosts") else { return };
    let image = cluster.create_image("fleet-moved", 8);
    let (alpha, beta, gamma) = (host("alpha", &image, ""), host("beta", &image, ""), host("gamma", &image, ""));
    let (alpha, beta) = (with_flash(alpha), with_flash(beta));
    let first = alpha.start();
    let (second, third) = (beta.start(), gamma.start());
    let on_standby = status(&second);
    assert_eq!((&on_standby["state"], &on_standby["fleet"]["owner"]), (&"standby".into(), &"alpha".into()));
    assert_eq!(json(&second, &["status"])["active_alerts"], Value::Array(Vec::new()), "standby is no fault");

    let mut history = WriteHistory::new(8 * MIB, false);
    for (text, (from, to), (source, target), name) in
        [("there", (&first, &second), (&alpha, &beta), "beta"), ("back", (&second, &first), (&beta, &alpha), "alpha")]
    {
        let mut left_at = Instant::now();
        history = write_for(source, history, 2, text, || {
            from.command(&["fleet", "move", "v", "--to", name]);
            left_at = Instant::now();
        });
        wait_for("the named host", || is_state(to, "active"));
        println!("{text}: served {} ms after the release", left_at.elapsed().as_millis());
        assert!(is_state(from, "standby").is_some() && is_state(&third, "standby").is_some());
        // Requests after the release got errors; what was flushed before is on the image.
        let content = target.connect("v").read_all().expect("the volume is read");
        assert_eq!(history.check_after_crash(&content), [], "{text}");
        assert_eq!(status(to)["fleet"]["is_owner"], true);
        wait_for("the third host's look", || (status(&third)["fleet"]["owner"] == name).then_some(()));
    }
    third.stop();
    second.stop();
    first.stop();
    assert_eq!(history.check_after_crash(&cluster.export("fleet-moved")), []);
}

#[test]
fn restart_of_the_owner_is_no_reason_to_take_over() {
    let Some(cluster) = cluster("a restart of the owner beside a standby host") else { return };
    let image = cluster.create_image("fleet-restarted", 8);
    let automatic = "take_over = \"automatic\"\ntake_over_after = \"30s\"";
    let (alpha, beta) = (with_flash(host("alpha", &image, "")), host("beta", &image, automatic));
    let daemon = alpha.start();
    write_dirty_block(&mut alpha.connect("v"));
    let standby = beta.start();
    daemon.stop();
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(cluster.lock_owner("fleet-restarted"), None, "the lock is free all the time");
    assert!(is_state(&standby, "standby").is_some());
    let daemon = alpha.start();
    assert!(is_state(&daemon, "active").is_some(), "no other client disturbs the owner: {}", shown(&daemon));
    assert_eq!(read(&alpha, 0), [0xdd; BLOCK], "its dirty data is there");
    // A kill is a restart too.
    daemon.kill();
    wait_for("the release of the lock", || cluster.lock_owner("fleet-restarted").is_none().then_some(()));
    let daemon = alpha.start();
    assert!(is_state(&daemon, "active").is_some(), "{}", shown(&daemon));
    assert!(is_state(&standby, "standby").is_some());
    standby.stop();
    daemon.stop();
}

#[test]
fn absent_owner_is_taken_over_from_after_the_configured_margin() {
    let Some(cluster) = cluster("an automatic take-over") else { return };
    let image = cluster.create_image("fleet-absent", 8);
    let automatic = "policy = \"write-through\"\ntake_over = \"automatic\"\ntake_over_after = \"30s\"";
    let alpha = host("alpha", &image, "policy = \"write-through\"");
    let (beta, gamma) = (host("beta", &image, automatic), host("gamma", &image, ""));
    let daemon = alpha.start();
    write_and_flush(&alpha, 0, 0xcc);
    let (second, third) = (beta.start(), gamma.start());
    let power_cut_at = Instant::now();
    lose_power(daemon);
    wait_at_most(TAKE_OVER_MAX, "the take-over", || is_state(&second, "active"));
    let took = power_cut_at.elapsed();
    println!("taken over {} s after the power cut", took.as_secs());
    assert!(took >= Duration::from_secs(55), "the watch of the dead client, then the margin: {took:?}");
    assert_eq!(read(&beta, 0), [0xcc; BLOCK]);
    assert!(is_state(&third, "standby").is_some());
    write_and_flush(&beta, 0, 0xbb);
    // The former owner comes back, and leaves the image to its successor.
    let daemon = alpha.start();
    assert!(is_state(&daemon, "standby").is_some(), "{}", shown(&daemon));
    wait_for("the new owner", || (status(&daemon)["fleet"]["owner"] == "beta").then_some(()));
    daemon.stop();
    third.stop();
    second.stop();
    assert_eq!(cluster.export("fleet-absent")[..BLOCK], [0xbb; BLOCK]);
}

#[test]
fn stopped_owner_that_was_taken_over_from_lands_no_byte() {
    let Some(cluster) = cluster("a take-over of a stopped owner") else { return };
    let image = cluster.create_image("fleet-stopped", 8);
    let through = "policy = \"write-through\"";
    let (alpha, beta) = (host("alpha", &image, through), host("beta", &image, through));
    let first = alpha.start();
    write_and_flush(&alpha, 0, 0x11);
    let second = beta.start();
    let mut client = alpha.connect("v");
    let helper = helper_of(&first);
    signal(helper, "STOP");
    // Requests that have reached the helper land when it is resumed, if nothing blocks them.
    for block in 0..16 {
        client.send(Op::Write, 0, block * BLOCK as u64, BLOCK, &[0x22; BLOCK]).expect("the write is sent");
    }
    std::thread::sleep(Duration::from_millis(300));
    signal(first.pid(), "STOP");
    let owner = lock_owner(cluster, "fleet-stopped");

    let refused = text_of(&second.try_command(&["fleet", "take-over", "v", "--from", "gamma"]));
    assert!(refused.contains("host alpha owns the image"), "{refused}");
    assert_eq!(lock_owner(cluster, "fleet-stopped"), owner, "nothing was taken");
    let began_at = Instant::now();
    second.command(&["fleet", "take-over", "v", "--from", "alpha"]);
    let took = began_at.elapsed();
    println!("taken over after {} ms", took.as_millis());
    assert!(took >= Duration::from_secs(25), "the owner may answer from its cache for its lease: {took:?}");
    assert_ne!(lock_owner(cluster, "fleet-stopped"), owner);
    write_and_flush(&beta, 0, 0x33);
    let content = cluster.export("fleet-stopped");
    signal(first.pid(), "CONT");
    signal(helper, "CONT");
    std::thread::sleep(Duration::from_secs(3));
    assert!(cluster.export("fleet-stopped") == content, "no byte of the former owner lands");
    assert_eq!(content[..BLOCK], [0x33; BLOCK]);
    let is_failed = Client::connect(&alpha.endpoint(), "v").and_then(|mut client| client.read(0, BLOCK)).is_err();
    assert!(is_failed, "the former owner serves nothing");
    let again = text_of(&second.try_command(&["fleet", "take-over", "v"]));
    assert!(again.contains("already"), "{again}");
    drop(client);
    // Its daemon is on standby after a restart.
    first.kill();
    let first = alpha.start();
    assert!(is_state(&first, "standby").is_some(), "{}", shown(&first));
    first.stop();
    second.stop();
    assert!(cluster.export("fleet-stopped") == content);
}

/// Rounds of stopped owners; `HOTSET_STOP_ROUNDS` replaces the number.
const STOP_ROUNDS: u64 = 20;

#[test]
#[ignore = "long: twelve minutes"]
fn owners_that_are_stopped_in_turn_land_no_byte_after_the_take_over() {
    let Some(cluster) = cluster("take-overs of stopped owners in turn") else { return };
    let rounds = size("HOTSET_STOP_ROUNDS", STOP_ROUNDS);
    let image = cluster.create_image("fleet-stops", 8);
    let hosts = ["alpha", "beta"].map(|name| {
        let mut fixture = host(name, &image, "policy = \"write-through\"");
        // Persisted memory of a killed daemon would have the unanswered writes, and be refused at the next take-over.
        fixture.keep_in = "none".to_owned();
        fixture
    });
    let mut random = Random::new(seed("fleet-stops"));
    let (mut owner, mut standby) = (hosts[0].start(), hosts[1].start());
    for round in 0..rounds {
        let turn = usize::from(round % 2 == 1);
        let (from, to) = (&hosts[turn], &hosts[1 - turn]);
        write_and_flush(from, 0, 0x11);
        let mut client = from.connect("v");
        let processes = [helper_of(&owner), owner.pid()];
        // Either process is stopped first; requests are on their way to the cluster, the helper and the daemon.
        let first = usize::from(random.below(2) == 1);
        let early = random.below(16);
        for block in 0..32 {
            if block == early {
                signal(processes[first], "STOP");
            }
            client.send(Op::Write, 0, block * BLOCK as u64, BLOCK, &[0x22; BLOCK]).expect("the write is sent");
        }
        std::thread::sleep(Duration::from_millis(random.below(300)));
        signal(processes[1 - first], "STOP");
        standby.command(&["fleet", "take-over", "v"]);
        write_and_flush(to, 0, 0x33);
        let content = cluster.export("fleet-stops");
        processes.iter().for_each(|process| signal(*process, "CONT"));
        std::thread::sleep(Duration::from_secs(3));
        assert!(cluster.export("fleet-stops") == content, "round {round}: a byte of the former owner has landed");
        assert_eq!(content[..BLOCK], [0x33; BLOCK], "round {round}");
        drop(client);
        owner.kill();
        (owner, standby) = (standby, from.start());
        assert!(is_state(&standby, "standby").is_some(), "round {round}: {}", shown(&standby));
    }
    standby.stop();
    owner.stop();
}

#[test]
fn undestaged_data_is_taken_over_only_if_it_is_named() {
    let Some(cluster) = cluster("a take-over with undestaged data") else { return };
    let image = cluster.create_image("fleet-dirty", 8);
    let (alpha, beta) = (with_flash(host("alpha", &image, "")), with_flash(host("beta", &image, "")));
    let first = alpha.start();
    write_dirty_block(&mut alpha.connect("v"));
    let second = beta.start();
    first.kill();
    wait_for("the release of the lock", || cluster.lock_owner("fleet-dirty").is_none().then_some(()));
    let content = cluster.export("fleet-dirty");
    wait_for("the mark", || (status(&second)["fleet"]["undestaged_host"] == "alpha").then_some(()));
    let refused = text_of(&second.try_command(&["fleet", "take-over", "v"]));
    assert!(refused.contains("flash log of host alpha"), "{refused}");
    assert_eq!(cluster.lock_owner("fleet-dirty"), None, "the image is left as it is");
    wait_for("standby", || is_state(&second, "standby"));
    let adopted = text_of(&second.try_command(&["volume", "adopt", "v"]));
    assert!(adopted.contains("fleet take-over"), "{adopted}");
    let data = status(&second)["fleet"]["undestaged_data"].as_str().expect("a name").to_owned();
    second.command(&["fleet", "take-over", "v", "--from", "alpha", "--give-up", &data]);
    assert!(beta.connect("v").read_all().expect("it is served") == content);
    // The first host was not lost: its data stays off the image.
    let first = alpha.start();
    assert!(is_state(&first, "standby").is_some(), "{}", shown(&first));
    second.command(&["fleet", "move", "v", "--to", "alpha"]);
    wait_for("the refusal", || (shown(&first)["refusal"] == "owner-changed").then_some(()));
    assert!(cluster.export("fleet-dirty") == content);
    first.stop();
    second.stop();
}

#[test]
fn volume_whose_destage_hangs_or_is_cancelled_stays_in_service() {
    let Some(cluster) = cluster("a move whose destage hangs") else { return };
    let image = cluster.create_image("fleet-hung", 8);
    let (alpha, beta) = (with_flash(host("alpha", &image, "")), host("beta", &image, ""));
    let first = alpha.start();
    let second = beta.start();
    write_dirty_block(&mut alpha.connect("v"));
    let helper = helper_of(&first);
    signal(helper, "STOP");
    let is_moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| {
            let output = first.try_command(&["fleet", "move", "v"]);
            is_moved.store(true, Ordering::Relaxed);
            output
        });
        let job = wait_for("the destage", || json(&first, &["job", "list"])[0]["id"].as_str().map(str::to_owned));
        std::thread::sleep(Duration::from_secs(2));
        assert!(!is_moved.load(Ordering::Relaxed), "the destage hangs");
        first.command(&["job", "cancel", &job]);
        let output = moved.join().expect("no panic");
        assert!(!output.status.success() && text_of(&output).contains("cancelled"), "{}", text_of(&output));
    });
    assert!(is_state(&first, "active").is_some());
    signal(helper, "CONT");
    assert_eq!(read(&alpha, 0), [0xdd; BLOCK]);
    write_and_flush(&alpha, 0, 0xee);
    assert!(is_state(&second, "standby").is_some());
    first.command(&["fleet", "move", "v"]);
    wait_for("the other host", || is_state(&second, "active"));
    assert_eq!(read(&beta, 0), [0xee; BLOCK]);
    second.stop();
    first.stop();
}

#[test]
fn move_to_a_host_that_never_comes_is_undone_by_a_take_over() {
    let Some(cluster) = cluster("a move to an absent host") else { return };
    let image = cluster.create_image("fleet-undone", 8);
    let (alpha, beta) = (with_flash(host("alpha", &image, "")), host("beta", &image, ""));
    let first = alpha.start();
    let second = beta.start();
    write_dirty_block(&mut alpha.connect("v"));
    first.command(&["fleet", "move", "v", "--to", "omega"]);
    wait_for("the record", || (status(&second)["fleet"]["released_to"] == "omega").then_some(()));
    assert!(is_state(&first, "standby").is_some() && is_state(&second, "standby").is_some());
    // A restart does not bring it back.
    first.stop();
    let first = alpha.start();
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_state(&first, "standby").is_some() && is_state(&second, "standby").is_some());
    first.command(&["fleet", "take-over", "v", "--from", "alpha"]);
    assert_eq!(read(&alpha, 0), [0xdd; BLOCK]);
    write_and_flush(&alpha, 0, 0xee);
    assert!(is_state(&second, "standby").is_some());
    second.stop();
    first.stop();
}

#[test]
fn drained_host_releases_all_volumes() {
    let Some(cluster) = cluster("a drain") else { return };
    let images = [cluster.create_image("fleet-drain-1", 8), cluster.create_image("fleet-drain-2", 8)];
    let (mut alpha, mut beta) = (host("alpha", &images[0], ""), host("beta", &images[0], ""));
    for fixture in [&mut alpha, &mut beta] {
        fixture.add_volume_on("w", &images[1], "policy = \"write-through\"");
        fixture.add_volume("file", MIB, "");
    }
    let first = alpha.start();
    let second = beta.start();
    write_and_flush(&alpha, 0, 0x11);
    let text = first.command(&["fleet", "drain"]);
    assert!(text.contains("volume v") && text.contains("volume w") && !text.contains("file"), "{text}");
    wait_for("both volumes", || {
        let volumes = json(&second, &["fleet", "status"]);
        volumes.as_array().expect("a list").iter().all(|volume| volume["state"] == "active").then_some(())
    });
    assert_eq!(read(&beta, 0), [0x11; BLOCK]);
    assert_eq!(json(&first, &["volume", "show", "file"])["state"], "active");
    second.stop();
    first.stop();
}
