//! The heat of one slice in 8 bytes.
//!
//! | bits | field |
//! |---|---|
//! | 0 to 15 | random accesses, half-life one hour: 1,536 steps an octave, unit 1/16 access |
//! | 16 to 31 | random accesses, half-life one day: the same |
//! | 32 to 43 | bytes, half-life one hour: 96 steps an octave, unit 4 KiB |
//! | 44 to 55 | bytes, half-life one day: the same |
//! | 56 to 63 | share of writes in the random accesses of the last days, in 1/255 |
//!
//! The codes are *forward-decayed* (Cormode, Shkapenyuk, Srivastava, Xu: "Forward decay", 2009): they hold the heat as
//! of a landmark in the past, and an increment is inflated by the growth since then. Time alone therefore changes no
//! word; a reader subtracts the decay, which is a number of steps. A sweep moves the landmark by whole periods, for
//! which the steps are whole numbers: it rounds nothing.

use seam::Nanos;

use super::log_code::{FRACTION_BITS, Fixed, ONE, Scale, multiply};
use super::{Demand, PER_ACCESS, RequestDemand};

/// Time by which a sweep moves the landmark. All codes decay by a whole number of steps in it.
pub const SWEEP_PERIOD: Nanos = Nanos::from_secs(HOUR_SECS);

const HOUR_SECS: u64 = 3_600;
const HOURS_OF_A_DAY: u64 = 24;
/// Units of one access.
const UNITS_PER_ACCESS: u64 = 16;
/// Bytes of one unit.
const UNIT_BYTES: u64 = 4096;
const WRITE_SHARE_MAX: u64 = 255;
/// ln 2 with 32 fraction bits: an exponentially decayed sum of a constant rate is the rate times the half-life by ln 2.
const LN_2: u64 = 2_977_044_472;

/// A code within the word.
#[derive(Clone, Copy)]
struct Field {
    shift: u32,
    scale: Scale,
    half_life_hours: u64,
}

const ACCESSES: Scale = Scale { steps: 1536, code_max: u16::MAX as u32 };
const BYTES: Scale = Scale { steps: 96, code_max: (1 << 12) - 1 };
const ACCESSES_HOUR: Field = Field { shift: 0, scale: ACCESSES, half_life_hours: 1 };
const ACCESSES_DAY: Field = Field { shift: 16, scale: ACCESSES, half_life_hours: HOURS_OF_A_DAY };
const BYTES_HOUR: Field = Field { shift: 32, scale: BYTES, half_life_hours: 1 };
const BYTES_DAY: Field = Field { shift: 44, scale: BYTES, half_life_hours: HOURS_OF_A_DAY };
const FIELDS: [Field; 4] = [ACCESSES_HOUR, ACCESSES_DAY, BYTES_HOUR, BYTES_DAY];
const WRITE_SHARE_SHIFT: u32 = 56;

impl Field {
    fn code(self, word: u64) -> u32 {
        ((word >> self.shift) as u32) & self.scale.code_max
    }

    fn set(self, word: u64, code: u32) -> u64 {
        assert!(code <= self.scale.code_max, "code {code} of at most {}", self.scale.code_max);
        word & !(u64::from(self.scale.code_max) << self.shift) | u64::from(code) << self.shift
    }

