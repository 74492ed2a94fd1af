//! Upgrade of a fleet, one host after the other, under clients that verify what they have written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use e2e::ceph::cluster;
use e2e::client::{Client, Endpoint};
use e2e::daemon::{Daemon, binary, wait_for};
use e2e::fixture::Fixture;
use e2e::numbered::Numbered;
use serde_json::Value;

use super::fleet_link::{NAMES, hosts, linked_hosts};
use super::rbd_losses::{helpers_of, json};

/// Environment variable with the path of the older `hotset`, beside which its `hotset-rbd` lies.
const PREVIOUS: &str = "HOTSET_PREVIOUS";
const VOLUMES: [&str; 6] = ["v", "v1", "v2", "v3", "v4", "v5"];
const MIB: u64 = 8;
/// Blocks that each client writes to.
const BLOCKS: usize = 512;
/// Pause of a client after each flushed write.
const PAUSE: Duration = Duration::from_millis(2);
/// Time of the load between two steps.
const LOAD: Duration = Duration::from_millis(500);
/// Waits from here on are printed one by one.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Longest time until a host lets a client connect.
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);

/// A client as of a virtual machine, which goes where its orchestrator tells it.
struct Guest<'a> {
    endpoints: &'a [Endpoint],
    volume: &'static str,
    /// The host where it runs: as in a live migration, it connects there and goes on.
    host: AtomicUsize,
    /// The host where it connects after its connection has broken.
    refuge: AtomicUsize,
    is_over: AtomicBool,
}

/// The observations of a client.
#[derive(Default)]
struct Seen {
    /// Requests that got an error, and wrong content.
    faults: Vec<String>,
    reconnects: u64,
    /// Time that each write took with its flush, and each read.
    waits: Vec<Duration>,
}

impl Seen {
    fn add_wait(&mut self, began_at: Instant, request: &str) {
        let wait = began_at.elapsed();
        if wait > LONG_WAIT {
            println!("{} ms waited by {request}", wait.as_millis());
        }
        self.waits.push(wait);
    }
}

/// True for an error of the connection, and false for one that a reply has brought.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Guest<'_> {
    fn move_to(&self, host: usize) {
        self.refuge.store(host, Ordering::Relaxed);
        self.host.store(host, Ordering::Relaxed);
    }

    fn connect(&self, host: usize) -> Client {
        let end = Instant::now() + CONNECTED_WITHIN;
        loop {
            match Client::connect(&self.endpoints[host], self.volume) {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < end, "{} at host {}: {error}", self.volume, NAMES[host]),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes, flushes and reads until the end.
    fn run(&self) -> (Numbered, Seen) {
        let (mut numbered, mut seen) = (Numbered::new(BLOCKS), Seen::default());
        let mut host = self.host.load(Ordering::Relaxed);
        let mut client = self.connect(host);
        while !self.is_over.load(Ordering::Relaxed) {
            let wanted = self.host.load(Ordering::Relaxed);
            if wanted != host {
                // The target of a migration connects before the source ends.
                client = self.connect(wanted);
                host = wanted;
            }
            let began_at = Instant::now();
            let mut is_written = false;
            loop {
                let written = if is_written { Ok(()) } else { numbered.write(&mut client) };
                is_written = written.is_ok();
                let error = match written.and_then(|()| client.flush()) {
                    Ok(()) => break,
                    Err(error) => error,
                };
                if !is_broken(&error) {
                    let after = began_at.elapsed();
                    seen.faults.push(format!("{} at {} after {after:?}: {error}", self.volume, NAMES[host]));
                    if self.is_over.load(Ordering::Relaxed) {
                        return (numbered, seen);
                    }
                }
                // Unless its orchestrator has told it another host meanwhile.
                let refuge = self.refuge.load(Ordering::Relaxed);
                let (Ok(_) | Err(_)) = self.host.compare_exchange(wanted, refuge, Ordering::Relaxed, Ordering::Relaxed);
                host = refuge;
                client = self.connect(host);
                seen.reconnects += 1;
            }
            seen.add_wait(began_at, &format!("{} for a write at host {}", self.volume, NAMES[host]));
            let began_at = Instant::now();
            // Between two writes the volume may move, and the connection break.
            let fault = numbered.check_one(&mut client, numbered.count() * 31).ok().flatten();
            seen.faults.extend(fault.map(|fault| format!("{} at {}: {fault}", self.volume, NAMES[host])));
            seen.add_wait(began_at, &format!("{} for a read at host {}", self.volume, NAMES[host]));
            std::thread::sleep(PAUSE);
        }
        (numbered, seen)
    }
}

/// Sets the end of all clients when dropped, also when the test fails.
struct EndOnDrop<'a>(&'a [Guest<'a>]);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|guest| guest.is_over.store(true, Ordering::Relaxed));
    }
}

