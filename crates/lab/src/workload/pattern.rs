//! Access patterns: region, mix of reads and writes, sizes, skew, order, drift. A [`Stream`] draws accesses from a
//! pattern.

use crate::random::Random;

/// Distribution of accesses over the region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Uniform over the region.
    Uniform,
    /// `accesses_percent` of the accesses go to the first `hot_percent` of the region.
    HotCold {
        /// Size of the hot region in percent.
        hot_percent: u32,
        /// Percentage of the accesses to the hot region.
        accesses_percent: u32,
    },
    /// Zipf's law with this exponent (above 0, but not 1); hot positions are scattered over the region.
    Zipf(f64),
    /// Sequential, wrapping around at the end.
    Sequential,
}

/// One kind of access in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessKind {
    /// Weight relative to the other kinds.
    pub weight: u32,
    /// Size of an access in bytes.
    pub bytes: u32,
    /// Percentage of reads.
    pub read_percent: u32,
    /// Percentage of accesses placed by the skew; the others continue at the end of the stream's last access.
    pub random_percent: u32,
}

/// Accesses of one client to a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// First byte of the region; a multiple of `align_bytes`.
    pub start_bytes: u64,
    /// Length of the region in bytes.
    pub region_bytes: u64,
    /// Kinds of access, at least one.
    pub mix: Vec<AccessKind>,
    /// Accesses begin at multiples of this.
    pub align_bytes: u32,
    /// Distribution of the accesses over the region.
    pub skew: Skew,
    /// Distance by which the hot region moves after every thousand accesses of the stream, wrapping around at the end.
    pub drift_bytes: u64,
}

impl Pattern {
    /// Uniformly random accesses of one size to the region.
    pub fn random(region_bytes: u64, size_bytes: u32, read_percent: u32) -> Pattern {
        let mix = vec![AccessKind { weight: 1, bytes: size_bytes, read_percent, random_percent: 100 }];
        let align_bytes = size_bytes.min(4096);
        Pattern { start_bytes: 0, region_bytes, mix, align_bytes, skew: Skew::Uniform, drift_bytes: 0 }
    }

    /// Random accesses of which `read_percent` are reads of one size and the others writes of another, aligned to 512
    /// bytes.
    pub fn reads_and_writes(region_bytes: u64, read_bytes: u32, write_bytes: u32, read_percent: u32) -> Pattern {
        let kind = |weight, bytes, read_percent| AccessKind { weight, bytes, read_percent, random_percent: 100 };
        let mix = vec![kind(read_percent, read_bytes, 100), kind(100 - read_percent, write_bytes, 0)];
        Pattern { mix, align_bytes: 512, ..Pattern::random(region_bytes, read_bytes, read_percent) }
    }

    /// Replaces the skew.
    pub fn with_skew(self, skew: Skew) -> Pattern {
        Pattern { skew, ..self }
    }

    /// Moves the region to `start_bytes`.
    pub fn at(self, start_bytes: u64) -> Pattern {
        Pattern { start_bytes, ..self }
    }

    /// Size of the largest access in bytes.
    pub fn largest(&self) -> u64 {
        self.mix.iter().map(|kind| u64::from(kind.bytes)).max().expect("a mix has at least one kind of access")
    }
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// True for a write, false for a read.
    pub write: bool,
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u32,
}

/// An endless stream of accesses drawn from a pattern.
#[derive(Clone, Debug)]
pub struct Stream {
    pattern: Pattern,
    random: Random,
    /// Position after the last access, in units of the alignment.
    next_position: u64,
    accesses_drawn: u64,
    weight_sum: u64,
    zipf: Option<Zipf>,
}

impl Stream {
    /// The stream of client `client`.
    pub fn new(pattern: Pattern, seed: u64, client: u64) -> Stream {
        let largest = pattern.largest();
        assert!(
            pattern.region_bytes >= largest,
            "a region of {} bytes, smaller than an access of {largest}",
            pattern.region_bytes
        );
        assert!(pattern.align_bytes > 0, "accesses have an alignment");
        let positions = (pattern.region_bytes - largest) / u64::from(pattern.align_bytes) + 1;
        let zipf = match pattern.skew {
            Skew::Zipf(exponent) => Some(Zipf::new(positions, exponent)),
            _ => None,
        };
        let weight_sum = pattern.mix.iter().map(|kind| u64::from(kind.weight)).sum();
        assert!(weight_sum > 0, "a mix has a positive total weight");
        Stream { pattern, random: Random::new(seed, client), next_position: 0, accesses_drawn: 0, weight_sum, zipf }
    }

