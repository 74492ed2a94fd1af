//! A disk that hangs beside healthy volumes. One seed draws a world in which a backing, one flash device or both flash
//! devices stop answering, for some time or until the end, and the check bounds the effect on the other volumes.
//!
//! Healthy volumes keep nine tenths of their rate, and none of their requests waits longer than [`WAIT_MAX`]. With both
//! flash devices hung, requests wait no longer than [`WAIT_MAX_WITHOUT_FLASH`]. Every client records its writes, so
//! that each read is checked and flushed data is checked after the end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use engine::{Core, CoreSpec, Volume};
use flash::{FormatOptions, MemberDisk, OpenOptions, Store};
use seam::sim::{CrashMode, DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec, WriteCache};
use seam::{Nanos, SECTORS_PER_BLOCK, Seam};

use crate::fixture::{Fixture, out_of_order_disk, read, spec, write};
use crate::random::Random;

const MIB: u64 = 1 << 20;
const BLOCK_SECTORS: u64 = SECTORS_PER_BLOCK as u64;
/// Longest wait of a healthy volume's request: the time-out after which one of two hung log members is dropped, plus a
/// second.
const WAIT_MAX: Nanos = Nanos::from_secs(3);
/// Longest wait while both flash devices hang: the time-out after which the last log member is dropped (30 s), plus
/// three seconds.
const WAIT_MAX_WITHOUT_FLASH: Nanos = Nanos::from_secs(33);
/// Clients per volume.
const CLIENTS: u64 = 4;
/// Blocks per client, `CLIENTS` blocks apart.
const BLOCKS: u64 = 1_000;
/// Pause between two requests of a client. It, not a disk, determines the client's rate.
const PAUSE: Nanos = Nanos::from_millis(40);
/// Time before the hang over which the rate is measured.
const RATE_TIME: Nanos = Nanos::from_secs(10);

/// Time that clients continue after the hung disk has answered.
const RECOVERY_TIME: Nanos = Nanos::from_secs(5);
/// Time within which the last requests are answered: the longest of these waits, plus a reserve.
const ANSWER_TIME: Nanos = Nanos::from_secs(40);
/// Number of the random stream of the options.
const OPTIONS_STREAM: u64 = 9_005;
/// Number of the first client's random stream.
const CLIENT_STREAM: u64 = 9_100;

/// The hung device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HungDevice {
    /// The backing of the first volume.
    Backing,
    /// The first of two flash devices.
    OneFlashDevice,
    /// Both flash devices.
    BothFlashDevices,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct HangOptions {
    /// Seed of all other draws.
    pub seed: u64,
    /// Number of volumes, each on its own disk.
    pub volumes: u64,
    /// Segments of 256 KiB on each of two flash devices; `None` without flash.
    pub segments: Option<u64>,
    /// The hung device.
    pub hung: HungDevice,
    /// True when only reads hang.
    pub reads_only: bool,
    /// Duration of the hang.
    pub duration: Nanos,
    /// True: the world crashes during the hang; false: the disk answers the outstanding requests.
    pub crashes: bool,
}

impl HangOptions {
    /// Draws all options.
    pub fn draw(seed: u64) -> HangOptions {
        let mut random = Random::new(seed, OPTIONS_STREAM);
        let segments = random.percent(70).then(|| random.pick(&[60, 200, 400]));
        let hung = match random.below(10) {
            0..4 if segments.is_some() => HungDevice::OneFlashDevice,
            4 | 5 if segments.is_some() => HungDevice::BothFlashDevices,
            _ => HungDevice::Backing,
        };
        HangOptions {
            seed,
            volumes: random.between(2, 4),
            segments,
            hung,
            reads_only: random.percent(20),
            duration: Nanos::from_secs(random.between(40, 120)),
            crashes: random.percent(50),
        }
    }
}

impl fmt::Display for HangOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HangOptions { seed, volumes, segments, hung, duration, .. } = self;
        let requests = if self.reads_only { "reads" } else { "all requests" };
        let end = if self.crashes { "then a crash" } else { "then it answers" };
        write!(
            f,
            "seed {seed}: {volumes} volumes, flash {segments:?}, {hung:?} hangs ({requests}) for {duration}, {end}"
        )
    }
}

/// Versions that a client has written to one of its blocks.
#[derive(Clone, Copy, Default)]
struct BlockVersions {
    /// Newest acknowledged version.
    acknowledged: u64,
    /// Newest version sent.
    sent: u64,
    /// Newest version covered by a flush.
    flushed: u64,
}

