//! Clones of a volume on a pool: their first reads come from the cache of the master.

use std::fs::File;

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::linux::{self, Linux, Machine};
use e2e::random::Random;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Size of the master, all of it written.
const MASTER: u64 = 64 * MIB;
/// Size of a read; each has a content of its own.
const RUN: u64 = 64 << 10;
/// Slices of 1 MiB.
const SLICES: u64 = MASTER / MIB;

/// A fixture with a pool "tank" in slices of 1 MiB, the master on it, a flash cache, and the API.
fn created(memory: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.memory = memory.to_owned();
    let folder = fixture.folder.path().to_owned();
    for (name, mib) in [("ssd", 33), ("hdd", 161)] {
        let file = File::create(fixture.folder.join(name)).expect("the folder can be written");
        file.set_len(mib * MIB).expect("a sparse file can be created");
    }
    let folder = folder.display();
    fixture.tables = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\n[flash]\ndevices = [\"{folder}/f0\", \"{folder}/f1\"]\nsize = \"128 MiB\"\n\
         [[pool]]\nname = \"tank\"\nslice = \"1 MiB\"\n[[pool.tier]]\nname = \"ssd\"\ndevices = [\"{folder}/ssd\"]\n\
         [[pool.tier]]\nname = \"hdd\"\ndevices = [\"{folder}/hdd\"]\n"
    );
    fixture.add_volume_on("master", "pool://tank", &format!("size = \"{} MiB\"", MASTER / MIB));
    fixture.create_pool("tank");
    fixture
}

fn content(run: u64) -> Vec<u8> {
    let mut random = Random::new(run + 1);
    let word = random.draw().to_le_bytes();
    word.iter().copied().cycle().take(RUN as usize).collect()
}

/// Writes all of the master and makes a snapshot.
fn write_master(fixture: &Fixture, daemon: &Daemon) {
    let mut master = fixture.connect("master");
    for run in 0..MASTER / RUN {
        master.write(run * RUN, &content(run)).expect("room");
    }
    daemon.command(&["snapshot", "create", "master", "gold"]);
}

fn make_clone(daemon: &Daemon, name: &str) {
    daemon.command(&["snapshot", "clone", "master", "gold", name]);
    daemon.command(&["volume", "add", name, "--backing", "pool://tank"]);
}

/// Reads all of a volume in random order, as a boot does, and checks it.
fn boot(client: &mut Client, seed: u64, mut between: impl FnMut(&mut Client, u64)) {
    let mut runs: Vec<u64> = (0..MASTER / RUN).collect();
    let mut random = Random::new(seed);
    for last in (1..runs.len()).rev() {
        runs.swap(last, (random.below(last as u64 + 1)) as usize);
    }
    for (number, run) in runs.into_iter().enumerate() {
        assert_eq!(client.read(run * RUN, RUN as usize).expect("the pool is whole"), content(run), "run {run}");
        between(client, number as u64);
    }
}

fn report(http: &Http, volume: &str) -> Value {
    http.get(&format!("/api/v1/volumes/{volume}")).json()
}

fn count(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} is missing: {report}"))
}

/// Part of a volume's reads that siblings served.
fn shared_part(report: &Value) -> f64 {
    count(report, "sibling_read_bytes") as f64 / count(report, "read_bytes") as f64
}

#[test]
fn first_boot_of_a_clone_hits_the_cache_of_its_master() {
    let fixture = created("128 MiB");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    write_master(&fixture, &daemon);
    let master_memory = count(&report(&http, "master"), "memory_bytes");
    for (number, name) in ["c1", "c2", "c3"].into_iter().enumerate() {
        make_clone(&daemon, name);
        boot(&mut fixture.connect(name), number as u64, |_, _| ());
        let shown = report(&http, name);
        let (part, memory) = (shared_part(&shown), count(&shown, "memory_bytes"));
        println!("{name}: {:.1} % of its first read from the cache of another volume", 100.0 * part);
        assert!(part >= 0.9, "{part}: {shown}");
        assert!(memory < MASTER / 50, "a clone holds {memory} bytes");
        let metrics = http.get("/metrics").body;
        let series = format!("hotset_volume_sibling_read_bytes_total{{volume=\"{name}\"");
        let line = metrics.lines().find(|line| line.starts_with(&series)).expect("the volume has the metric");
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        assert_eq!(value, Some(count(&shown, "sibling_read_bytes") as f64));
    }
    assert_eq!(count(&report(&http, "master"), "memory_bytes"), master_memory, "one copy serves all");
    let text = daemon.command(&["volume", "show", "c1"]);
    assert!(text.contains("from the caches of other volumes"), "{text}");
    daemon.stop();
}

