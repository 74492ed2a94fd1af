//! Hosts in network namespaces that are cut off from the storage, from each other, or from both.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use e2e::authority::Authority;
use e2e::ceph::{self, Cluster};
use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::network::{Lan, Network, STORAGE};
use e2e::random::{Random, seed};
use e2e::sizes::size;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};
use serde_json::Value;

use super::fleet::host;
use super::fleet_link::{NAMES, add_link_at, connect_standby, hosts};
use super::fleet_log::{add_log, end_after_loss};
use super::rbd_losses::json;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const VOLUME_BYTES: usize = 8 * MIB;
/// Write-back, with the log of each host on an image, and write-through.
const VOLUMES: [&str; 2] = ["v", "through"];
const AUTOMATIC: &str = "take_over = \"automatic\"\ntake_over_after = \"30s\"\n";
/// Port of the link, at each host's own address.
const LINK_PORT: u16 = 7401;
/// The end of the watches of the owner's clients, the margin, and a reserve for a busy machine.
const TAKE_OVER_MAX: Duration = Duration::from_secs(180);
/// Time for which the hosts are cut off from each other: longer than an automatic take-over waits for an absent owner.
const CUT_OF_HOSTS: Duration = Duration::from_secs(50);
/// Time of the load before a cut.
const LOAD: Duration = Duration::from_secs(1);
/// Rounds of each kind; `HOTSET_PARTITION_ROUNDS` replaces the number.
const ROUNDS: usize = 1;
/// Content that the new owner writes over everything.
const OF_NEW_OWNER: u8 = 0x5a;
/// Content that a client of the former owner writes after the take-over.
const OF_FORMER_OWNER: u8 = 0xee;

/// How the other host comes to take the volumes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOver {
    Command,
    Automatic,
}

/// Two hosts with networks of their own, and a cluster that both reach. Dropped in this order.
struct Fleet {
    hosts: [Fixture; 2],
    cluster: Cluster,
    network: Network,
}

impl Fleet {
    fn start(case: &str) -> Option<Fleet> {
        if !ceph::is_installed(case) {
            return None;
        }
        let network = Network::create(2, case)?;
        let cluster = Cluster::start(network.storage(), STORAGE);
        let [image, through] = VOLUMES.map(|name| cluster.create_image(name, (VOLUME_BYTES / MIB) as u64));
        let authority = Authority::default();
        let address = |host| SocketAddr::new(Lan::Hosts.address(host).parse().expect("an address"), LINK_PORT);
        let list = [(NAMES[0], address(0)), (NAMES[1], address(1))];
        let hosts = [0, 1].map(|number| {
            let name = NAMES[number];
            let mut fixture = host(name, &image, AUTOMATIC);
            add_log(&mut fixture, &cluster, &format!("log-of-{name}"));
            fixture.add_volume_on(VOLUMES[1], &through, &format!("policy = \"write-through\"\n{AUTOMATIC}"));
            add_link_at(&mut fixture, name, &list, &authority);
            let wrapper = fixture.folder.join("in-network");
            network.host(number).write_wrapper(&wrapper);
            fixture.wrapper = Some(wrapper);
            fixture
        });
        Some(Fleet { hosts, cluster, network })
    }

    /// Checks that the images, and the volumes at a host, contain what the new owner has written and nothing else.
    fn check_content(&self, host: &Fixture, case: &str) {
        for name in VOLUMES {
            let served = wait_for("the volume", || Client::connect(&host.endpoint(), name).ok()).read_all();
            for (place, content) in [("image", self.cluster.export(name)), ("volume", served.expect("it is served"))] {
                let foreign = content.iter().position(|byte| *byte != OF_NEW_OWNER);
                let found = foreign.map(|at| (at, &content[at..(at + 16).min(content.len())]));
                assert_eq!(found, None, "{case}: {place} {name} has something of the former owner");
            }
        }
    }
}

fn volume(daemon: &Daemon, name: &str) -> Value {
    json(daemon, &["volume", "show", name])
}

