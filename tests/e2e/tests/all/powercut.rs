//! Power cuts: the backing is a disk with a volatile cache, and what the daemon did not flush there is at its mercy.
//!
//! Twice: with the backing's cache cut and the daemon killed (short), and with a whole guest that loses its power (long).

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::cache_disk::CacheDisk;
use e2e::client::Endpoint;
use e2e::daemon::{binary, wait_for};
use e2e::folder::Folder;
use e2e::guest::{Guest, Image, kernel_folder};
use e2e::ledger::{Fault, Ledger};
use e2e::random::{Random, seed};
use e2e::site::Site;
use e2e::writer::{StopAtEnd, Writer};

const BYTES: u64 = 8 << 20;

/// A cut before so many writes cuts nothing.
const WRITES_MIN: u64 = 100;

/// Writes through `endpoint` until `crash` has happened; what reads showed to be wrong meanwhile.
fn write_until(endpoint: &Endpoint, ledger: &Mutex<Ledger>, seed: u64, crash: impl FnOnce()) -> Vec<Fault> {
    let stop = AtomicBool::new(false);
    let writer = Writer { endpoint, export: "v", connections: 2, seed };
    let written = || ledger.lock().expect("no writer panicked").sequence();
    let before = written();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(ledger, &stop));
        let at_end = StopAtEnd(&stop);
        // An emulated machine on a busy one is slow to begin.
        wait_for("the first writes", || (written() - before >= WRITES_MIN).then_some(()));
        std::thread::sleep(Duration::from_millis(Random::new(seed).below(2000)));
        crash();
        drop(at_end);
        run.join().expect("the writer ends orderly")
    })
}

/// Boots, writes, cuts the power, checks the disk; the next round boots from what was left. Stops at the first fault.
fn guest_rounds(sabotage: Option<&str>, rounds: u64, seed: u64) -> Vec<Fault> {
    let folder = Folder::new();
    let image = Image::build(folder.path(), &kernel_folder(), binary(), sabotage);
    let socket = folder.join("disk");
    let disk = CacheDisk::serve(&socket, BYTES as usize).expect("a socket can be made");
    let ledger = Mutex::new(Ledger::new(BYTES, true));
    let mut random = Random::new(seed);
    for round in 0..rounds {
        let guest = Guest::boot(&image, &socket, &folder.join("console"));
        let (before, flushes) = (ledger.lock().expect("no writer panicked").sequence(), disk.flushes());
        let endpoint = guest.endpoint();
        let mut faults = write_until(&endpoint, &ledger, random.draw(), || guest.cut());
        let mut ledger = ledger.lock().expect("no writer panicked");
        let (writes, flushes) = (ledger.sequence() - before, disk.flushes() - flushes);
        faults.extend(ledger.check_after_crash(&disk.cut(&mut random)));
        println!("round {round}: {writes} writes, the disk was flushed {flushes} times, {} faults", faults.len());
        if !faults.is_empty() {
            return faults;
        }
    }
    Vec::new()
}

/// As [`guest_rounds`], with the daemon of a [`Site`] on this machine and its backing's cache cut when it is killed.
fn backing_rounds(site: &mut Site, rounds: u64, seed: u64) -> Vec<Fault> {
    let socket = site.folder.join("disk");
    let disk = CacheDisk::serve(&socket, BYTES as usize).expect("a socket can be made");
    site.memory = "18 MiB".to_owned();
    site.volume_on("v", &disk.uri(), "");
    let ledger = Mutex::new(Ledger::new(BYTES, true));
    let mut random = Random::new(seed);
    for round in 0..rounds {
        let daemon = site.start();
        let before = ledger.lock().expect("no writer panicked").sequence();
        let mut faults = write_until(&site.endpoint(), &ledger, random.draw(), || daemon.kill());
        let mut ledger = ledger.lock().expect("no writer panicked");
        let writes = ledger.sequence() - before;
        faults.extend(ledger.check_after_crash(&disk.cut(&mut random)));
        println!("round {round}: {writes} writes, {} flushes of the backing in all", disk.flushes());
        if !faults.is_empty() {
            return faults;
        }
    }
    Vec::new()
}

#[test]
fn case_3_a_flushed_write_survives_a_power_cut_of_the_backing() {
    let faults = backing_rounds(&mut Site::new(), 4, seed("powercut"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}

#[test]
fn a_daemon_that_does_not_flush_its_backing_is_caught_by_the_same_cut() {
    let mut site = Site::new();
    site.sabotage = Some("flush-early");
    let faults = backing_rounds(&mut site, 8, seed("powercut"));
    assert!(faults.iter().any(|fault| matches!(fault, Fault::Lost { .. })), "{faults:?}");
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn a_daemon_that_does_not_flush_its_backing_is_caught_in_the_guest() {
    let faults = guest_rounds(Some("flush-early"), 8, seed("powercut"));
    assert!(faults.iter().any(|fault| matches!(fault, Fault::Lost { .. })), "{faults:?}");
}

#[test]
#[ignore = "needs a guest kernel and minutes: make torture"]
fn case_3_a_flushed_write_survives_a_power_cut_of_the_whole_machine() {
    let rounds = std::env::var("HOTSET_POWERCUT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let faults = guest_rounds(None, rounds, seed("powercut"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}
