//! A disk that hangs beside healthy volumes: from one seed, a world in which a backing, a flash mirror or both mirrors
//! answer nothing for a while or for the rest of it, and what that may cost the others.
//!
//! Healthy volumes keep nine tenths of their rate, and none of their requests waits longer than [`WAIT_MAX`]. Where
//! both mirrors hang, requests wait for the time after which the last one is given up, and no longer. Every client
//! knows what it wrote, so that each read is checked, and what was flushed is there after the end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use engine::{Core, CoreSpec, Volume};
use flash::{FormatOptions, OpenOptions, Store};
use seam::sim::{CrashMode, DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec, WriteCache};
use seam::{Nanos, Seam};

use crate::random::Random;
use crate::rig::{Rig, lively_disk, read, spec, write};

const MIB: u64 = 1 << 20;
/// No request of a healthy volume waits longer: the time after which a mirror that hangs is out, and a second.
const WAIT_MAX: Nanos = Nanos::from_secs(3);
/// The same where both mirrors hang.
const WAIT_MAX_LAST: Nanos = Nanos::from_secs(33);
/// Clients of each volume.
const CLIENTS: u64 = 4;
/// Blocks that a client uses, each CLIENTS apart.
const BLOCKS: u64 = 1_000;
/// Pause between two requests of a client: their rate is theirs, and no disk's.
const PAUSE: Nanos = Nanos::from_millis(40);
/// The rate is taken for so long before the disk hangs.
const BEFORE: Nanos = Nanos::from_secs(10);

/// What hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hung {
    /// The backing of the first volume.
    Backing,
    /// The first of two flash devices.
    Mirror,
    /// Both of them.
    BothMirrors,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct HangOptions {
    /// What else is drawn is drawn from it.
    pub seed: u64,
    /// Volumes, each on a disk of its own.
    pub volumes: u64,
    /// Segments of each of two flash devices, of 256 KiB; none: there is no flash.
    pub segments: Option<u64>,
    /// What hangs.
    pub hung: Hung,
    /// Reads alone hang.
    pub reads_alone: bool,
    /// For how long.
    pub lasts: Nanos,
    /// The world crashes then; else the disk answers what it was asked.
    pub crashes: bool,
}

impl HangOptions {
    /// Draws everything.
    pub fn draw(seed: u64) -> HangOptions {
        let mut random = Random::new(seed, 9_005);
        let segments = random.percent(70).then(|| random.pick(&[60, 200, 400]));
        let hung = match random.below(10) {
            0..4 if segments.is_some() => Hung::Mirror,
            4 | 5 if segments.is_some() => Hung::BothMirrors,
            _ => Hung::Backing,
        };
        HangOptions {
            seed,
            volumes: random.between(2, 4),
            segments,
            hung,
            reads_alone: random.percent(20),
            lasts: Nanos::from_secs(random.between(40, 120)),
            crashes: random.percent(50),
        }
    }
}

impl fmt::Display for HangOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HangOptions { seed, volumes, segments, hung, lasts, .. } = self;
        let what = if self.reads_alone { "reads" } else { "all requests" };
        let end = if self.crashes { "then a crash" } else { "then it answers" };
        write!(f, "seed {seed}: {volumes} volumes, flash {segments:?}, {hung:?} hangs ({what}) for {lasts}, {end}")
    }
}

/// What a client has written to one of its blocks.
#[derive(Clone, Copy, Default)]
struct Written {
    /// The newest version that was acknowledged, and the newest that was sent.
    acknowledged: u64,
    sent: u64,
    /// The newest version that a flush covered.
    flushed: u64,
}

/// One volume and what is known of it.
struct Subject {
    volume: Volume<SimSeam>,
    blocks: RefCell<BTreeMap<u64, Written>>,
    /// Requests that were answered.
    answered: Cell<u64>,
    /// Requests under way, and since when.
    under_way: RefCell<BTreeMap<u64, Nanos>>,
    longest: Cell<Nanos>,
    failed: Cell<u64>,
}

impl Subject {
    /// The longest time that a request has waited, those under way included.
    fn longest(&self, now: Nanos) -> Nanos {
        let waiting = self.under_way.borrow().values().map(|begun| now.since(*begun)).max();
        waiting.unwrap_or_default().max(self.longest.get())
    }
}

/// What is wrong, for people.
pub type Broken = String;