/// A volume and the versions that its clients have written.
struct TestVolume {
    volume: Volume<SimSeam>,
    blocks: RefCell<BTreeMap<u64, BlockVersions>>,
    /// Blocks whose acknowledged version is perhaps not flushed.
    unflushed: RefCell<BTreeSet<u64>>,
    /// Completed requests.
    completed: Cell<u64>,
    /// Requests in flight by client, with their start times.
    in_flight: RefCell<BTreeMap<u64, Nanos>>,
    /// Longest wait of a completed request.
    longest_completed: Cell<Nanos>,
    /// Failed requests.
    failed: Cell<u64>,
}

impl TestVolume {
    /// Longest wait of a request, including requests in flight.
    fn longest_wait(&self, now: Nanos) -> Nanos {
        let in_flight_max = self.in_flight.borrow().values().map(|started_at| now.since(*started_at)).max();
        in_flight_max.unwrap_or_default().max(self.longest_completed.get())
    }
}

/// Description of a violated guarantee.
pub type ViolationText = String;

/// Outcome of a client's request.
enum RequestOutcome {
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// It violated a guarantee.
    Violation(ViolationText),
}

impl RequestOutcome {
    fn of_result<T, E>(result: &Result<T, E>) -> RequestOutcome {
        if result.is_ok() { RequestOutcome::Done } else { RequestOutcome::Failed }
    }
}

/// Runs a world with these options; an error describes the violated guarantee.
pub fn run(options: &HangOptions) -> Result<(), ViolationText> {
    let fail = |message: String| Err(format!("{options}: {message}"));
    let (fixture, test_volumes) = set_up(options);
    let stop_flag = Rc::<Cell<bool>>::default();
    let violation = Rc::<RefCell<Option<ViolationText>>>::default();
    for (index, test_volume) in test_volumes.iter().enumerate() {
        for client in 0..CLIENTS {
            let random = Random::new(options.seed, CLIENT_STREAM + index as u64 * CLIENTS + client);
            fixture.seam.spawn(run_client(
                fixture.seam.clone(),
                test_volume.clone(),
                client,
                random,
                stop_flag.clone(),
                violation.clone(),
            ));
        }
    }
    fixture.seam.spawn(abandon_map_without_devices(fixture.core.clone()));
    let run_for = |time: Nanos| fixture.world.run_for(time).map_err(|error| format!("{options}: {error}"));
    // Memory fills, and the flash log wraps around.
    run_for(RATE_TIME)?;
    let completed = || test_volumes.iter().map(|test_volume| test_volume.completed.get()).collect::<Vec<_>>();
    let after_warm_up = completed();
    run_for(RATE_TIME)?;
    let before_hang = completed();
    let hung = hung_disks(&fixture, options);
    let ops = if options.reads_only { Ops::READ } else { Ops::ALL };
    hung.iter().for_each(|disk| disk.add_fault(Rule::new(Fault::Hang, ops, When::Always)));
    run_for(options.duration)?;
    let after_hang = completed();
    if let Some(message) = violation.take() {
        return fail(message);
    }
    let wait_max = if options.hung == HungDevice::BothFlashDevices { WAIT_MAX_WITHOUT_FLASH } else { WAIT_MAX };
    for (index, test_volume) in test_volumes.iter().enumerate() {
        if index == 0 && options.hung == HungDevice::Backing {
            continue;
        }
        let longest = test_volume.longest_wait(fixture.world.now());
        if longest > wait_max {
            return fail(format!("a request of volume {index} waited {longest}"));
        }
        if options.hung == HungDevice::BothFlashDevices {
            continue;
        }
        let (before, during) = (before_hang[index] - after_warm_up[index], after_hang[index] - before_hang[index]);
        // Requests in ten seconds.
        let (before, during) =
            (before * 10_000 / RATE_TIME.as_millis(), during * 10_000 / options.duration.as_millis());
        if during * 10 < before * 9 {
            return fail(format!("volume {index} completed {during} requests in ten seconds instead of {before}"));
        }
        if test_volume.failed.get() > 0 {
            return fail(format!("{} requests of volume {index} failed", test_volume.failed.get()));
        }
    }
    if options.crashes {
        return crash(options, fixture, test_volumes);
    }
    for disk in &hung {
        disk.clear_faults();
        disk.complete_hung(Nanos::from_millis(1));
    }
    run_for(RECOVERY_TIME)?;
    stop_flag.set(true);
    run_for(ANSWER_TIME)?;
    for (index, test_volume) in test_volumes.iter().enumerate() {
        let unanswered: Vec<_> = test_volume.in_flight.borrow().values().copied().collect();
        if !unanswered.is_empty() {
            let now = fixture.world.now();
            return fail(format!("requests of volume {index} sent at {unanswered:?} are not answered at {now}"));
        }
        verify(&fixture, test_volume).map_err(|message| format!("{options}: volume {index}: {message}"))?;
    }
    violation.take().map_or(Ok(()), fail)
}

