//! Options drawn from a seed: everything that a run depends on, so that a run can be printed, repeated and shrunk.

use std::fmt;

use engine::WritePolicy;
use seam::Nanos;
use seam::sim::{CrashMode, Fault, TaskOrder};

use super::deployment::DeploymentOptions;
use super::flash::FlashOptions;
use super::hang::HangOptions;
use crate::random::Random;

/// Client operations of a run, over all its sessions.
pub const OPERATIONS: u64 = 1_000;

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Crash at this number of I/O submissions and completions, or when the operations are used up.
    CrashAtIo(u64),
    /// Crash with requests in flight as soon as the operations are used up.
    Crash,
    /// Crash during the clean stop, after this many I/Os of the stop.
    CrashInStop(u64),
    /// Clean stop: all volumes are detached and checked against their backings.
    CleanStop,
    /// Stop that leaves dirty data in the flash log.
    LeaveInLog,
    /// Ends when the clients have ended; the caller continues.
    ClientsEnded,
}

/// A kind of fault that the world injects from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Some requests fail for a while.
    Errors,
    /// All requests fail for a while.
    Outage,
    /// Some flushes fail.
    FlushErrors,
    /// Some sectors cannot be read.
    UnreadableSectors,
    /// Some sectors can neither be read nor written.
    BadSectors,
    /// Some requests are slow.
    Stalls,
    /// The backing reconnects and loses its unflushed data.
    Reconnects,
    /// No request is answered for a while.
    Hangs,
}

impl FaultKind {
    /// Kinds that are drawn one by one; hangs are drawn separately.
    const DRAWN: [FaultKind; 7] = [
        FaultKind::Errors,
        FaultKind::Outage,
        FaultKind::FlushErrors,
        FaultKind::UnreadableSectors,
        FaultKind::BadSectors,
        FaultKind::Stalls,
        FaultKind::Reconnects,
    ];
}

/// Options of one volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Initial size, a multiple of `logical_block`.
    pub size_bytes: u64,
    /// True when the backing holds initial content.
    pub filled: bool,
    /// Logical block size of the backing: 512 or 4096.
    pub logical_block: u32,
    /// Initial write policy.
    pub policy: WritePolicy,
    /// Deferral time of write-back-volatile.
    pub defer: Nanos,
    /// True when the backing keeps writes in a volatile cache until a flush.
    pub volatile_cache: bool,
    /// Shortest and longest latency of a request to the backing.
    pub latency: (Nanos, Nanos),
    /// Size of the region at the start of the volume that receives most accesses, in percent of the volume.
    pub region_percent: u32,
}

/// All drawn options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of these options and of all further draws.
    pub seed: u64,
    /// Total client operations.
    pub operations: u64,
    /// Ends of the sessions, in order.
    pub sessions: Vec<SessionEnd>,
    /// Clients per session, spread over the volumes.
    pub clients: u16,
    /// Largest client request in bytes.
    pub length_max: u64,
    /// True when the first client writes a sequential stream.
    pub has_stream: bool,
    /// True when some requests are marked as accessed once.
    pub once: bool,
    /// Order in which ready tasks run.
    pub order: TaskOrder,
    /// Size of the buffer pool in blocks.
    pub pool_blocks: usize,
    /// [`engine::CoreSpec::dirty_max_percent`].
    pub dirty_max_percent: u32,
    /// [`engine::CoreSpec::dirty_age_max`].
    pub dirty_age_max: Nanos,
    /// [`engine::CoreSpec::readahead_max_bytes`].
    pub readahead_max_bytes: u64,
    /// Kinds of faults that may be injected.
    pub faults: Vec<FaultKind>,
    /// Longest pause between two faults.
    pub fault_pause: Nanos,
    /// True when administrators act on the volumes.
    pub admin: bool,
    /// True when volumes are resized.
    pub resizes: bool,
    /// Mode of every crash; `None` draws it at each crash.
    pub crash_mode: Option<CrashMode>,
    /// True when memory survives the process, so that a kill loses no acknowledged write.
    pub keeps_memory: bool,
    /// A canary: a silent fault of one in fifty backing requests, which lets a test prove that the harness can fail.
    /// Never drawn.
    pub canary: Option<Fault>,
    /// Options of the flash log, if there is one.
    pub flash: Option<FlashOptions>,
    /// An administrator that acts between sessions.
    pub deployment: Option<DeploymentOptions>,
    /// A separate world with a hung disk beside healthy volumes, run after the sessions.
    pub hang: Option<HangOptions>,
    /// Options of the volumes.
    pub volumes: Vec<VolumeOptions>,
}