/// Runs it.
pub fn run(options: &HangOptions) -> Result<(), Broken> {
    let told = |what: String| Err(format!("{options}: {what}"));
    let (rig, subjects) = first_life(options);
    let stop = Rc::<Cell<bool>>::default();
    let broken = Rc::<RefCell<Option<Broken>>>::default();
    for (index, subject) in subjects.iter().enumerate() {
        for client in 0..CLIENTS {
            let random = Random::new(options.seed, 9_100 + index as u64 * CLIENTS + client);
            rig.seam.spawn(work(rig.seam.clone(), subject.clone(), client, random, stop.clone(), broken.clone()));
        }
    }
    rig.seam.spawn(give_up_map(rig.core.clone()));
    let pass = |time: Nanos| rig.world.run_for(time).map_err(|stop| format!("{options}: {stop}"));
    // Memory fills, the flash log turns.
    pass(BEFORE)?;
    let counted = || subjects.iter().map(|subject| subject.answered.get()).collect::<Vec<_>>();
    let start = counted();
    pass(BEFORE)?;
    let before = counted();
    let hung = disks(&rig, options);
    let ops = if options.reads_alone { Ops::READ } else { Ops::ALL };
    hung.iter().for_each(|disk| disk.add_fault(Rule::new(Fault::Hang, ops, When::Always)));
    pass(options.lasts)?;
    let after = counted();
    if let Some(what) = broken.take() {
        return told(what);
    }
    let wait_max = if options.hung == Hung::BothMirrors { WAIT_MAX_LAST } else { WAIT_MAX };
    for (index, subject) in subjects.iter().enumerate() {
        if index == 0 && options.hung == Hung::Backing {
            continue;
        }
        let longest = subject.longest(rig.world.now());
        if longest > wait_max {
            return told(format!("a request of volume {index} waited for {longest}"));
        }
        if options.hung == Hung::BothMirrors {
            continue;
        }
        let (was, is) = (before[index] - start[index], after[index] - before[index]);
        // In tenths of requests a second.
        let (was, is) = (was * 10_000 / BEFORE.as_millis(), is * 10_000 / options.lasts.as_millis());
        if is * 10 < was * 9 {
            return told(format!("volume {index} did {is} requests in ten seconds, and {was} before"));
        }
        if subject.failed.get() > 0 {
            return told(format!("{} requests of volume {index} failed", subject.failed.get()));
        }
    }
    if options.crashes {
        return crash(options, rig, subjects);
    }
    for disk in &hung {
        disk.clear_faults();
        disk.answer_hung(Nanos::from_millis(1));
    }
    pass(Nanos::from_secs(5))?;
    stop.set(true);
    pass(Nanos::from_secs(40))?;
    for (index, subject) in subjects.iter().enumerate() {
        let left: Vec<_> = subject.under_way.borrow().values().copied().collect();
        if !left.is_empty() {
            let now = rig.world.now();
            return told(format!("requests of volume {index} since {left:?} are not answered at {now}"));
        }
        verify(&rig, subject).map_err(|what| format!("{options}: volume {index}: {what}"))?;
    }
    broken.take().map_or(Ok(()), told)
}

/// A world with volumes and, if they are wanted, new flash devices.
fn first_life(options: &HangOptions) -> (Rig, Vec<Rc<Subject>>) {
    let rig = rig(options.seed);
    for index in 0..options.volumes {
        rig.add_disk(&name(index), lively_disk(32 * MIB));
    }
    if let Some(segments) = options.segments {
        let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
        for device in FLASH {
            let size = SimDiskSpec::new(MIB + segments * SEGMENT);
            rig.add_disk(device, SimDiskSpec { timing, cache: WriteCache::Volatile, ..size });
        }
        let disks = FLASH.map(|device| rig.open(device));
        let format = FormatOptions { segment_bytes: Some(SEGMENT), ..FormatOptions::default() };
        rig.world.block_on(Store::format(&rig.seam, &disks, format)).expect("they are new");
    }
    let volumes = serve(&rig, options);
    let subjects = volumes.into_iter().map(|volume| {
        Rc::new(Subject {
            volume,
            blocks: RefCell::default(),
            answered: Cell::default(),
            under_way: RefCell::default(),
            longest: Cell::default(),
            failed: Cell::default(),
        })
    });
    let subjects = subjects.collect();
    (rig, subjects)
}

const FLASH: [&str; 2] = ["flash0", "flash1"];
const SEGMENT: u64 = 256 << 10;

fn name(index: u64) -> String {
    format!("disk{index}")
}

fn rig(seed: u64) -> Rig {
    Rig::new(WorldSpec { blocks: 4_096, ..WorldSpec::new(seed) }, CoreSpec::default())
}

/// Opens the log, if there is one, and serves the volumes with what it holds of them.
fn serve(rig: &Rig, options: &HangOptions) -> Vec<Volume<SimSeam>> {
    if options.segments.is_some() {
        let disks = FLASH.map(|device| rig.open(device));
        let opened = rig.world.block_on(Store::open(&rig.seam, &disks, OpenOptions::default()));
        let (store, found) = opened.expect("a copy is whole");
        rig.core.open_log(store, found);
    }
    let volumes = (0..options.volumes).map(|index| {
        let backing = engine::Backing::plain(rig.open(&name(index)));
        let volume = rig.core.attach_recovered(spec(&name(index), |_| ()), backing);
        rig.world.block_on(volume).expect("what the log holds is there")
    });
    volumes.collect()
}

