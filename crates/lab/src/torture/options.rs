//! What is drawn from a seed: everything that a run depends on, so that it can be printed, repeated and shrunk.

use std::fmt;

use engine::WritePolicy;
use seam::Nanos;
use seam::sim::{CrashMode, Fault, TaskOrder};

use super::flash::FlashOptions;
use super::hang::HangOptions;
use super::site::SiteOptions;
use crate::random::Random;

/// Client operations of a run, over all its lives.
pub const OPERATIONS: u64 = 1_000;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Crash when the world has reached this many submissions and completions of I/O, or all operations are spent.
    CrashAtIo(u64),
    /// Crash in the middle of things as soon as all operations are spent.
    Crash,
    /// Crash while the orderly stop is under way, this many I/Os after it began.
    CrashInStop(u64),
    /// All volumes are detached and held against their backings.
    Orderly,
    /// What is dirty is left in the flash log.
    Park,
    /// Clients are done; what comes then is for the caller.
    Work,
}

/// A kind of trouble that the world makes now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// For a while some requests fail.
    Errors,
    /// For a while all requests fail.
    Outage,
    /// Some flushes fail.
    FlushErrors,
    /// Some sectors cannot be read.
    UnreadableSectors,
    /// Some sectors can be neither read nor written.
    BadSectors,
    /// Some requests take long.
    Stalls,
    /// The backing reconnects and forgets what was not flushed.
    Reconnects,
    /// For a while no request is answered.
    Hangs,
}

impl Trouble {
    /// Those that are drawn one by one; hangs are drawn apart.
    const DRAWN: [Trouble; 7] = [
        Trouble::Errors,
        Trouble::Outage,
        Trouble::FlushErrors,
        Trouble::UnreadableSectors,
        Trouble::BadSectors,
        Trouble::Stalls,
        Trouble::Reconnects,
    ];
}

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Its size at first; a multiple of `logical_block`.
    pub size_bytes: u64,
    /// Content was there before.
    pub filled: bool,
    /// Of the backing: 512 or 4096.
    pub logical_block: u32,
    /// At first.
    pub policy: WritePolicy,
    /// Age of write-back-volatile.
    pub defer: Nanos,
    /// The backing keeps what was written in a volatile cache until a flush.
    pub volatile_cache: bool,
    /// What a request to the backing takes, at least and at most.
    pub latency: (Nanos, Nanos),
    /// Clients' accesses crowd on the first sectors, in percent of the volume.
    pub region_percent: u32,
}

/// Everything drawn.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it was drawn from, and what everything else is drawn from.
    pub seed: u64,
    /// Client operations in all.
    pub operations: u64,
    /// How each life ends, in turn.
    pub lives: Vec<End>,
    /// Clients of each life, spread over the volumes.
    pub clients: u16,
    /// Largest request of a client, in bytes.
    pub length_max: u64,
    /// Some requests say that nobody will ask for the same soon.
    pub once: bool,
    /// Which ready task runs next.
    pub order: TaskOrder,
    /// Buffers, in blocks.
    pub pool_blocks: usize,
    /// Of the core.
    pub dirty_max_percent: u32,
    /// Of the core.
    pub dirty_age_max: Nanos,
    /// Of the core.
    pub readahead_max_bytes: u64,
    /// Troubles that may come.
    pub troubles: Vec<Trouble>,
    /// Pause between two troubles.
    pub trouble_pause: Nanos,
    /// Administrators are at work.
    pub admin: bool,
    /// Volumes grow and shrink.
    pub resizes: bool,
    /// What every crash leaves; `None`: drawn crash by crash.
    pub crash_mode: Option<CrashMode>,
    /// Memory outlives the process: a kill loses nothing that was acknowledged.
    pub keeps: bool,
    /// A canary: what the backings do to one in fifty requests and say nothing, so that a test sees the harness notice. Never drawn.
    pub canary: Option<Fault>,
    /// The flash log, if there is one.
    pub flash: Option<FlashOptions>,
    /// An administrator is at work between lives.
    pub site: Option<SiteOptions>,
    /// A world of its own in which a disk hangs beside healthy volumes, after the lives.
    pub hang: Option<HangOptions>,
    /// The volumes.
    pub volumes: Vec<VolumeOptions>,
}