#[test]
fn clone_that_writes_while_it_boots_shares_the_rest() {
    let fixture = created("128 MiB");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    write_master(&fixture, &daemon);
    make_clone(&daemon, "c1");
    // A quarter of the slices get a write, spread over the boot: it makes the slice the clone's own.
    let mut client = fixture.connect("c1");
    boot(&mut client, 9, |client, number| {
        if number % (MASTER / RUN / SLICES * 4) == 0 {
            let at = number * RUN;
            let kept = client.read(at, 4096).expect("the pool is whole");
            client.write(at, &kept).expect("room");
        }
    });
    client.flush().expect("room");
    let shown = report(&http, "c1");
    println!("{:.1} % of the first read beside writes from the cache of another volume", 100.0 * shared_part(&shown));
    assert!(shared_part(&shown) >= 0.8, "{shown}");
    boot(&mut fixture.connect("master"), 10, |_, _| ());
    daemon.kill();
    let daemon = fixture.start();
    for name in ["c1", "master"] {
        boot(&mut fixture.connect(name), 11, |_, _| ());
    }
    daemon.stop();
}

#[test]
fn clone_reads_the_flash_of_a_master_that_memory_cannot_hold() {
    let fixture = created("16 MiB");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    write_master(&fixture, &daemon);
    // Reads until flash holds most of the master.
    let mut master = fixture.connect("master");
    for round in 0..30 {
        boot(&mut master, 100 + round, |_, _| ());
        let flash = &report(&http, "master")["flash"];
        if count(flash, "cached_bytes") > MASTER * 95 / 100 {
            break;
        }
    }
    make_clone(&daemon, "c1");
    boot(&mut fixture.connect("c1"), 3, |_, _| ());
    let shown = report(&http, "c1");
    println!("{:.1} % of the first read from the flash of another volume", 100.0 * shared_part(&shown));
    assert!(shared_part(&shown) >= 0.9, "{shown}");
    daemon.stop();
}

/// Boots a guest from a volume, and reads programs as its services would.
fn boot_guest(fixture: &Fixture, volume: &str) {
    let mut guest = Linux::boot_as(&Machine { root_uri: Some(fixture.uri(volume)), ..Machine::default() });
    guest.run("find /usr/bin /usr/sbin -type f | sort | head -n 400 | xargs cat >/dev/null");
    guest.run("date >/var/booted; sync; mount -o remount,ro /");
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn first_boot_of_a_guest_on_a_clone_hits_the_cache_of_its_master() {
    let mut fixture = Fixture::new();
    fixture.memory = "768 MiB".to_owned();
    let device = fixture.folder.join("device");
    File::create(&device).and_then(|file| file.set_len(4 << 30)).expect("the folder can be written");
    fixture.tables = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\n[[pool]]\nname = \"tank\"\nrelocation = \"off\"\n[[pool.tier]]\n\
         name = \"t\"\nclass = \"nl-sas\"\ndevices = [\"{}\"]\n",
        device.display()
    );
    let bytes = linux::template().metadata().expect("it exists").len();
    fixture.add_volume_on("master", "pool://tank", &format!("size = \"{bytes} B\""));
    fixture.create_pool("tank");
    let daemon = fixture.start();
    tool("nbdcopy").arg(linux::template()).arg(fixture.uri("master")).ok();
    daemon.stop();
    // The cache holds only what the boot of the master has read.
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    boot_guest(&fixture, "master");
    daemon.command(&["snapshot", "create", "master", "gold"]);
    for name in ["desktop1", "desktop2"] {
        make_clone(&daemon, name);
        boot_guest(&fixture, name);
        let shown = report(&http, name);
        let (part, read) = (shared_part(&shown), count(&shown, "read_bytes"));
        println!("{name}: {:.1} % of {} MiB from the caches of other volumes", 100.0 * part, read >> 20);
        assert!(part >= 0.9, "{part}: {shown}");
    }
    daemon.stop();
}