/// The disks that hang.
fn disks(rig: &Rig, options: &HangOptions) -> Vec<DiskControl> {
    let first = name(0);
    let names: &[&str] = match options.hung {
        Hung::Backing => &[&first],
        Hung::Mirror => &FLASH[..1],
        Hung::BothMirrors => &FLASH,
    };
    names.iter().map(|name| rig.world.disk(name).expect("it was added")).collect()
}

/// A client: writes, reads and flushes, one after the other.
async fn work(
    seam: SimSeam,
    subject: Rc<Subject>,
    client: u64,
    mut random: Random,
    stop: Rc<Cell<bool>>,
    broken: Rc<RefCell<Option<Broken>>>,
) {
    while !stop.get() {
        let begun = seam.now();
        subject.under_way.borrow_mut().insert(client, begun);
        let block = random.below(BLOCKS) * CLIENTS + client;
        let outcome = match random.below(10) {
            0 => flush(&subject).await,
            1..5 => put(&subject, block).await,
            _ => get(&subject, block).await,
        };
        subject.under_way.borrow_mut().remove(&client);
        subject.longest.set(subject.longest.get().max(seam.now().since(begun)));
        subject.answered.set(subject.answered.get() + 1);
        match outcome {
            Ok(true) => {}
            Ok(false) => subject.failed.set(subject.failed.get() + 1),
            Err(what) => *broken.borrow_mut() = Some(what),
        }
        seam.sleep(PAUSE).await;
    }
}

/// As the daemon does: once no flash device is left, writes to backings wait until the map of clean pages is given up.
async fn give_up_map(core: Core<SimSeam>) {
    let (Some(log), Some(pages)) = (core.log(), core.pages()) else { return };
    while log.copies() > 0 || pages.failed().is_none() {
        core.seam().sleep(Nanos::from_secs(1)).await;
    }
    pages.abandon();
}

/// False when it failed.
async fn flush(subject: &Subject) -> Result<bool, Broken> {
    let covered: Vec<_> =
        subject.blocks.borrow().iter().map(|(block, written)| (*block, written.acknowledged)).collect();
    let flushed = subject.volume.flush().await.is_ok();
    if flushed {
        let mut blocks = subject.blocks.borrow_mut();
        for (block, version) in covered {
            let written = blocks.entry(block).or_default();
            written.flushed = written.flushed.max(version);
        }
    }
    Ok(flushed)
}

async fn put(subject: &Subject, block: u64) -> Result<bool, Broken> {
    let version = {
        let mut blocks = subject.blocks.borrow_mut();
        let written = blocks.entry(block).or_default();
        written.sent += 1;
        written.sent
    };
    let done = write(&subject.volume, block * 8, 8, version).await.is_ok();
    if done {
        subject.blocks.borrow_mut().entry(block).or_default().acknowledged = version;
    }
    Ok(done)
}

async fn get(subject: &Subject, block: u64) -> Result<bool, Broken> {
    let Ok(found) = read(&subject.volume, block * 8, 8).await else { return Ok(false) };
    let written = subject.blocks.borrow().get(&block).copied().unwrap_or_default();
    let is_right = found == [found[0]; 8] && (written.acknowledged..=written.sent).contains(&found[0]);
    match is_right {
        true => Ok(true),
        false => Err(format!("block {block} reads {found:?}; version {} was acknowledged", written.acknowledged)),
    }
}

/// Reads everything back. What had failed is not asked for again.
fn verify(rig: &Rig, subject: &Subject) -> Result<(), Broken> {
    let blocks: Vec<_> = subject.blocks.borrow().keys().copied().collect();
    blocks.into_iter().try_for_each(|block| rig.world.block_on(get(subject, block)).map(drop))
}

/// The world loses its power while the disk hangs; what was flushed has to be there.
fn crash(options: &HangOptions, rig: Rig, subjects: Vec<Rc<Subject>>) -> Result<(), Broken> {
    let blocks: Vec<_> = subjects.iter().map(|subject| subject.blocks.take()).collect();
    drop(subjects);
    let rig = rig.crash(CrashMode::Any, WorldSpec { blocks: 4_096, ..WorldSpec::new(options.seed + 1) });
    let volumes = serve(&rig, options);
    for (index, (volume, blocks)) in volumes.iter().zip(blocks).enumerate() {
        for (block, written) in blocks {
            let found = rig.world.block_on(read(volume, block * 8, 8));
            let found = found.map_err(|error| format!("{options}: volume {index}, block {block}: {error}"))?;
            // Without two copies writes go to the backing, which may tear a block down to a sector.
            let is_right = found.iter().all(|version| (written.flushed..=written.sent).contains(version));
            if !is_right {
                let Written { flushed, sent, .. } = written;
                return Err(format!("{options}: volume {index}, block {block} is {found:?} of {flushed}..={sent}"));
            }
        }
    }
    Ok(())
}