/// The hosts and their daemons.
struct Fleet {
    fixtures: [Fixture; 3],
    daemons: [Option<Daemon>; 3],
}

impl Fleet {
    fn daemon(&self, host: usize) -> &Daemon {
        self.daemons[host].as_ref().expect("the daemon runs")
    }

    fn state(&self, host: usize, volume: &str) -> Value {
        json(self.daemon(host), &["volume", "show", volume])["state"].clone()
    }

    /// Waits until a host serves the volume, and no other one says so any more.
    fn wait_until_served(&self, volume: &str, host: usize) {
        let is_right = |at: usize| self.state(at, volume) == if at == host { "active" } else { "standby" };
        wait_for(&format!("{volume} at {}", NAMES[host]), || (0..NAMES.len()).all(is_right).then_some(()));
    }

    /// Stops a host that owns nothing, and starts it with the binary under test.
    fn upgrade(&mut self, host: usize) {
        for volume in VOLUMES {
            assert_eq!(self.state(host, volume), "standby", "{volume} at {} after the drain", NAMES[host]);
        }
        self.daemons[host].take().expect("the daemon runs").stop();
        self.fixtures[host].binary = None;
        self.daemons[host] = Some(self.fixtures[host].start());
        self.check_program(host, binary());
        for volume in VOLUMES {
            wait_for("standby", || (self.state(host, volume) == "standby").then_some(()));
        }
    }

    /// The daemon and its helpers are those of that version, and not others that were found elsewhere.
    fn check_program(&self, host: usize, program: &Path) {
        let program_of = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).expect("it runs");
        let program = program.canonicalize().expect("the binary exists");
        assert_eq!(program_of(self.daemon(host).pid()), program);
        let helpers = wait_for("the helper processes", || {
            let helpers = helpers_of(self.daemon(host));
            (helpers.len() >= VOLUMES.len()).then_some(helpers)
        });
        helpers.iter().for_each(|helper| assert_eq!(program_of(*helper), program.with_file_name("hotset-rbd")));
    }

    /// All hosts see all hosts, and agree about the owner of each volume.
    fn check_views(&self) {
        for host in 0..NAMES.len() {
            wait_for("answers of all hosts", || {
                let entries = hosts(self.daemon(host));
                (entries.len() == NAMES.len() && entries.iter().all(|entry| entry["error"].is_null())).then_some(())
            });
        }
        let owners_by = |host: usize| {
            let status = json(self.daemon(host), &["fleet", "status"]);
            let volumes = status.as_array().expect("a list").iter();
            let mut owners: Vec<_> =
                volumes.map(|volume| format!("{} {}", volume["name"], volume["fleet"]["owner"])).collect();
            owners.sort_unstable();
            assert_eq!(owners.len(), VOLUMES.len(), "{status}");
            owners
        };
        wait_for("one view of all hosts", || {
            (owners_by(0) == owners_by(1) && owners_by(1) == owners_by(2)).then_some(())
        });
    }

    /// Moves a volume by the first write of its migrated client to another host, and back by a command of a host.
    fn move_both_ways(&self, guest: &Guest<'_>, (from, to): (usize, usize)) {
        guest.move_to(to);
        self.wait_until_served(guest.volume, to);
        std::thread::sleep(LOAD);
        guest.refuge.store(from, Ordering::Relaxed);
        // Once by the host that gets it, once by the one that gives it.
        let ordered_at = if from < to { from } else { to };
        // A former owner learns by its next look that the volume was handed over.
        let owner = || json(self.daemon(ordered_at), &["volume", "show", guest.volume])["fleet"]["owner"].clone();
        wait_for("the owner in the view of the host", || (owner() == NAMES[to]).then_some(()));
        self.daemon(ordered_at).command(&["fleet", "move", guest.volume, "--to", NAMES[from]]);
        self.wait_until_served(guest.volume, from);
        std::thread::sleep(LOAD);
    }
}