    /// Draws the next access.
    pub fn draw(&mut self) -> Access {
        let kind = self.draw_kind();
        let write = !self.random.percent(kind.read_percent);
        let align = u64::from(self.pattern.align_bytes);
        let positions = (self.pattern.region_bytes - u64::from(kind.bytes)) / align + 1;
        let is_sequential = match kind.random_percent {
            100 => self.pattern.skew == Skew::Sequential,
            percent => !self.random.percent(percent),
        };
        let position =
            if is_sequential { self.sequential_position(positions) } else { self.random_position(positions) };
        self.next_position = position + u64::from(kind.bytes).div_ceil(align);
        self.accesses_drawn += 1;
        Access { write, at: self.pattern.start_bytes + position * align, len: kind.bytes }
    }

    fn draw_kind(&mut self) -> AccessKind {
        let mix = &self.pattern.mix;
        if mix.len() == 1 {
            return mix[0];
        }
        let mut offset = self.random.below(self.weight_sum);
        let chosen = mix.iter().find(|kind| match offset.checked_sub(u64::from(kind.weight)) {
            None => true,
            Some(remainder) => {
                offset = remainder;
                false
            }
        });
        *chosen.expect("a draw is less than the sum of the weights")
    }

    fn random_position(&mut self, positions: u64) -> u64 {
        match self.pattern.skew {
            Skew::Uniform => self.random.below(positions),
            Skew::Sequential => self.sequential_position(positions),
            Skew::HotCold { hot_percent, accesses_percent } => {
                let hot = (positions * u64::from(hot_percent) / 100).clamp(1, positions);
                let position = match self.random.percent(accesses_percent) || hot == positions {
                    true => self.random.below(hot),
                    false => self.random.between(hot, positions - 1),
                };
                let drift =
                    self.accesses_drawn / 1_000 * self.pattern.drift_bytes / u64::from(self.pattern.align_bytes);
                (position + drift) % positions
            }
            Skew::Zipf(_) => {
                let zipf = self.zipf.as_ref().expect("a stream with Zipf skew has ranks");
                scatter(zipf.rank(self.random.fraction())) % positions
            }
        }
    }

    fn sequential_position(&self, positions: u64) -> u64 {
        if self.next_position < positions { self.next_position } else { 0 }
    }
}

/// Ranks by Zipf's law in constant time (Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD
/// 1994).
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    exponent: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Zipf {
        assert!(exponent > 0.0 && exponent != 1.0, "an exponent above 0 other than 1, not {exponent}");
        let zeta = zeta(count, exponent);
        let n = count as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - exponent)) / (1.0 - zeta_of_two(exponent) / zeta);
        Zipf { count: n, exponent, zeta, alpha: 1.0 / (1.0 - exponent), eta }
    }

    fn rank(&self, fraction: f64) -> u64 {
        let scaled = fraction * self.zeta;
        match scaled {
            _ if scaled < 1.0 => 0,
            _ if scaled < 1.0 + 0.5_f64.powf(self.exponent) => 1,
            _ => (self.count * (self.eta * fraction - self.eta + 1.0).powf(self.alpha)) as u64,
        }
    }
}

fn zeta_of_two(exponent: f64) -> f64 {
    1.0 + 0.5_f64.powf(exponent)
}

/// Sum of `k^-exponent` for `k` in `1..=count`. Past 10,000 terms the integral approximates it to 0.01 %.
fn zeta(count: u64, exponent: f64) -> f64 {
    let exact = count.min(10_000);
    let head: f64 = (1..=exact).map(|k| (k as f64).powf(-exponent)).sum();
    let power = 1.0 - exponent;
    head + ((count as f64 + 0.5).powf(power) - (exact as f64 + 0.5).powf(power)) / power
}

