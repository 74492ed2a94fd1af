//! Power cuts: the backing is a disk with a volatile cache, and a cut may lose any data that the daemon did not flush
//! there.
//!
//! The short tests kill the daemon and cut the backing's cache; the long ones cut the power of a whole guest.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::cache_disk::CacheDisk;
use e2e::client::{Client, Endpoint};
use e2e::daemon::{binary, wait_for};
use e2e::fixture::Fixture;
use e2e::folder::Folder;
use e2e::guest::{Guest, Image, Storage};
use e2e::kernel::Kernel;
use e2e::pattern::SECTOR;
use e2e::random::{Random, seed};
use e2e::sizes::size;
use e2e::tool::tool;
use e2e::write_history::{Fault, WriteHistory};
use e2e::writer::{StopOnDrop, Writer};

const BYTES: u64 = 8 << 20;

/// Size of a flash device, so small that the log wraps and page segments are written and freed.
const FLASH_BYTES: usize = 24 << 20;
/// Size of a device of a pool. Each has room for the volume.
const POOL_DEVICE_BYTES: usize = 12 << 20;
/// Size of the state directory's file system.
const STATE_BYTES: usize = 16 << 20;
/// Size of the physical sectors of its disk: one block of the file system, which cannot be mounted with a torn
/// superblock.
const STATE_SECTOR_BYTES: usize = 4096;
/// Number of writes before a cut, so that the cut can lose some.
const WRITES_MIN: u64 = 100;

/// Writes through `endpoint` until `crash` has returned; returns the faults found by reads meanwhile.
fn write_until(endpoint: &Endpoint, history: &Mutex<WriteHistory>, seed: u64, crash: impl FnOnce()) -> Vec<Fault> {
    let stop = AtomicBool::new(false);
    let writer = Writer { endpoint, export: "v", connections: 2, seed };
    let write_count = || history.lock().expect("no writer panicked").sequence();
    let before = write_count();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| writer.run(history, &stop));
        let stop_guard = StopOnDrop(&stop);
        // An emulated machine on a busy host starts slowly.
        wait_for("the first writes", || (write_count() - before >= WRITES_MIN).then_some(()));
        std::thread::sleep(Duration::from_millis(Random::new(seed).below(2000)));
        crash();
        drop(stop_guard);
        run.join().expect("the writer does not panic")
    })
}

/// The disks of a guest; each loses its unflushed data at a cut.
struct Disks {
    /// The backing or the devices of a pool; then, if present, two flash devices and the state directory's file system.
    disks: Vec<CacheDisk>,
    sockets: Vec<PathBuf>,
}

impl Disks {
    fn new(folder: &Folder, storage: Storage) -> Disks {
        let sizes: &[usize] = match storage {
            Storage::Disk => &[BYTES as usize],
            Storage::DiskAndFlash => &[BYTES as usize, FLASH_BYTES, FLASH_BYTES],
            Storage::Pool => &[POOL_DEVICE_BYTES; 2],
        };
        let mut images: Vec<_> = sizes.iter().map(|size| (vec![0; *size], SECTOR)).collect();
        if storage != Storage::Disk {
            let state = folder.join("state.img");
            std::fs::write(&state, vec![0; STATE_BYTES]).expect("the folder can be written");
            tool("mkfs.ext4").args(&format!("-q -F -b {STATE_SECTOR_BYTES}")).arg(&state).ok();
            images.push((std::fs::read(&state).expect("the image was just created"), STATE_SECTOR_BYTES));
        }
        let sockets: Vec<_> = (0..images.len()).map(|number| folder.join(&format!("disk{number}"))).collect();
        let serve = |(socket, (image, sector_bytes)): (&PathBuf, (Vec<u8>, usize))| {
            CacheDisk::serve_image(socket, image, sector_bytes).expect("a socket can be created")
        };
        let disks = sockets.iter().zip(images).map(serve).collect();
        Disks { disks, sockets }
    }

    fn flushes(&self) -> Vec<u64> {
        self.disks.iter().map(CacheDisk::flushes).collect()
    }

    /// Cuts all disks and returns the content of the first one afterwards.
    fn cut(&self, random: &mut Random) -> Vec<u8> {
        let mut images = self.disks.iter().map(|disk| disk.cut(random));
        let first = images.next().expect("a guest has a disk");
        images.for_each(drop);
        first
    }
}