#[test]
fn hosts_are_upgraded_in_turn_under_clients_that_see_no_error() {
    let Some(cluster) = cluster("an upgrade of a fleet") else { return };
    let previous = std::env::var_os(PREVIOUS).map(PathBuf::from);
    if previous.is_none() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: two versions in a fleet: {PREVIOUS} names no older hotset");
    }
    let images = VOLUMES.map(|name| cluster.create_image(&format!("fleet-upgrade-{name}"), MIB));
    let mut fixtures: [Fixture; 3] = linked_hosts(&images[0]);
    for fixture in &mut fixtures {
        (1..VOLUMES.len()).for_each(|number| fixture.add_volume_on(VOLUMES[number], &images[number], ""));
        fixture.binary.clone_from(&previous);
    }
    let endpoints = fixtures.each_ref().map(Fixture::endpoint);
    let daemons = fixtures.each_ref().map(|fixture| Some(fixture.start()));
    let mut fleet = Fleet { fixtures, daemons };
    (0..NAMES.len()).for_each(|host| fleet.check_program(host, previous.as_ref().unwrap_or_else(|| binary())));

    // Two clients at each host, whose first writes move their volumes there.
    let guests: Vec<Guest<'_>> = (0..VOLUMES.len())
        .map(|number| Guest {
            endpoints: &endpoints,
            volume: VOLUMES[number],
            host: AtomicUsize::new(number / 2),
            refuge: AtomicUsize::new(number / 2),
            is_over: AtomicBool::new(false),
        })
        .collect();
    let began_at = Instant::now();
    let results: Vec<(Numbered, Seen)> = std::thread::scope(|scope| {
        let end = EndOnDrop(&guests);
        let running: Vec<_> = guests.iter().map(|guest| scope.spawn(|| guest.run())).collect();
        guests.iter().enumerate().for_each(|(number, guest)| fleet.wait_until_served(guest.volume, number / 2));
        fleet.check_views();
        for (host, name) in NAMES.into_iter().enumerate() {
            let [next, last] = [(host + 1) % NAMES.len(), (host + 2) % NAMES.len()];
            let mut here = guests.iter().filter(|guest| guest.host.load(Ordering::Relaxed) == host);
            // One migrates, the others are drained under their clients.
            let migrated = here.next().expect("every host has clients");
            migrated.move_to(next);
            fleet.wait_until_served(migrated.volume, next);
            here.for_each(|guest| guest.refuge.store(last, Ordering::Relaxed));
            let drained = fleet.daemon(host).command(&["fleet", "drain"]);
            println!("{name}: {}", drained.trim().replace('\n', "; "));
            guests.iter().for_each(|guest| fleet.wait_until_served(guest.volume, guest.refuge.load(Ordering::Relaxed)));
            fleet.upgrade(host);
            fleet.check_views();
            std::thread::sleep(LOAD);
            // Between hosts of both versions, in both directions, begun by either.
            if host < 2 {
                fleet.move_both_ways(&guests[5], (guests[5].host.load(Ordering::Relaxed), host));
                guests[4].move_to(host);
                fleet.wait_until_served(guests[4].volume, host);
                fleet.move_both_ways(&guests[4], (host, 2));
            }
            fleet.check_views();
        }
        drop(end);
        running.into_iter().map(|guest| guest.join().expect("no client panics")).collect()
    });

    let (mut faults, mut waits) = (Vec::<String>::new(), Vec::<Duration>::new());
    let mut reconnects = 0;
    for (guest, (numbered, seen)) in guests.iter().zip(&results) {
        let mut client = guest.connect(guest.host.load(Ordering::Relaxed));
        faults.extend(seen.faults.iter().chain(&numbered.check_all(&mut client).expect("it is served")).cloned());
        waits.extend(&seen.waits);
        reconnects += seen.reconnects;
    }
    waits.sort_unstable();
    let writes: u64 = results.iter().map(|(numbered, _)| numbered.count()).sum();
    let of_rank = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_millis();
    println!(
        "{} flushed writes in {} s, {} faults, {reconnects} connections anew; a request waited {} ms (median), {} ms \
         (p99), {} ms (max)",
        writes,
        began_at.elapsed().as_secs(),
        faults.len(),
        of_rank(0.5),
        of_rank(0.99),
        of_rank(1.0)
    );
    assert_eq!(faults, Vec::<String>::new());
    for guest in &guests {
        // The logs have nothing any more that is not in the images.
        fleet.daemon(guest.host.load(Ordering::Relaxed)).command(&["volume", "flush", guest.volume]);
    }
    fleet.daemons.iter_mut().for_each(|daemon| daemon.take().expect("the daemon runs").stop());
    for (volume, (numbered, _)) in VOLUMES.iter().zip(&results) {
        assert_eq!(numbered.faults_in(&cluster.export(&format!("fleet-upgrade-{volume}"))), Vec::<String>::new());
    }
}