/// A fixed mixing of the bits, so that neighbouring ranks are far apart.
fn scatter(rank: u64) -> u64 {
    Random::new(rank, 0x5ca7_7e25).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn accesses_stay_inside_the_region_and_aligned() {
        let skews =
            [Skew::Uniform, Skew::HotCold { hot_percent: 10, accesses_percent: 90 }, Skew::Zipf(0.9), Skew::Sequential];
        for skew in skews {
            let pattern = Pattern::reads_and_writes(2 * MIB, 14 << 10, 12 << 10, 15).with_skew(skew).at(3 * MIB);
            let pattern = Pattern { drift_bytes: 8192, ..pattern };
            let mut stream = Stream::new(pattern, 1, 1);
            for _ in 0..10_000 {
                let access = stream.draw();
                assert_eq!(access.len, if access.write { 12 << 10 } else { 14 << 10 });
                assert!(access.at >= 3 * MIB && access.at + u64::from(access.len) <= 5 * MIB, "{access:?}");
                assert!(access.at.is_multiple_of(512));
            }
        }
    }

    #[test]
    fn mix_and_hot_region_get_their_percentages() {
        let skew = Skew::HotCold { hot_percent: 10, accesses_percent: 90 };
        let mut stream = Stream::new(Pattern::random(100 * MIB, 4096, 30).with_skew(skew), 2, 1);
        let accesses: Vec<Access> = (0..10_000).map(|_| stream.draw()).collect();
        let hot = accesses.iter().filter(|access| access.at < 10 * MIB).count();
        let reads = accesses.iter().filter(|access| !access.write).count();
        assert!((8_800..9_200).contains(&hot), "{hot} of 10,000 to the hot tenth");
        assert!((2_800..3_200).contains(&reads), "{reads} reads of 10,000");
    }

    #[test]
    fn zipf_favours_few_positions_and_reaches_many() {
        let mut stream = Stream::new(Pattern::random(64 * MIB, 4096, 100).with_skew(Skew::Zipf(0.9)), 3, 1);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..20_000 {
            *counts.entry(stream.draw().at).or_insert(0_u32) += 1;
        }
        let hottest = counts.values().max().copied().expect("20,000 accesses were drawn");
        assert!(hottest > 1_000, "the hottest position received {hottest} of 20,000 accesses");
        assert!(counts.len() > 4_000, "only {} positions were accessed", counts.len());
    }

    #[test]
    fn sequential_stream_visits_every_position_once_per_pass() {
        let mut stream = Stream::new(Pattern::random(MIB, 65536, 100).with_skew(Skew::Sequential), 4, 1);
        let first: Vec<u64> = (0..16).map(|_| stream.draw().at).collect();
        assert_eq!(first, (0..16).map(|index| index * 65536).collect::<Vec<u64>>());
        assert_eq!(stream.draw().at, 0);
    }

    #[test]
    fn kinds_of_a_mix_get_their_sizes_reads_and_order() {
        let kind =
            |weight, bytes, read_percent, random_percent| AccessKind { weight, bytes, read_percent, random_percent };
        let mix = vec![kind(60, 4096, 80, 100), kind(30, 512, 100, 0), kind(10, 65536, 0, 50)];
        let pattern = Pattern { mix, align_bytes: 512, ..Pattern::random(1 << 30, 4096, 0) };
        let mut stream = Stream::new(pattern, 5, 1);
        let mut counts = std::collections::BTreeMap::new();
        let (mut end, mut in_order) = (0, [0_u32; 2]);
        for _ in 0..20_000 {
            let access = stream.draw();
            *counts.entry((access.len, access.write)).or_insert(0_i32) += 1;
            in_order[usize::from(access.len == 512)] += u32::from(access.at == end);
            end = access.at + u64::from(access.len);
        }
        for (key, expected) in
            [((4096, false), 9_600), ((4096, true), 2_400), ((512, false), 6_000), ((65536, true), 2_000)]
        {
            let count = counts[&key];
            assert!((count - expected).abs() < expected / 10, "{count} of {key:?}, {expected} expected");
        }
        assert_eq!(counts.len(), 4);
        assert_eq!(in_order[1] as i32, counts[&(512, false)], "all of these continue at the end of the last one");
        assert!(
            (800..1_200).contains(&in_order[0]),
            "{} of the 2,000 accesses that are sequential half of the time",
            in_order[0]
        );
    }

    #[test]
    fn hot_region_drifts() {
        let skew = Skew::HotCold { hot_percent: 10, accesses_percent: 100 };
        let pattern = Pattern { drift_bytes: MIB, ..Pattern::random(100 * MIB, 4096, 100).with_skew(skew) };
        let mut stream = Stream::new(pattern, 6, 1);
        for thousand in 0..300 {
            let first = thousand % 100 * MIB;
            for _ in 0..1_000 {
                let moved = (stream.draw().at + 100 * MIB - first) % (100 * MIB);
                assert!(moved < 11 * MIB, "in thousand {thousand} {moved} bytes past the hot part's beginning");
            }
        }
    }
}
