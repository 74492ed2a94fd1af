//! The load of the week: office hours, nights, a set that drifts around the clock, and a nightly backup.

use crate::random::Random;

/// Hours of the week, which begins on Monday.
pub const HOURS: u64 = 7 * 24;
/// Seconds of a step.
pub const STEP_SECS: u64 = 900;
/// Steps of an hour.
pub const STEPS_PER_HOUR: u64 = 3_600 / STEP_SECS;
/// Slices that hold data.
pub const SLICES: u64 = 3_000;

/// Divisor of the requests of a pool of 30,000 slices of 64 MiB.
const REQUESTS_DIVISOR: u64 = 640;
const STEP_MINUTES: u64 = STEP_SECS / 60;
const STEPS_PER_DAY: u64 = 24 * STEPS_PER_HOUR;
/// Steps of the nightly backup, from one o'clock to four.
const BACKUP_STEPS: std::ops::Range<u64> = STEPS_PER_HOUR..4 * STEPS_PER_HOUR;
const RANDOM_BYTES: u64 = 8_192;
const BACKUP_BYTES: u64 = 256 << 10;
const SLICE_BYTES: u64 = 1 << 20;

/// A request of the week.
#[derive(Clone, Copy, Debug)]
pub struct WeekRequest {
    /// Index of the slice.
    pub slice: u64,
    /// Byte offset in the slice.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// True for a write.
    pub is_write: bool,
    /// It continues the backup's stream.
    pub is_sequential: bool,
}

/// A set of slices with a skewed load, of which some are replaced over time.
struct WorkingSet {
    slices: Vec<u64>,
    /// Random requests a minute at full load, before the divisor.
    per_minute: u64,
    writes_percent: u32,
    /// Steps between replacements, and slices replaced.
    replace_every: u64,
    replaced: u64,
}

/// The three sets, the backup and background requests.
pub struct Load {
    office: WorkingSet,
    night: WorkingSet,
    web: WorkingSet,
    random: Random,
}

impl WorkingSet {
    fn new(random: &mut Random, size: u64, per_minute: u64, writes_percent: u32, replace: (u64, u64)) -> WorkingSet {
        let slices = (0..size).map(|_| random.below(SLICES)).collect();
        WorkingSet { slices, per_minute, writes_percent, replace_every: replace.0, replaced: replace.1 }
    }

    /// Adds the requests of a step at `percent` of the full load. The slice at position i of n gets a share of
    /// (n - i)^2: half of the load is on a fifth of the set.
    fn step(&mut self, random: &mut Random, step: u64, percent: u64, out: &mut Vec<WeekRequest>) {
        if step > 0 && step.is_multiple_of(self.replace_every) {
            for _ in 0..self.replaced {
                let position = random.below(self.slices.len() as u64) as usize;
                self.slices[position] = random.below(SLICES);
            }
        }
        let size = self.slices.len() as u64;
        let weights = size * (size + 1) * (2 * size + 1) / 6;
        for (position, slice) in self.slices.iter().enumerate() {
            let weight = (size - position as u64).pow(2);
            let mean_milli = STEP_MINUTES * self.per_minute * percent * 10 * weight / weights / REQUESTS_DIVISOR;
            // Uniform between 0 and twice the mean.
            let requests = (random.below(2 * mean_milli + 1) + random.below(1_000)) / 1_000;
            for _ in 0..requests {
                out.push(random_request(random, *slice, self.writes_percent));
            }
        }
    }
}

fn random_request(random: &mut Random, slice: u64, writes_percent: u32) -> WeekRequest {
    let offset = random.below(SLICE_BYTES / RANDOM_BYTES) * RANDOM_BYTES;
    let is_write = random.percent(writes_percent);
    WeekRequest { slice, offset, len: RANDOM_BYTES, is_write, is_sequential: false }
}

impl Load {
    /// The load of a seed.
    pub fn new(seed: u64) -> Load {
        let mut random = Random::new(seed, 10);
        Load {
            office: WorkingSet::new(&mut random, 110, 90_000, 30, (STEPS_PER_DAY, 15)),
            night: WorkingSet::new(&mut random, 90, 60_000, 15, (STEPS_PER_DAY, 25)),
            web: WorkingSet::new(&mut random, 60, 40_000, 5, (6 * STEPS_PER_HOUR, 3)),
            random,
        }
    }

    /// Requests of a step of the week in the order in which they are sent.
    pub fn step(&mut self, step: u64) -> Vec<WeekRequest> {
        let (day, hour) = (step / STEPS_PER_DAY, step % STEPS_PER_DAY / STEPS_PER_HOUR);
        let office = if day >= 5 { 5 } else { [10, 100][usize::from((8..18).contains(&hour))] };
        let night = if (6..22).contains(&hour) { 2 } else { 100 };
        let web = 60 + if (10..23).contains(&hour) { 40 } else { 0 };
        let (random, mut requests) = (&mut self.random, Vec::new());
        self.office.step(random, step, office, &mut requests);
        self.night.step(random, step, night, &mut requests);
        self.web.step(random, step, web, &mut requests);
        for _ in 0..STEP_MINUTES * 200 / REQUESTS_DIVISOR {
            let slice = random.below(SLICES);
            requests.push(random_request(random, slice, 0));
        }
        (1..requests.len()).rev().for_each(|index| requests.swap(index, random.below(index as u64 + 1) as usize));
        // The backup reads everything once, in order, between the other requests.
        let step_of_day = step % STEPS_PER_DAY;
        if BACKUP_STEPS.contains(&step_of_day) {
            requests = mix(requests, backup(step_of_day - BACKUP_STEPS.start));
        }
        requests
    }
}

/// The backup's requests in one of its steps.
fn backup(step: u64) -> Vec<WeekRequest> {
    let slices_per_step = SLICES / (BACKUP_STEPS.end - BACKUP_STEPS.start);
    let slices = step * slices_per_step..(step + 1) * slices_per_step;
    let reads = |slice| {
        (0..SLICE_BYTES / BACKUP_BYTES).map(move |part| WeekRequest {
            slice,
            offset: part * BACKUP_BYTES,
            len: BACKUP_BYTES,
            is_write: false,
            is_sequential: true,
        })
    };
    slices.flat_map(reads).collect()
}

/// Both lists in their order, evenly mixed.
fn mix(left: Vec<WeekRequest>, right: Vec<WeekRequest>) -> Vec<WeekRequest> {
    let (left_len, right_len) = (left.len(), right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    let (mut mixed, mut from_left) = (Vec::with_capacity(left_len + right_len), 0);
    while left.peek().is_some() || right.peek().is_some() {
        let from_right = mixed.len() - from_left;
        let takes_left = from_left * right_len <= from_right * left_len;
        let next = if takes_left { left.next().inspect(|_| from_left += 1) } else { right.next() };
        mixed.extend(next.or_else(|| right.next()));
    }
    mixed
}