fn are_all(daemon: &Daemon, state: &str) -> Option<()> {
    VOLUMES.iter().all(|name| volume(daemon, name)["state"] == state).then_some(())
}

/// True if the daemon has lost the image of a volume to another client.
fn is_lost(daemon: &Daemon, name: &str) -> bool {
    let alerts = json(daemon, &["status"])["active_alerts"].as_array().expect("a list").clone();
    alerts.iter().any(|alert| alert["kind"] == "backing-lost" && alert["subject"] == name)
}

fn owners(daemon: &Daemon) -> Vec<String> {
    let status = json(daemon, &["fleet", "status"]);
    let volumes = status.as_array().expect("a list").iter();
    volumes.map(|volume| volume["fleet"]["owner"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until both hosts see each other and name the same owner of all volumes.
fn wait_for_agreement(daemons: [&Daemon; 2], owner: &str) {
    for daemon in daemons {
        wait_for("the answers of both hosts", || {
            hosts(daemon).iter().all(|host| host["error"].is_null()).then_some(())
        });
        wait_for("the owner", || owners(daemon).iter().all(|name| name == owner).then_some(()));
    }
}

fn fill(host: &Fixture, byte: u8) {
    for name in VOLUMES {
        let mut client = host.connect(name);
        (0..VOLUME_BYTES).step_by(MIB).for_each(|at| client.write(at as u64, &[byte; MIB]).expect("it is served"));
        // The first flush of a volume whose log was replayed says that unflushed writes may be lost.
        wait_for("a flush", || client.flush().ok());
    }
}

/// A client of the former owner, after the take-over.
struct LateClient(Client);

impl LateClient {
    /// Sends a write and a read; `None` if the host does not serve the volume.
    fn send(host: &Fixture, name: &str) -> Option<LateClient> {
        let mut client = Client::connect(&host.endpoint(), name).ok()?;
        client.send(Op::Read, 0, 0, BLOCK, &[]).ok()?;
        client.send(Op::Write, 0, 0, MIB, &[OF_FORMER_OWNER; MIB]).ok()?;
        Some(LateClient(client))
    }

    /// Receives the replies: none may say that the write is done, or bring content from before the take-over.
    fn check(mut self) -> &'static str {
        for _ in 0..2 {
            match self.0.receive() {
                Err(_) => return "disconnected",
                Ok(reply) if reply.error != 0 => {}
                Ok(reply) if reply.data.is_empty() => panic!("the former owner has acknowledged a write"),
                Ok(reply) => assert_eq!(reply.data, [OF_NEW_OWNER; BLOCK], "the former owner has answered a read"),
            }
        }
        "failed"
    }
}

/// Cuts the owner off from networks while it writes; the other host takes over. Returns its daemon, then that of the
/// former owner.
fn take_over_round(
    fleet: &Fleet,
    (owner, lans): (usize, &[Lan]),
    by: TakeOver,
    [former, next]: [Daemon; 2],
    random: &mut Random,
) -> [Daemon; 2] {
    let (from, to) = (&fleet.hosts[owner], &fleet.hosts[1 - owner]);
    let endpoint = from.endpoint();
    let histories = VOLUMES.map(|_| Mutex::new(WriteHistory::new(VOLUME_BYTES as u64, false)));
    let acknowledged =
        || histories.each_ref().map(|history| history.lock().expect("no writer panicked").acknowledgements());
    let (stop, began_at) = (AtomicBool::new(false), Instant::now());
    let (counts, took, late) = std::thread::scope(|scope| {
        for (name, history) in VOLUMES.into_iter().zip(&histories) {
            let (endpoint, stop, seed) = (&endpoint, &stop, random.draw());
            scope.spawn(move || {
                let writer = Writer { endpoint, export: name, connections: 2, seed };
                assert_eq!(writer.run(history, stop), [], "{name}");
            });
        }
        let guard = StopOnDrop(&stop);
        std::thread::sleep(LOAD + Duration::from_millis(random.below(1_000)));
        fleet.network.cut(owner, lans);
        let cut_at = Instant::now();
        if by == TakeOver::Command {
            std::thread::sleep(Duration::from_millis(random.below(4_000)));
            next.command(&["fleet", "take-over", "--host", NAMES[owner]]);
        }
        wait_at_most(TAKE_OVER_MAX, "the take-over", || are_all(&next, "active"));
        let (took, counts) = (cut_at.elapsed(), acknowledged());
        for (name, history) in VOLUMES.into_iter().zip(&histories) {
            let found = to.connect(name).read_all().expect("it is served");
            let faults = history.lock().expect("no writer panicked").check_after_crash(&found);
            assert_eq!(faults, [], "{name}: flushed data after the take-over");
        }
        fill(to, OF_NEW_OWNER);
        // Its own log has nothing any more that is not in the images.
        VOLUMES.iter().for_each(|name| drop(next.command(&["volume", "flush", name])));
        fleet.check_content(to, "after the take-over");
        // Clients that connect to the former owner only now, which does not know of the take-over.
        let late: Vec<_> = VOLUMES.iter().map(|name| LateClient::send(from, name)).collect();
        drop(guard);
        fleet.network.connect(owner, lans);
        (counts, took, late)
    });
    let late: Vec<_> = late.into_iter().map(|client| client.map_or("refused", LateClient::check)).collect();
    assert_eq!(acknowledged(), counts, "the former owner has acknowledged something after the take-over");
    // Its volumes are lost until its daemon is started again, whose clients get errors.
    wait_for("the former owner's alerts", || VOLUMES.iter().all(|name| is_lost(&former, name)).then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    fleet.check_content(to, "after the partition");
    end_after_loss(former);
    let former = from.start();
    wait_for("standby", || are_all(&former, "standby"));
    wait_for_agreement([&former, &next], NAMES[1 - owner]);
    fleet.check_content(to, "after the restart of the former owner");
    fleet.check_content(from, "on standby");
    // The next round begins with zeroes, as its histories do.
    fill(to, 0);
    println!(
        "{lans:?} {by:?}: {counts:?} acknowledged, served {} s after the cut; late clients {late:?}; {} s in all",
        took.as_secs(),
        began_at.elapsed().as_secs()
    );
    [next, former]
}

/// Rounds in which the owner, which is another one each time, is cut off from networks and taken over from.
fn run_take_overs(case: &str, lans: &[Lan]) {
    let Some(fleet) = Fleet::start(case) else { return };
    let mut random = Random::new(seed(case));
    let mut daemons = [fleet.hosts[0].start(), fleet.hosts[1].start()];
    for round in 0..size("HOTSET_PARTITION_ROUNDS", ROUNDS) {
        // Each host is taken over from in both ways.
        let by = if round / 2 % 2 == 0 { TakeOver::Command } else { TakeOver::Automatic };
        wait_for("the owner", || are_all(&daemons[0], "active"));
        daemons = take_over_round(&fleet, (round % 2, lans), by, daemons, &mut random);
    }
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
#[ignore = "long: a minute a round"]
fn owner_cut_off_from_the_storage_lands_no_byte_after_the_take_over() {
    run_take_overs("an owner that is cut off from the storage", &[Lan::Storage]);
}

#[test]
#[ignore = "long: a minute a round"]
fn owner_cut_off_from_everything_lands_no_byte_after_the_take_over() {
    run_take_overs("an owner that is cut off from everything", &[Lan::Storage, Lan::Hosts]);
}

#[test]
#[ignore = "long: a minute a round"]
fn owner_cut_off_from_the_other_hosts_stays_the_owner() {
    let case = "hosts that are cut off from each other";
    let Some(fleet) = Fleet::start(case) else { return };
    let mut random = Random::new(seed(case));
    let mut daemons = [fleet.hosts[0].start(), fleet.hosts[1].start()];
    for round in 0..size("HOTSET_PARTITION_ROUNDS", ROUNDS) {
        let owner = round % 2;
        daemons = cut_of_hosts_round(&fleet, owner, daemons, &mut random);
    }
    daemons.into_iter().for_each(Daemon::stop);
}

/// Cuts the hosts off from each other while the owner writes: it stays the owner. Afterwards the first writes at the
/// other host move the volumes. Returns its daemon, then that of the former owner.
fn cut_of_hosts_round(fleet: &Fleet, owner: usize, [first, second]: [Daemon; 2], random: &mut Random) -> [Daemon; 2] {
    let (from, to) = (&fleet.hosts[owner], &fleet.hosts[1 - owner]);
    let endpoint = from.endpoint();
    let histories = VOLUMES.map(|_| Mutex::new(WriteHistory::new(VOLUME_BYTES as u64, false)));
    let acknowledged =
        || histories.each_ref().map(|history| history.lock().expect("no writer panicked").acknowledgements());
    let (stop, began_at) = (AtomicBool::new(false), Instant::now());
    wait_for("the owner", || are_all(&first, "active"));
    wait_for("the other host", || are_all(&second, "standby"));
    let (counts, refused_after, longest_silence) = std::thread::scope(|scope| {
        for (name, history) in VOLUMES.into_iter().zip(&histories) {
            let (endpoint, stop, seed) = (&endpoint, &stop, random.draw());
            scope.spawn(move || {
                let writer = Writer { endpoint, export: name, connections: 2, seed };
                assert_eq!(writer.run(history, stop), [], "{name}");
            });
        }
        let guard = StopOnDrop(&stop);
        let mut waiting = connect_standby(to);
        std::thread::sleep(LOAD + Duration::from_millis(random.below(1_000)));
        fleet.network.cut(owner, &[Lan::Hosts]);
        let cut_at = Instant::now();
        let first_write = scope.spawn(move || {
            assert!(waiting.write(0, &[OF_FORMER_OWNER; BLOCK]).is_err(), "the owner cannot hand it over");
            cut_at.elapsed()
        });
        let (mut counts, mut changed_at, mut longest_silence) = (acknowledged(), Instant::now(), Duration::ZERO);
        while cut_at.elapsed() < CUT_OF_HOSTS {
            std::thread::sleep(Duration::from_millis(100));
            let counts_now = acknowledged();
            longest_silence = longest_silence.max(changed_at.elapsed());
            if counts_now.iter().zip(&counts).all(|(now, before)| now > before) {
                (counts, changed_at) = (counts_now, Instant::now());
            }
        }
        assert!(are_all(&first, "active").is_some() && are_all(&second, "standby").is_some());
        for daemon in [&first, &second] {
            assert!(
                owners(daemon).iter().all(|name| name == NAMES[owner]),
                "both hosts know the owner from the images"
            );
        }
        let refused_after = first_write.join().expect("no panic");
        fleet.network.connect(owner, &[Lan::Hosts]);
        wait_for_agreement([&first, &second], NAMES[owner]);
        drop(guard);
        (acknowledged(), refused_after, longest_silence)
    });
    assert!((15..40).contains(&refused_after.as_secs()), "{refused_after:?}");
    assert!(longest_silence < Duration::from_secs(5), "the volumes stay served: {longest_silence:?}");
    for (name, history) in VOLUMES.into_iter().zip(&histories) {
        // Nothing was lost, flushed or not, and the move takes it all along.
        let mut target = wait_for("the forwarding", || Client::connect(&to.endpoint(), name).ok());
        let found = target.read_all().expect("reads are forwarded");
        let history = history.lock().expect("no writer panicked");
        assert_eq!(history.check_read(0, &found), [], "{name}");
        wait_for("the first write on standby", || target.write(0, &found[..BLOCK]).ok());
        assert_eq!(history.check_read(0, &target.read_all().expect("it is served")), [], "{name}");
    }
    wait_for("the former owner", || are_all(&first, "standby"));
    wait_for_agreement([&first, &second], NAMES[1 - owner]);
    fill(to, 0);
    println!(
        "hosts apart: {counts:?} acknowledged, {} ms without one at most; a first write on standby refused after {} s; \
         {} s in all",
        longest_silence.as_millis(),
        refused_after.as_secs(),
        began_at.elapsed().as_secs()
    );
    [second, first]
}
