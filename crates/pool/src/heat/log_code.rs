//! Logarithmic codes of numbers: 1,536 steps an octave, integer arithmetic, unbiased rounding.
//!
//! A code *c* above 0 stands for 2^(c / steps) units; code 0 stands for nothing. Decay is a subtraction. An increment
//! smaller than a step raises the code with the matching probability, so the expected value is exact (Morris:
//! "Counting large numbers of events in small registers", 1978). The standard deviation of a long count is
//! sqrt(ln 2 / steps / 2) of its value: 1.5 % with 1,536 steps, 6.0 % with 96.

/// Fraction bits of a [`Fixed`].
pub(super) const FRACTION_BITS: u32 = 20;
/// One unit as a [`Fixed`].
pub(super) const ONE: Fixed = 1 << FRACTION_BITS;

/// Units with [`FRACTION_BITS`] fraction bits.
pub(super) type Fixed = u64;

/// Steps of an octave in the table.
const TABLE_STEPS: usize = 1536;
/// 2^(1/1536) with 63 fraction bits.
const ROOT: u64 = 9_227_535_185_976_925_417;
/// 2^(i/1536) with 63 fraction bits.
static POWERS: [u64; TABLE_STEPS] = powers();

const fn powers() -> [u64; TABLE_STEPS] {
    let mut powers = [1 << 63; TABLE_STEPS];
    let mut index = 1;
    while index < TABLE_STEPS {
        powers[index] = ((powers[index - 1] as u128 * ROOT as u128) >> 63) as u64;
        index += 1;
    }
    powers
}

/// Parts of an octave at which the search for a value begins.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 8;
/// The last power at or below the start of each part; the last entry is the last power of all.
static FLOORS: [u16; PARTS + 1] = floors();

const fn floors() -> [u16; PARTS + 1] {
    let mut floors = [TABLE_STEPS as u16 - 1; PARTS + 1];
    let (powers, mut part, mut step) = (powers(), 0, 0);
    while part < PARTS {
        let start = ((PARTS + part) as u64) << (63 - PART_BITS);
        while step + 1 < TABLE_STEPS && powers[step + 1] <= start {
            step += 1;
        }
        floors[part] = step as u16;
        part += 1;
    }
    floors
}

/// A resolution of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    /// Steps of an octave; a divisor of 1,536.
    pub(super) steps: u32,
    /// Largest code.
    pub(super) code_max: u32,
}

impl Scale {
    /// The number that `code` stands for.
    pub(super) fn value(self, code: u32) -> Fixed {
        if code == 0 { 0 } else { self.power(code) }
    }

    /// 2^(steps / steps of an octave), saturating.
    pub(super) fn power(self, steps: u32) -> Fixed {
        let octave = steps / self.steps;
        let power = POWERS[(steps % self.steps) as usize * self.stride()];
        if octave + FRACTION_BITS > 63 { Fixed::MAX } else { power >> (63 - FRACTION_BITS - octave) }
    }

    /// The code of `value`, rounded up with the probability of its place between two codes. `random` is uniform.
    pub(super) fn code(self, value: Fixed, random: u64) -> u32 {
        if value < ONE {
            let is_up = u128::from(value) << (64 - FRACTION_BITS) > u128::from(random);
            return u32::from(is_up);
        }
        let leading = value.leading_zeros();
        let octave = 63 - FRACTION_BITS - leading;
        let (mantissa, stride) = (value << leading, self.stride());
        let part = (mantissa >> (63 - PART_BITS)) as usize - PARTS;
        let (mut low, mut high) = (FLOORS[part] as usize / stride, FLOORS[part + 1] as usize / stride + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if POWERS[middle * stride] <= mantissa { low = middle } else { high = middle }
        }
        let floor = u128::from(POWERS[low * stride]);
        let ceiling = if high == self.steps as usize { 1 << 64 } else { u128::from(POWERS[high * stride]) };
        let is_up = (u128::from(mantissa) - floor) << 64 >= (u128::from(random) + 1) * (ceiling - floor);
        // Code 0 is nothing, so one unit has code 1, of which it differs by less than a step.
        (octave * self.steps + low as u32 + u32::from(is_up)).clamp(1, self.code_max)
    }

    fn stride(self) -> usize {
        TABLE_STEPS / self.steps as usize
    }
}

/// `amount` times `factor`, saturating.
pub(super) fn multiply(amount: Fixed, factor: Fixed) -> Fixed {
    let product = (u128::from(amount) * u128::from(factor)) >> FRACTION_BITS;
    u64::try_from(product).unwrap_or(Fixed::MAX)
}

#[cfg(test)]
mod tests {
    use seam::sim::Rng;

    use super::*;

    const FINE: Scale = Scale { steps: 1536, code_max: u16::MAX as u32 };
    const COARSE: Scale = Scale { steps: 96, code_max: 4095 };

    #[test]
    fn table_reaches_the_next_octave_within_its_precision() {
        let next = (u128::from(POWERS[TABLE_STEPS - 1]) * u128::from(ROOT)) >> 63;
        assert!(next.abs_diff(1 << 64) < 1 << 12, "{next}");
        assert!(POWERS.is_sorted());
    }

    #[test]
    fn code_is_the_last_power_at_or_below_the_value() {
        let rng = Rng::new(4, 0);
        for scale in [FINE, COARSE] {
            for _ in 0..100_000 {
                let value = (rng.next() | 1 << 63) >> (15 + rng.next() % 8);
                let leading = value.leading_zeros();
                let steps = POWERS.iter().step_by(scale.stride());
                let floor = steps.filter(|power| **power <= value << leading).count() as u32 - 1;
                let code = (63 - FRACTION_BITS - leading) * scale.steps + floor;
                assert_eq!(scale.code(value, u64::MAX), code.max(1), "{value}");
            }
        }
    }

    #[test]
    fn code_of_a_value_is_its_code_for_all_codes() {
        for scale in [FINE, COARSE] {
            for code in 1..=scale.code_max {
                let value = scale.value(code);
                let down = scale.code(value, u64::MAX);
                assert!(down == code || down + 1 == code, "{code}: {down}");
                assert!(scale.code(value + value / 2000, u64::MAX) >= code, "{code}");
            }
        }
    }

    #[test]
    fn values_past_the_last_code_saturate() {
        assert_eq!(FINE.code(Fixed::MAX, 0), FINE.code_max);
        assert_eq!(COARSE.code(Fixed::MAX, 0), COARSE.code_max);
        assert_eq!(FINE.power(100 * 1536), Fixed::MAX);
        assert_eq!(multiply(Fixed::MAX, 2 * ONE), Fixed::MAX);
    }

    #[test]
    fn rounding_is_unbiased_below_and_above_one_unit() {
        let rng = Rng::new(3, 0);
        for value in [ONE / 8, ONE / 2, ONE * 5 / 3, ONE * 1000 + ONE / 7] {
            let draws = 40_000;
            let sum: u128 = (0..draws).map(|_| u128::from(COARSE.value(COARSE.code(value, rng.next())))).sum();
            let mean = (sum / draws) as u64;
            let tolerance = if value < ONE { value / 20 } else { value / 1000 };
            assert!(mean.abs_diff(value) < tolerance, "{mean} for {value}");
        }
    }
}
