//! The load of the week: office hours, nights, and a set that drifts around the clock.

use pool::heat::PER_ACCESS;
use pool::heat::RequestDemand;
use seam::sim::Rng;

/// Minutes of an hour and of a day.
pub const HOUR: u64 = 60;
pub const DAY: u64 = 24 * HOUR;
/// Minutes of a step of the simulation.
pub const STEP: u64 = 15;

/// Slices that hold data.
pub const SLICES: u64 = 30_000;

/// A set of slices with a skewed load, of which some are replaced over time.
struct WorkingSet {
    slices: Vec<usize>,
    /// Random requests a minute of the whole set at full load.
    per_minute: u64,
    writes_percent: u64,
    /// Minutes between replacements, and slices replaced.
    replace_every: u64,
    replaced: usize,
}

/// The three sets, a nightly scan and background requests.
pub struct Load {
    office: WorkingSet,
    night: WorkingSet,
    web: WorkingSet,
    rng: Rng,
}

impl WorkingSet {
    fn new(rng: &Rng, size: usize, per_minute: u64, writes_percent: u64, replace: (u64, usize)) -> WorkingSet {
        let slices = (0..size).map(|_| rng.below(SLICES) as usize).collect();
        WorkingSet { slices, per_minute, writes_percent, replace_every: replace.0, replaced: replace.1 }
    }

    /// Requests of one step at `percent` of the full load. The slice at position i of n gets a share of
    /// (n - i)^2: half of the load is on a fifth of the set.
    fn step(&mut self, rng: &Rng, minute: u64, percent: u64, emit: &mut impl FnMut(usize, RequestDemand)) {
        if minute > 0 && minute.is_multiple_of(self.replace_every) {
            for _ in 0..self.replaced {
                let position = rng.below(self.slices.len() as u64) as usize;
                self.slices[position] = rng.below(SLICES) as usize;
            }
        }
        if percent == 0 {
            return;
        }
        let size = self.slices.len() as u64;
        let weights = size * (size + 1) * (2 * size + 1) / 6;
        for (position, slice) in self.slices.iter().enumerate() {
            let weight = (size - position as u64).pow(2);
            let mean_milli = STEP * self.per_minute * percent * 10 * weight / weights;
            // Uniform between 0 and twice the mean.
            let requests = (rng.below(2 * mean_milli + 1) + rng.below(1_000)) / 1_000;
            let writes = requests * self.writes_percent / 100;
            for (is_write, count) in [(false, requests - writes), (true, writes)] {
                if count > 0 {
                    emit(*slice, RequestDemand { is_write, accesses: count * PER_ACCESS, bytes: count * 8192 });
                }
            }
        }
    }
}

impl Load {
    pub fn new(seed: u64) -> Load {
        let rng = Rng::new(seed, 10);
        Load {
            office: WorkingSet::new(&rng, 1_100, 90_000, 30, (DAY, 150)),
            night: WorkingSet::new(&rng, 900, 60_000, 15, (DAY, 250)),
            web: WorkingSet::new(&rng, 600, 40_000, 5, (6 * HOUR, 30)),
            rng,
        }
    }

    /// Requests of a step of the week, which begins on Monday.
    pub fn step(&mut self, minute: u64, mut emit: impl FnMut(usize, RequestDemand)) {
        let (day, hour) = (minute / DAY, minute % DAY / HOUR);
        let office = if day >= 5 { 5 } else { [10, 100][usize::from((8..18).contains(&hour))] };
        let night = if (22..24).contains(&hour) || hour < 6 { 100 } else { 2 };
        let web = 60 + if (10..23).contains(&hour) { 40 } else { 0 };
        self.office.step(&self.rng, minute, office, &mut emit);
        self.night.step(&self.rng, minute, night, &mut emit);
        self.web.step(&self.rng, minute, web, &mut emit);
        // A nightly backup reads everything once, in order.
        if (1..4).contains(&hour) {
            let per_minute = SLICES / (3 * HOUR);
            let first = (minute % DAY - HOUR) * per_minute;
            for slice in first..first + STEP * per_minute {
                emit(slice as usize, RequestDemand::sequential(false, 64 << 20));
            }
        }
        for _ in 0..STEP * 200 {
            emit(self.rng.below(SLICES) as usize, RequestDemand::random(false, 8192));
        }
    }
}