/// Creates a world with volumes and, if drawn, newly formatted flash devices.
fn set_up(options: &HangOptions) -> (Fixture, Vec<Rc<TestVolume>>) {
    let fixture = fixture(options.seed);
    for index in 0..options.volumes {
        fixture.add_disk(&disk_name(index), out_of_order_disk(32 * MIB));
    }
    if let Some(segments) = options.segments {
        let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
        for device in FLASH_DEVICES {
            let disk = SimDiskSpec::new(MIB + segments * SEGMENT_BYTES);
            fixture.add_disk(device, SimDiskSpec { timing, cache: WriteCache::Volatile, ..disk });
        }
        let disks = FLASH_DEVICES.map(|device| MemberDisk::Local(fixture.open(device)));
        let format = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        fixture.world.block_on(Store::format(&fixture.seam, &disks, format)).expect("healthy devices can be formatted");
    }
    let volumes = attach_volumes(&fixture, options);
    let test_volumes = volumes.into_iter().map(|volume| {
        Rc::new(TestVolume {
            volume,
            blocks: RefCell::default(),
            unflushed: RefCell::default(),
            completed: Cell::default(),
            in_flight: RefCell::default(),
            longest_completed: Cell::default(),
            failed: Cell::default(),
        })
    });
    let test_volumes = test_volumes.collect();
    (fixture, test_volumes)
}

/// Names of the flash devices.
const FLASH_DEVICES: [&str; 2] = ["flash0", "flash1"];
const SEGMENT_BYTES: u64 = 256 << 10;

fn disk_name(index: u64) -> String {
    format!("disk{index}")
}

fn fixture(seed: u64) -> Fixture {
    Fixture::new(WorldSpec { blocks: 4_096, ..WorldSpec::new(seed) }, CoreSpec::default())
}

/// Opens the log, if any, and attaches the volumes with their dirty data from it.
fn attach_volumes(fixture: &Fixture, options: &HangOptions) -> Vec<Volume<SimSeam>> {
    if options.segments.is_some() {
        let disks = FLASH_DEVICES.map(|device| MemberDisk::Local(fixture.open(device)));
        let opened = fixture.world.block_on(Store::open(&fixture.seam, &disks, OpenOptions::default()));
        let (store, recovered) = opened.expect("one copy of the log is intact");
        fixture.core.open_log(store, recovered);
    }
    let volumes = (0..options.volumes).map(|index| {
        let backing = engine::Backing::plain(fixture.open(&disk_name(index)));
        let volume = fixture.core.attach_recovered(spec(&disk_name(index), |_| ()), backing);
        fixture.world.block_on(volume).expect("a healthy log is readable")
    });
    volumes.collect()
}

/// Disks that hang.
fn hung_disks(fixture: &Fixture, options: &HangOptions) -> Vec<DiskControl> {
    let first = disk_name(0);
    let names: &[&str] = match options.hung {
        HungDevice::Backing => &[&first],
        HungDevice::OneFlashDevice => &FLASH_DEVICES[..1],
        HungDevice::BothFlashDevices => &FLASH_DEVICES,
    };
    names.iter().map(|name| fixture.world.disk(name).expect("every named disk was added to this world")).collect()
}

/// A client that writes, reads and flushes, one request at a time.
async fn run_client(
    seam: SimSeam,
    test_volume: Rc<TestVolume>,
    client: u64,
    mut random: Random,
    stop_flag: Rc<Cell<bool>>,
    violation: Rc<RefCell<Option<ViolationText>>>,
) {
    while !stop_flag.get() {
        let started_at = seam.now();
        test_volume.in_flight.borrow_mut().insert(client, started_at);
        let block = random.below(BLOCKS) * CLIENTS + client;
        let outcome = match random.below(10) {
            0 => flush(&test_volume).await,
            1..5 => write_block(&test_volume, block).await,
            _ => read_block(&test_volume, block).await,
        };
        test_volume.in_flight.borrow_mut().remove(&client);
        test_volume.longest_completed.set(test_volume.longest_completed.get().max(seam.now().since(started_at)));
        test_volume.completed.set(test_volume.completed.get() + 1);
        match outcome {
            RequestOutcome::Done => {}
            RequestOutcome::Failed => test_volume.failed.set(test_volume.failed.get() + 1),
            RequestOutcome::Violation(message) => *violation.borrow_mut() = Some(message),
        }
        seam.sleep(PAUSE).await;
    }
}

