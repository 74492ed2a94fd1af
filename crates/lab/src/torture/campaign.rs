//! Runs many seeds on several threads until all are done, one violates a promise, or the time is over.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::spec::Sabotage;
use seam::sim::TraceMode;

use super::{Options, Report, Violation, run, shrink};

/// Parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Seeds, each run once.
    pub seeds: Range<u64>,
    /// Real time after which the campaign ends, even if seeds are left.
    pub time_max: Option<Duration>,
    /// Threads to run on; 0 counts as 1.
    pub threads: usize,
    /// A fault to build into the engine.
    pub sabotage: Sabotage,
    /// True: an administrator acts between the sessions of every run; false: of one run in eight.
    pub with_administrator: bool,
}

/// Result of a campaign.
#[derive(Debug, Default)]
pub struct Summary {
    /// Totals of the seeds without a violation; no trace.
    pub report: Report,
    /// The first violation, shrunk.
    pub violation: Option<Box<Violation>>,
}

/// Runs a campaign. Each thread calls `progress` with the number of finished seeds from time to time.
pub fn campaign(campaign: &Campaign, progress: impl Fn(u64) + Sync) -> Summary {
    let next = AtomicU64::new(campaign.seeds.start);
    let has_violation = AtomicBool::new(false);
    let timer = Timer::start(campaign.time_max);
    let run_seeds = || {
        let mut summary = Summary::default();
        while !has_violation.load(Ordering::Relaxed) && !timer.is_over() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= campaign.seeds.end {
                break;
            }
            let options =
                if campaign.with_administrator { Options::draw_with_administrator(seed) } else { Options::draw(seed) };
            match run(&options, campaign.sabotage, TraceMode::Hash) {
                Ok(report) => summary.add(&report),
                Err(violation) => {
                    has_violation.store(true, Ordering::Relaxed);
                    summary.violation = Some(violation);
                }
            }
            if seed.is_multiple_of(100) {
                progress(seed - campaign.seeds.start);
            }
        }
        summary
    };
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..campaign.threads.max(1)).map(|_| scope.spawn(run_seeds)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a campaign thread does not panic")).collect()
    });
    let mut total = Summary::default();
    for summary in summaries {
        total.add(&summary.report);
        let seed_of = |violation: &Violation| violation.options.seed;
        let lowest = total.violation.as_deref().map_or(u64::MAX, seed_of);
        if let Some(violation) = summary.violation.filter(|violation| violation.options.seed < lowest) {
            total.violation = Some(violation);
        }
    }
    total.violation = total.violation.map(shrink);
    total
}

impl Summary {
    fn add(&mut self, other: &Report) {
        let total = &mut self.report;
        total.seeds += other.seeds;
        total.sessions += other.sessions;
        total.operations += other.operations;
        total.promotions += other.promotions;
        total.share_waits += other.share_waits;
        total.limit_waits += other.limit_waits;
        total.recovered_from_memory += other.recovered_from_memory;
        total.refusals += other.refusals;
        total.administrator_actions += other.administrator_actions;
        total.flash_blocks_read += other.flash_blocks_read;
        total.kept_blocks_read += other.kept_blocks_read;
        total.backing_requests += other.backing_requests;
        total.virtual_time += other.virtual_time;
        total.trace_hash ^= other.trace_hash;
    }
}

/// The real clock of a campaign; a single run uses virtual time only.
struct Timer(Option<std::time::Instant>);

impl Timer {
    fn start(limit: Option<Duration>) -> Timer {
        #[expect(clippy::disallowed_methods, reason = "the time limit of a campaign is real time")]
        Timer(limit.map(|limit| std::time::Instant::now() + limit))
    }

    fn is_over(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "the time limit of a campaign is real time")]
        self.0.is_some_and(|end| std::time::Instant::now() >= end)
    }
}