impl Options {
    /// In one run of three everybody waits for everybody, and the first volume for its limit.
    pub fn contends(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Draws everything. One run in eight has an administrator between its lives.
    pub fn draw(seed: u64) -> Options {
        if seed % 8 == 7 { Options::draw_site(seed) } else { Options::draw_lives(seed) }
    }

    /// Draws a run with an administrator between its lives.
    pub fn draw_site(seed: u64) -> Options {
        SiteOptions::draw(seed).apply(Options::draw_lives(seed))
    }

    fn draw_lives(seed: u64) -> Options {
        let mut random = Random::new(seed, 0);
        let random = &mut random;
        let volumes: Vec<_> = (0..random.pick(&[1, 1, 1, 2])).map(|_| VolumeOptions::draw(random)).collect();
        let trouble = random.percent(60);
        let mut troubles: Vec<_> = Trouble::DRAWN.into_iter().filter(|_| trouble && random.percent(35)).collect();
        if Random::new(seed, 9_006).percent(20) {
            troubles.push(Trouble::Hangs);
        }
        let lives = random.between(2, 5);
        let clients = random.between(1, 8);
        let length_max = random.pick(&[4096, 16 << 10, 64 << 10, 256 << 10]);
        let least = pool_blocks_min(clients, length_max);
        let flash = FlashOptions::draw(seed);
        Options {
            seed,
            operations: OPERATIONS,
            lives: (0..lives).map(|life| draw_end(random, life + 1 == lives)).collect(),
            clients: clients as u16,
            length_max,
            once: Random::new(seed, 9_002).percent(25),
            order: if random.percent(75) { TaskOrder::Seeded } else { TaskOrder::Fifo },
            pool_blocks: (least + random.pick(&[0, 100, 500, 2_000])) as usize,
            dirty_max_percent: random.pick(&[5, 10, 25, 50, 80]),
            dirty_age_max: Nanos::from_millis(random.pick(&[1, 20, 500, 10_000])),
            readahead_max_bytes: random.pick(&[0, 64 << 10, 256 << 10, 1 << 20]),
            troubles,
            trouble_pause: Nanos::from_micros(random.pick(&[500, 5_000, 50_000])),
            admin: random.percent(60),
            resizes: random.percent(30),
            crash_mode: None,
            keeps: Random::new(seed, 9_003).percent(if flash.is_none() { 60 } else { 40 }),
            canary: None,
            flash,
            site: None,
            hang: (seed % 5 == 4).then(|| HangOptions::draw(seed)),
            volumes,
        }
    }
}

/// Every client may hold one request's blocks and wait for another's; so may the reader of the whole volume.
pub fn pool_blocks_min(clients: u64, length_max: u64) -> u64 {
    (clients + 2) * 2 * (length_max / 4096 + 2) + 128
}

fn draw_end(random: &mut Random, last: bool) -> End {
    match random.below(10) {
        0..3 if !last => End::CrashAtIo(random.between(1, 1500)),
        3..6 if !last => End::Crash,
        6 | 7 if !last => End::CrashInStop(random.between(1, 40)),
        _ => End::Orderly,
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
        writeln!(f, "seed {}: {} operations, lives end {:?}", self.seed, self.operations, self.lives)?;
        let once = if self.once { ", some asked for once" } else { "" };
        writeln!(
            f,
            "  clients {}, requests up to {} bytes{once}, tasks {:?}",
            self.clients, self.length_max, self.order
        )?;
        let pool = (self.pool_blocks * seam::BLOCK_BYTES) >> 10;
        write!(f, "  memory {pool} KiB, dirty at most {} % and ", self.dirty_max_percent)?;
        writeln!(f, "{}, readahead up to {} bytes", self.dirty_age_max, self.readahead_max_bytes)?;
        writeln!(
            f,
            "  troubles {:?} every {}, admin {}, resizes {}",
            self.troubles, self.trouble_pause, self.admin, self.resizes
        )?;
        if let Some(flash) = &self.flash {
            writeln!(f, "  {flash}")?;
        }
        if let Some(mode) = self.crash_mode {
            writeln!(f, "  every crash leaves {mode:?}")?;
        }
        if self.keeps {
            writeln!(f, "  memory outlives the process")?;
        }
        if let Some(site) = &self.site {
            writeln!(f, "  {site}")?;
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
            writeln!(f, ", accesses crowd on {} %", volume.region_percent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_options_and_every_kind_occurs() {
        let all: Vec<Options> = (0..500).map(Options::draw).collect();
        assert_eq!(all[7].to_string(), Options::draw(7).to_string());
        for (_, policy) in WritePolicy::ALL {
            assert!(all.iter().any(|options| options.volumes[0].policy == policy), "{policy} never occurs");
        }
        for trouble in Trouble::DRAWN.into_iter().chain([Trouble::Hangs]) {
            assert!(all.iter().any(|options| options.troubles.contains(&trouble)), "{trouble:?} never occurs");
        }
        assert!(all.iter().any(|options| options.volumes[0].size_bytes % 4096 != 0));
        assert!(all.iter().all(|options| options.lives.last() == Some(&End::Orderly)));
    }
}