/// Abandons the map of clean pages once no flash device is left, as the daemon does. Until then, writes to backings
/// wait: their regions cannot be marked dirty.
async fn abandon_map_without_devices(core: Core<SimSeam>) {
    let (Some(log), Some(pages)) = (core.log(), core.pages()) else { return };
    while log.copies() > 0 || pages.unusable_reason().is_none() {
        core.seam().sleep(Nanos::from_secs(1)).await;
    }
    pages.abandon();
}

/// Flushes the volume.
async fn flush(test_volume: &TestVolume) -> RequestOutcome {
    let acknowledged: Vec<_> = {
        let blocks = test_volume.blocks.borrow();
        test_volume.unflushed.borrow().iter().map(|block| (*block, blocks[block].acknowledged)).collect()
    };
    let result = test_volume.volume.flush().await;
    if result.is_ok() {
        let (mut blocks, mut unflushed) = (test_volume.blocks.borrow_mut(), test_volume.unflushed.borrow_mut());
        for (block, version) in acknowledged {
            let versions = blocks.entry(block).or_default();
            versions.flushed = versions.flushed.max(version);
            if versions.flushed == versions.acknowledged {
                unflushed.remove(&block);
            }
        }
    }
    RequestOutcome::of_result(&result)
}

/// Writes the next version of a block.
async fn write_block(test_volume: &TestVolume, block: u64) -> RequestOutcome {
    let version = {
        let mut blocks = test_volume.blocks.borrow_mut();
        let versions = blocks.entry(block).or_default();
        versions.sent += 1;
        versions.sent
    };
    let result = write(&test_volume.volume, block * BLOCK_SECTORS, BLOCK_SECTORS, version).await;
    if result.is_ok() {
        test_volume.blocks.borrow_mut().entry(block).or_default().acknowledged = version;
        test_volume.unflushed.borrow_mut().insert(block);
    }
    RequestOutcome::of_result(&result)
}

/// Reads a block and checks its version.
async fn read_block(test_volume: &TestVolume, block: u64) -> RequestOutcome {
    let Ok(tags) = read(&test_volume.volume, block * BLOCK_SECTORS, BLOCK_SECTORS).await else {
        return RequestOutcome::Failed;
    };
    let versions = test_volume.blocks.borrow().get(&block).copied().unwrap_or_default();
    let is_allowed = tags == [tags[0]; SECTORS_PER_BLOCK] && (versions.acknowledged..=versions.sent).contains(&tags[0]);
    if is_allowed {
        return RequestOutcome::Done;
    }
    let acknowledged = versions.acknowledged;
    RequestOutcome::Violation(format!("block {block} reads {tags:?}; version {acknowledged} was acknowledged"))
}

/// Reads every block back. Failed reads are not retried.
fn verify(fixture: &Fixture, test_volume: &TestVolume) -> Result<(), ViolationText> {
    let blocks: Vec<_> = test_volume.blocks.borrow().keys().copied().collect();
    blocks.into_iter().try_for_each(|block| match fixture.world.block_on(read_block(test_volume, block)) {
        RequestOutcome::Done | RequestOutcome::Failed => Ok(()),
        RequestOutcome::Violation(message) => Err(message),
    })
}

/// Crashes the world during the hang and checks that flushed data survived.
fn crash(options: &HangOptions, fixture: Fixture, test_volumes: Vec<Rc<TestVolume>>) -> Result<(), ViolationText> {
    let blocks: Vec<_> = test_volumes.iter().map(|test_volume| test_volume.blocks.take()).collect();
    drop(test_volumes);
    let fixture = fixture.crash(CrashMode::Any, WorldSpec { blocks: 4_096, ..WorldSpec::new(options.seed + 1) });
    let volumes = attach_volumes(&fixture, options);
    for (index, (volume, blocks)) in volumes.iter().zip(blocks).enumerate() {
        for (block, versions) in blocks {
            let tags = fixture.world.block_on(read(volume, block * BLOCK_SECTORS, BLOCK_SECTORS));
            let tags = tags.map_err(|error| format!("{options}: volume {index}, block {block}: {error}"))?;
            // Without two copies writes go to the backing, where a crash may tear a block at a sector boundary.
            let is_allowed = tags.iter().all(|version| (versions.flushed..=versions.sent).contains(version));
            if !is_allowed {
                let BlockVersions { flushed, sent, .. } = versions;
                return Err(format!("{options}: volume {index}, block {block} is {tags:?} of {flushed}..={sent}"));
            }
        }
    }
    Ok(())
}