impl Options {
    /// True in one run of three: all volumes contend for the datastore, and the first volume has a limit.
    pub fn contends(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Draws all options. One run in eight has an administrator between its sessions.
    pub fn draw(seed: u64) -> Options {
        if seed % 8 == 7 { Options::draw_with_administrator(seed) } else { Options::draw_sessions(seed) }
    }

    /// Draws a run with an administrator between its sessions.
    pub fn draw_with_administrator(seed: u64) -> Options {
        DeploymentOptions::draw(seed).apply(Options::draw_sessions(seed))
    }

    fn draw_sessions(seed: u64) -> Options {
        let mut random = Random::new(seed, 0);
        let random = &mut random;
        let volumes: Vec<_> = (0..random.pick(&[1, 1, 1, 2])).map(|_| VolumeOptions::draw(random)).collect();
        let has_faults = random.percent(60);
        let mut faults: Vec<_> = FaultKind::DRAWN.into_iter().filter(|_| has_faults && random.percent(35)).collect();
        if Random::new(seed, 9_006).percent(20) {
            faults.push(FaultKind::Hangs);
        }
        let sessions = random.between(2, 5);
        let clients = random.between(1, 8);
        let length_max = random.pick(&[4096, 16 << 10, 64 << 10, 256 << 10]);
        let blocks_min = pool_blocks_min(clients, length_max);
        let flash = FlashOptions::draw(seed);
        Options {
            seed,
            operations: OPERATIONS,
            sessions: (0..sessions).map(|session| draw_end(random, session + 1 == sessions)).collect(),
            clients: clients as u16,
            length_max,
            has_stream: Random::new(seed, 9_008).percent(40),
            once: Random::new(seed, 9_002).percent(25),
            order: if random.percent(75) { TaskOrder::Seeded } else { TaskOrder::Fifo },
            pool_blocks: (blocks_min + random.pick(&[0, 100, 500, 2_000])) as usize,
            dirty_max_percent: random.pick(&[5, 10, 25, 50, 80]),
            dirty_age_max: Nanos::from_millis(random.pick(&[1, 20, 500, 10_000])),
            readahead_max_bytes: random.pick(&[0, 64 << 10, 256 << 10, 1 << 20]),
            faults,
            fault_pause: Nanos::from_micros(random.pick(&[500, 5_000, 50_000])),
            admin: random.percent(60),
            resizes: random.percent(30),
            crash_mode: None,
            keeps_memory: Random::new(seed, 9_003).percent(if flash.is_none() { 60 } else { 40 }),
            canary: None,
            flash,
            deployment: None,
            hang: (seed % 5 == 4).then(|| HangOptions::draw(seed)),
            volumes,
        }
    }
}

/// Smallest pool in which every client, and the reader of the whole volume, can hold one request's blocks and wait for
/// another's.
pub fn pool_blocks_min(clients: u64, length_max: u64) -> u64 {
    (clients + 2) * 2 * (length_max / 4096 + 2) + 128
}

fn draw_end(random: &mut Random, last: bool) -> SessionEnd {
    match random.below(10) {
        0..3 if !last => SessionEnd::CrashAtIo(random.between(1, 1500)),
        3..6 if !last => SessionEnd::Crash,
        6 | 7 if !last => SessionEnd::CrashInStop(random.between(1, 40)),
        _ => SessionEnd::CleanStop,
    }
}

impl VolumeOptions {
    fn draw(random: &mut Random) -> VolumeOptions {
        let logical_block = random.pick(&[512, 512, 4096]);
        let whole = random.between(64, 1024) * 4096;
        let odd = if random.percent(40) { random.between(1, 7) * 512 } else { 0 };
        let fast = Nanos::from_micros(random.pick(&[10, 100, 1_000]));
        VolumeOptions {
            size_bytes: if logical_block == 512 { whole + odd } else { whole },
            filled: random.percent(50),
            logical_block,
            policy: match random.below(10) {
                0..6 => WritePolicy::WriteBack,
                other => WritePolicy::ALL[other as usize - 5].1,
            },
            defer: Nanos::from_millis(random.pick(&[50, 1_000, 10_000])),
            volatile_cache: random.percent(80),
            latency: (fast, Nanos(fast.0 * random.pick(&[1, 3, 20]))),
            region_percent: random.pick(&[2, 10, 30, 100]),
        }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} operations, sessions end {:?}", self.seed, self.operations, self.sessions)?;
        let marked = if self.once { ", some accessed once" } else { "" };
        writeln!(
            f,
            "  clients {}, requests up to {} bytes{marked}, tasks {:?}",
            self.clients, self.length_max, self.order
        )?;
        let pool = (self.pool_blocks * seam::BLOCK_BYTES) >> 10;
        write!(f, "  memory {pool} KiB, dirty at most {} % and ", self.dirty_max_percent)?;
        writeln!(f, "{}, readahead up to {} bytes", self.dirty_age_max, self.readahead_max_bytes)?;
        writeln!(
            f,
            "  faults {:?} every {}, admin {}, resizes {}",
            self.faults, self.fault_pause, self.admin, self.resizes
        )?;
        if let Some(flash) = &self.flash {
            writeln!(f, "  {flash}")?;
        }
        if let Some(mode) = self.crash_mode {
            writeln!(f, "  every crash leaves {mode:?}")?;
        }
        if self.keeps_memory {
            writeln!(f, "  memory survives the process")?;
        }
        if let Some(deployment) = &self.deployment {
            writeln!(f, "  {deployment}")?;
        }
        if let Some(hang) = &self.hang {
            writeln!(f, "  a hang: {hang}")?;
        }
        if let Some(fault) = self.canary {
            writeln!(f, "  canary {fault:?}")?;
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let content = if volume.filled { "filled" } else { "empty" };
            write!(f, "  volume {}: {} bytes, {content}, {}", number + 1, volume.size_bytes, volume.policy)?;
            write!(f, " (defer {}), backing of {} byte blocks", volume.defer, volume.logical_block)?;
            let cache = if volume.volatile_cache { "with a volatile cache" } else { "without a volatile cache" };
            write!(f, " {cache}, {} to {}", volume.latency.0, volume.latency.1)?;
            writeln!(f, ", hot region {} %", volume.region_percent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_draw_equal_options_and_every_kind_occurs() {
        let drawn: Vec<Options> = (0..500).map(Options::draw).collect();
        assert_eq!(drawn[7].to_string(), Options::draw(7).to_string());
        for (_, policy) in WritePolicy::ALL {
            assert!(drawn.iter().any(|options| options.volumes[0].policy == policy), "{policy} never occurs");
        }
        for fault in FaultKind::DRAWN.into_iter().chain([FaultKind::Hangs]) {
            assert!(drawn.iter().any(|options| options.faults.contains(&fault)), "{fault:?} never occurs");
        }
        assert!(drawn.iter().any(|options| options.volumes[0].size_bytes % 4096 != 0));
        assert!(drawn.iter().all(|options| options.sessions.last() == Some(&SessionEnd::CleanStop)));
    }
}