/// Boots, writes, cuts the power, checks; the next round boots from the remaining content. Stops at the first fault.
/// A volume on a disk without flash is checked on the disk, another one by the content that the next boot's daemon
/// serves; a refused volume is a fault.
fn guest_rounds(storage: Storage, sabotage: Option<&str>, rounds: u64, seed: u64) -> Vec<String> {
    let folder = Folder::new();
    let image = Image::build(folder.path(), &Kernel::open(), binary(), storage, sabotage);
    let disks = Disks::new(&folder, storage);
    let history = Mutex::new(WriteHistory::new(BYTES, true));
    let mut random = Random::new(seed);
    let boot = || Guest::boot(&image, &disks.sockets, &folder.join("console"));
    let mut guest = boot();
    let mut moved_bytes = 0;
    for round in 0..rounds {
        let (before, flushes) = (history.lock().expect("no writer panicked").sequence(), disks.flushes());
        let endpoint = guest.endpoint();
        let pause = Duration::from_millis(random.below(3000));
        let mut faults = write_until(&endpoint, &history, random.draw(), || {
            if storage == Storage::Pool {
                wait_for("the first moves", || (guest.moved_bytes() > 0).then_some(()));
                std::thread::sleep(pause);
                moved_bytes += guest.moved_bytes();
            }
            guest.cut();
        });
        let flushes: Vec<_> = disks.flushes().iter().zip(flushes).map(|(after, before)| after - before).collect();
        let mut volume_image = disks.cut(&mut random);
        guest = boot();
        if storage != Storage::Disk {
            let content = Client::connect(&guest.endpoint(), "v").and_then(|mut client| client.read_all());
            volume_image = match content {
                Ok(volume_image) => volume_image,
                Err(error) => return vec![format!("the volume is not back: {error}\n{}", guest.log())],
            };
        }
        let mut history = history.lock().expect("no writer panicked");
        let writes = history.sequence() - before;
        faults.extend(history.check_after_crash(&volume_image));
        println!("round {round}: {writes} writes, the disks were flushed {flushes:?} times, {} faults", faults.len());
        if !faults.is_empty() {
            return faults.iter().map(Fault::to_string).collect();
        }
    }
    println!("{moved_bytes} bytes of slices moved");
    Vec::new()
}

/// Like [`guest_rounds`], with the daemon of a [`Fixture`] on this machine; its backing's cache is cut when the daemon
/// is killed.
fn backing_rounds(fixture: &mut Fixture, rounds: u64, seed: u64) -> Vec<Fault> {
    let socket = fixture.folder.join("disk");
    let disk = CacheDisk::serve(&socket, BYTES as usize).expect("a socket can be created");
    fixture.memory = "18 MiB".to_owned();
    fixture.keep_in = "none".to_owned();
    fixture.add_volume_on("v", &disk.uri(), "");
    let history = Mutex::new(WriteHistory::new(BYTES, true));
    let mut random = Random::new(seed);
    for round in 0..rounds {
        let daemon = fixture.start();
        let before = history.lock().expect("no writer panicked").sequence();
        let mut faults = write_until(&fixture.endpoint(), &history, random.draw(), || daemon.kill());
        let mut history = history.lock().expect("no writer panicked");
        let writes = history.sequence() - before;
        faults.extend(history.check_after_crash(&disk.cut(&mut random)));
        println!("round {round}: {writes} writes, {} flushes of the backing in all", disk.flushes());
        if !faults.is_empty() {
            return faults;
        }
    }
    Vec::new()
}

#[test]
fn case_3_flushed_write_survives_a_power_cut_of_the_backing() {
    let faults = backing_rounds(&mut Fixture::new(), 4, seed("powercut"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}

#[test]
fn daemon_that_skips_backing_flushes_is_caught() {
    let mut fixture = Fixture::new();
    fixture.sabotage = Some("flush-early");
    let faults = backing_rounds(&mut fixture, 8, seed("powercut"));
    assert!(faults.iter().any(|fault| matches!(fault, Fault::Lost { .. })), "{faults:?}");
}

/// Rounds to run: `HOTSET_POWERCUT_ROUNDS`, 50 by default.
fn rounds() -> u64 {
    size("HOTSET_POWERCUT_ROUNDS", 50)
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn daemon_that_skips_backing_flushes_is_caught_in_the_guest() {
    let faults = guest_rounds(Storage::Disk, Some("flush-early"), 8, seed("powercut"));
    assert!(faults.iter().any(|fault| fault.contains("was flushed")), "{faults:?}");
}

#[test]
#[ignore = "needs a guest kernel and minutes: make torture"]
fn case_3_flushed_write_survives_a_power_cut_of_the_machine() {
    let faults = guest_rounds(Storage::Disk, None, rounds(), seed("powercut"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}

#[test]
#[ignore = "needs a guest kernel and minutes: make torture"]
fn case_3_flushed_write_survives_a_power_cut_with_flash() {
    let faults = guest_rounds(Storage::DiskAndFlash, None, rounds(), seed("powercut_flash"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}

#[test]
#[ignore = "needs a guest kernel and minutes: make torture"]
fn case_3_flushed_write_survives_a_power_cut_of_a_pool_with_moves() {
    let faults = guest_rounds(Storage::Pool, None, rounds().div_ceil(2), seed("powercut_pool"));
    assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);
}

#[test]
#[ignore = "needs a guest kernel and minutes: make torture"]
fn daemon_that_skips_flash_flushes_is_caught_in_the_guest() {
    let faults = guest_rounds(Storage::DiskAndFlash, Some("flash-skip-flush"), 8, seed("powercut_flash"));
    println!("{faults:?}");
    assert!(!faults.is_empty(), "no check found a fault");
}