    /// Steps of decay in `elapsed`, rounded to the nearest.
    fn decay_steps(self, elapsed: Nanos) -> u32 {
        let (half_life, steps) = (self.half_life_hours * SWEEP_PERIOD.0, u64::from(self.scale.steps));
        // 64 bits are enough for 138 days.
        let steps = match elapsed.0.checked_mul(steps).and_then(|product| product.checked_add(half_life / 2)) {
            Some(product) => product / half_life,
            None => elapsed.0 / half_life * steps,
        };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// Adds `amount` that arrives `elapsed` after the landmark.
    fn add(self, word: u64, amount: Fixed, elapsed: Nanos, random: u64) -> u64 {
        let inflated = multiply(amount, self.scale.power(self.decay_steps(elapsed)));
        let sum = self.scale.value(self.code(word)).saturating_add(inflated);
        self.set(word, self.scale.code(sum, random))
    }

    fn value(self, word: u64, elapsed: Nanos) -> Fixed {
        self.scale.value(self.code(word).saturating_sub(self.decay_steps(elapsed)))
    }

    /// Units per hour of the constant load that would have this heat, as a [`Fixed`].
    fn rate(self, word: u64, elapsed: Nanos) -> u128 {
        (u128::from(self.value(word, elapsed)) * u128::from(LN_2 / self.half_life_hours)) >> 32
    }
}

/// Heat of a slice as of a landmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatWord(pub u64);

impl HeatWord {
    /// Adds a request that arrives `elapsed` after the landmark. `random` yields uniform numbers.
    pub fn record(&mut self, request: &RequestDemand, elapsed: Nanos, mut random: impl FnMut() -> u64) {
        if request.accesses > 0 {
            let amount = request.accesses.saturating_mul(ONE * UNITS_PER_ACCESS) / PER_ACCESS;
            self.0 = self.mix_write_share(request.is_write, amount, elapsed, random());
            self.0 = ACCESSES_HOUR.add(self.0, amount, elapsed, random());
            self.0 = ACCESSES_DAY.add(self.0, amount, elapsed, random());
        }
        if request.bytes > 0 {
            let amount = request.bytes.saturating_mul(ONE / UNIT_BYTES);
            self.0 = BYTES_HOUR.add(self.0, amount, elapsed, random());
            self.0 = BYTES_DAY.add(self.0, amount, elapsed, random());
        }
    }

    /// Demand by the half-life of one hour, `elapsed` after the landmark.
    pub fn recent(self, elapsed: Nanos) -> Demand {
        self.demand(ACCESSES_HOUR, BYTES_HOUR, elapsed)
    }

    /// Demand by the half-life of one day, `elapsed` after the landmark.
    pub fn daily(self, elapsed: Nanos) -> Demand {
        self.demand(ACCESSES_DAY, BYTES_DAY, elapsed)
    }

    /// The same heat as of a landmark `by` later.
    pub fn advance_landmark(self, by: Nanos) -> HeatWord {
        let word = FIELDS
            .into_iter()
            .fold(self.0, |word, field| field.set(word, field.code(word).saturating_sub(field.decay_steps(by))));
        HeatWord(word)
    }

    /// The same heat as of a landmark `by` earlier: codes saturate.
    pub fn retreat_landmark(self, by: Nanos) -> HeatWord {
        let word = FIELDS.into_iter().fold(self.0, |word, field| match field.code(word) {
            0 => word,
            code => field.set(word, code.saturating_add(field.decay_steps(by)).min(field.scale.code_max)),
        });
        HeatWord(word)
    }

    fn demand(self, accesses: Field, bytes: Field, elapsed: Nanos) -> Demand {
        let per_hour = accesses.rate(self.0, elapsed) * u128::from(PER_ACCESS) / u128::from(UNITS_PER_ACCESS);
        let total = to_u64(per_hour >> FRACTION_BITS);
        let share = self.write_share();
        let writes = total / WRITE_SHARE_MAX * share + total % WRITE_SHARE_MAX * share / WRITE_SHARE_MAX;
        let bytes = to_u64((bytes.rate(self.0, elapsed) * u128::from(UNIT_BYTES)) >> FRACTION_BITS);
        Demand { reads: total - writes, writes, bytes }
    }

    fn write_share(self) -> u64 {
        self.0 >> WRITE_SHARE_SHIFT
    }

    /// The word with its share of writes moved towards the request's kind by the request's part of all accesses.
    fn mix_write_share(self, is_write: bool, amount: Fixed, elapsed: Nanos, random: u64) -> u64 {
        let inflated = multiply(amount, ACCESSES_DAY.scale.power(ACCESSES_DAY.decay_steps(elapsed)));
        let total = ACCESSES_DAY.scale.value(ACCESSES_DAY.code(self.0)).saturating_add(inflated);
        let target = if is_write { WRITE_SHARE_MAX } else { 0 };
        let distance = u128::from(self.write_share().abs_diff(target));
        if distance == 0 {
            return self.0;
        }
        let scaled = ((distance * u128::from(inflated)) << 32) / u128::from(total.max(1));
        let step = ((scaled + u128::from(random >> 32)) >> 32) as u64;
        let share = if is_write { self.write_share() + step } else { self.write_share() - step };
        assert!(share <= WRITE_SHARE_MAX, "a share above the whole: {share}");
        self.0 & !(WRITE_SHARE_MAX << WRITE_SHARE_SHIFT) | share << WRITE_SHARE_SHIFT
    }
}

fn to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
