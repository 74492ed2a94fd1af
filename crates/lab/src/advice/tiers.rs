//! Advice on the tiers of a pool: the share of the disk time that the hottest slices of a load carry, and the size of
//! each tier that follows from it.
//!
//! The demand of a slice is counted and priced by the code of the pool (`StreamDetector`, `ClassCost`). It is the sum
//! over the whole trace: one placement for all of its time. Caches above the pool are left out.

use std::collections::BTreeMap;

use pool::heat::{Demand, RequestDemand, StreamDetector};
use pool::planner::{ClassCost, PPM};
use rustc_hash::FxHashMap;
use seam::Nanos;
use trace::{Op, Request};

use crate::curve::knee;

/// Part of a tier that a pool keeps free, in percent.
pub const RESERVE_PERCENT: u64 = 10;
/// Shares of the disk time that are reported, in percent.
const SHARES_PERCENT: [u64; 5] = [50, 80, 90, 95, 99];
/// Points of the curve, in millionths of all slices.
const POINTS_PPM: [u64; 22] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 125_000, 150_000, 200_000, 250_000,
    300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000, 1_000_000,
];
/// Part of all disk time below which a tier between the fastest and the slowest is not worth its devices.
const TIER_SHARE_MIN: f64 = 0.02;

/// Disk time of a load's slices.
#[derive(Clone, Debug, Default)]
pub struct SliceLoads {
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Demand of each slice over the whole trace.
    pub demands: Vec<Demand>,
    /// Time of the trace; `None` without times.
    pub span: Option<Nanos>,
}

/// A size of the fastest tier and its effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierStep {
    /// Slices on it, the hottest.
    pub slices: u64,
    /// Part of the disk time on the slowest class that these slices carry.
    pub share: f64,
    /// Disk time that they save on the fastest class, as a part of all disk time on the slowest one.
    pub saved: f64,
    /// Disks of the slowest class that this disk time keeps busy all the time; `None` without times.
    pub saved_disks: Option<f64>,
}

/// The least number of slices that carry a share of the disk time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareStep {
    /// The share in percent.
    pub percent: u64,
    /// The slices.
    pub slices: u64,
}

/// The recommended size of a tier.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSize {
    /// Name of its class.
    pub class: String,
    /// Slices on it.
    pub slices: u64,
    /// Bytes of its devices, with the reserve that a pool keeps free.
    pub bytes: u64,
    /// Part of all disk time, priced on the slowest class, that these slices carry.
    pub share: f64,
    /// Devices of this class that its load keeps busy all the time; `None` without times.
    pub busy_disks: Option<f64>,
}

/// The tier curve of a load.
#[derive(Clone, Debug, Default)]
pub struct TierAdvice {
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Slices that the load uses.
    pub slices: u64,
    /// Disk time of all slices on the slowest class.
    pub disk_time: Nanos,
    /// Disks of the slowest class that all slices keep busy; `None` without times.
    pub busy_disks: Option<f64>,
    /// Slices that carry half of the disk time and more.
    pub shares: Vec<ShareStep>,
    /// Sizes of the fastest tier, the smallest first.
    pub steps: Vec<TierStep>,
    /// Slices up to which a further one saves more than the average slice; `None` if all save the same.
    pub knee: Option<u64>,
    /// The recommended tiers, the fastest first. A class that is not worth its devices is left out.
    pub tiers: Vec<TierSize>,
}

impl SliceLoads {
    /// Counts the demand of each slice of a trace. Slices of its disks are apart; discards and flushes are ignored.
    pub fn of_trace(requests: &[Request], slice_bytes: u64) -> SliceLoads {
        assert!(slice_bytes > 0, "a slice has bytes");
        let mut streams = BTreeMap::<u32, StreamDetector>::new();
        let mut demands = FxHashMap::<(u32, u64), Demand>::default();
        let mut span = None;
        for request in requests {
            span = span.max(request.time_ns);
            let is_write = match request.op {
                Op::Read => false,
                Op::Write => true,
                Op::Discard | Op::Flush => continue,
            };
            let Request { at, len, device, .. } = *request;
            let is_sequential = streams.entry(device).or_default().is_sequential(is_write, at, len);
            let end = at + len;
            for slice in at / slice_bytes..end.div_ceil(slice_bytes) {
                let bytes = end.min((slice + 1) * slice_bytes) - at.max(slice * slice_bytes);
                let part = match is_sequential {
                    true => RequestDemand::sequential(is_write, bytes),
                    false => RequestDemand::random(is_write, bytes),
                };
                *demands.entry((device, slice)).or_default() += part.into();
            }
        }
        let mut demands: Vec<_> = demands.into_iter().collect();
        demands.sort_unstable_by_key(|(slice, _)| *slice);
        let demands = demands.into_iter().map(|(_, demand)| demand).collect();
        SliceLoads { slice_bytes, demands, span: span.filter(|span| *span > 0).map(Nanos) }
    }

    /// The tier curve and the tiers that follow from it. `classes` has the names and costs, the fastest first; at least
    /// two.
    pub fn advise(&self, classes: &[(&str, ClassCost)]) -> TierAdvice {
        assert!(classes.len() >= 2, "one tier needs no advice");
        let (fast, slow) = (classes[0].1, classes[classes.len() - 1].1);
        let curve = Curve::new(&self.demands, &fast, &slow);
        let total = curve.total();
        let disks = |disk_time: u128| self.span.map(|span| disk_time as f64 / span.0 as f64);
        let count = self.demands.len() as u64;
        let mut points: Vec<u64> =
            POINTS_PPM.iter().map(|ppm| (u128::from(count) * u128::from(*ppm)).div_ceil(PPM.into()) as u64).collect();
        points.dedup();
        let step = |slices: u64| {
            let (carried, saved) = curve.at(slices);
            TierStep { slices, share: part(carried, total), saved: part(saved, total), saved_disks: disks(saved) }
        };
        let steps: Vec<_> = points.into_iter().filter(|slices| *slices > 0).map(step).collect();
        TierAdvice {
            slice_bytes: self.slice_bytes,
            slices: count,
            disk_time: Nanos(u64::try_from(total).unwrap_or(u64::MAX)),
            busy_disks: disks(total),
            shares: SHARES_PERCENT.map(|percent| ShareStep { percent, slices: curve.slices_for(percent) }).to_vec(),
            steps,
            knee: curve.knee(),
            tiers: self.tiers(classes),
        }
    }

    /// The tiers by the knees of the curve: the fastest up to the first one, the next up to that of the remaining
    /// slices, the slowest with the rest.
    fn tiers(&self, classes: &[(&str, ClassCost)]) -> Vec<TierSize> {
        let slow = classes[classes.len() - 1].1;
        let total: u128 = self.demands.iter().map(|demand| u128::from(slow.price(*demand).0)).sum();
        let mut left = self.demands.clone();
        let mut tiers = Vec::new();
        for (number, (name, class)) in classes.iter().enumerate() {
            let is_last = number + 1 == classes.len();
            let curve = Curve::new(&left, class, &slow);
            let slices = if is_last { left.len() as u64 } else { curve.knee().unwrap_or(0) };
            let share = part(curve.at(slices).0, total);
            if slices == 0 || (!is_last && share < TIER_SHARE_MIN) {
                continue;
            }
            let on_tier: Vec<Demand> = curve.order[..slices as usize].iter().map(|index| left[*index]).collect();
            let disk_time: u128 = on_tier.iter().map(|demand| u128::from(class.price(*demand).0)).sum();
            let parallel = f64::from(class.parallel);
            tiers.push(TierSize {
                class: (*name).to_owned(),
                slices,
                bytes: (slices * self.slice_bytes * 100).div_ceil(100 - RESERVE_PERCENT),
                share,
                busy_disks: self.span.map(|span| disk_time as f64 / span.0 as f64 / parallel),
            });
            left = curve.order[slices as usize..].iter().map(|index| left[*index]).collect();
        }
        tiers
    }
}

/// Slices in the order of their saving, the largest first, with sums.
struct Curve {
    /// Indices of the slices.
    order: Vec<usize>,
    /// Disk time on the slowest class of the first slices of the order, from none to all.
    carried: Vec<u128>,
    /// Disk time that they save.
    saved: Vec<u128>,
}

impl Curve {
    fn new(demands: &[Demand], fast: &ClassCost, slow: &ClassCost) -> Curve {
        let price = |index: &usize| {
            let demand = demands[*index];
            let slow = slow.price(demand).0;
            (slow.saturating_sub(fast.price(demand).0), slow)
        };
        let mut order: Vec<usize> = (0..demands.len()).collect();
        // Of equal savings the larger load comes first, then the lower slice: the order depends on the load alone.
        order.sort_by_key(|index| (std::cmp::Reverse(price(index)), *index));
        let (mut carried, mut saved) = (vec![0], vec![0]);
        for index in &order {
            let (saving, load) = price(index);
            carried.push(carried.last().copied().unwrap_or(0) + u128::from(load));
            saved.push(saved.last().copied().unwrap_or(0) + u128::from(saving));
        }
        Curve { order, carried, saved }
    }

    fn total(&self) -> u128 {
        self.carried[self.order.len()]
    }

    /// Disk time of the hottest slices on the slowest class, and the part that they save.
    fn at(&self, slices: u64) -> (u128, u128) {
        (self.carried[slices as usize], self.saved[slices as usize])
    }

    /// The least number of hottest slices that carry `percent` of the disk time.
    fn slices_for(&self, percent: u64) -> u64 {
        let wanted = (self.total() * u128::from(percent)).div_ceil(100);
        self.carried.partition_point(|carried| *carried < wanted) as u64
    }

    /// Slices up to which a further one saves more than the average one.
    fn knee(&self) -> Option<u64> {
        let points: Vec<_> =
            (0u32..).zip(&self.saved).map(|(slices, saved)| (f64::from(slices), *saved as f64)).collect();
        knee(&points).map(|index| index as u64)
    }
}

fn part(amount: u128, total: u128) -> f64 {
    amount as f64 / (total as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn classes() -> [(&'static str, ClassCost); 3] {
        ["ssd", "10k", "nl-sas"].map(|name| (name, ClassCost::named(name).unwrap()))
    }

    fn request(op: Op, at: u64, len: u64, device: u32, second: u64) -> Request {
        Request { time_ns: Some(second * 1_000_000_000), op, at, len, device }
    }

    /// A small trace: random reads and writes, a stream over a slice boundary, two disks.
    fn small_trace() -> Vec<Request> {
        let mut requests = Vec::new();
        for (slice, count) in [(0, 3), (1, 17), (2, 1), (3, 9), (4, 30)] {
            for number in 0..count {
                let op = if number % 3 == 0 { Op::Write } else { Op::Read };
                // Steps of 12 KiB: no request begins where another one ends.
                requests.push(request(op, slice * MIB + number * 12_288, 4096 + 4096 * (slice % 2), 0, number));
            }
        }
        let stream = (0..4).map(|number| request(Op::Read, 6 * MIB + number * 512 * 1024, 512 * 1024, 1, 30 + number));
        requests.extend(stream);
        requests.push(request(Op::Discard, 9 * MIB, MIB, 0, 40));
        requests
    }

    /// Disk time of each slice in nanoseconds, by hand: accesses by time of an access, bytes by rate.
    fn disk_times(access_ns: f64, write_ns: f64, bytes_per_second: f64) -> Vec<f64> {
        let random = |reads: f64, writes: f64, bytes: f64| {
            reads * access_ns + writes * write_ns + bytes * 1e9 / bytes_per_second
        };
        vec![
            random(2.0, 1.0, 3.0 * 4096.0),
            random(11.0, 6.0, 17.0 * 8192.0),
            random(0.0, 1.0, 4096.0),
            random(6.0, 3.0, 9.0 * 8192.0),
            random(20.0, 10.0, 30.0 * 4096.0),
            // The first request of the stream is random, the others continue it.
            random(1.0, 0.0, 1_048_576.0),
            random(0.0, 0.0, 1_048_576.0),
        ]
    }

    fn best_sum(values: &[f64], count: usize) -> f64 {
        let subsets = (0u32..1 << values.len()).filter(|subset| subset.count_ones() as usize == count);
        let sum = |subset: u32| -> f64 {
            values.iter().enumerate().filter(|(index, _)| subset >> index & 1 == 1).map(|(_, value)| value).sum()
        };
        subsets.map(sum).fold(0.0, f64::max)
    }

    #[test]
    fn curve_is_the_best_subset_of_slices_of_each_size() {
        let loads = SliceLoads::of_trace(&small_trace(), MIB);
        let advice = loads.advise(&classes());
        let (slow, fast) = (disk_times(12.5e6, 12.5e6, 180e6), disk_times(150e3, 80e3, 500e6));
        let saved: Vec<f64> = slow.iter().zip(&fast).map(|(slow, fast)| slow - fast).collect();
        let total: f64 = slow.iter().sum();
        assert_eq!((advice.slices, advice.steps.len()), (7, 7));
        for step in &advice.steps {
            let expected = best_sum(&saved, step.slices as usize) / total;
            assert!((step.saved - expected).abs() < 1e-4, "{step:?}, expected {expected}");
            let disks = expected * total / 40e9;
            assert!(step.saved_disks.is_some_and(|saved| (saved - disks).abs() < 1e-4), "{step:?}, expected {disks}");
        }
        assert!((advice.disk_time.0 as f64 - total).abs() < 1e-4 * total);
        for ShareStep { percent, slices } in advice.shares {
            let carries = |count: u64| best_sum(&slow, count as usize) >= total * percent as f64 / 100.0;
            assert!(carries(slices) && !carries(slices - 1), "{percent} %: {slices}");
        }
    }

    #[test]
    fn tiers_are_the_knees_of_a_load_with_three_temperatures() {
        let mut requests = Vec::new();
        // 5 of 100 slices get 200 requests, 15 get 10, 80 get one.
        for slice in 0..100u64 {
            let count = [200, 10, 1][usize::from(slice >= 5) + usize::from(slice >= 20)];
            requests
                .extend((0..count).map(|number| request(Op::Read, slice * MIB + number * 5120, 4096, 0, number * 18)));
        }
        let advice = SliceLoads::of_trace(&requests, MIB).advise(&classes());
        assert_eq!(advice.knee, Some(5));
        let sizes: Vec<_> = advice.tiers.iter().map(|tier| (tier.class.as_str(), tier.slices)).collect();
        assert_eq!(sizes, [("ssd", 5), ("10k", 15), ("nl-sas", 80)]);
        let share = |index: usize, requests: f64| (advice.tiers[index].share - requests / 1_230.0).abs() < 0.001;
        assert!(share(0, 1_000.0) && share(1, 150.0) && share(2, 80.0), "{:?}", advice.tiers);
        assert_eq!(advice.tiers[0].bytes, (5 * MIB * 10).div_ceil(9));
        // 150 reads of 7 ms in the time of the trace.
        let busy = advice.tiers[1].busy_disks.unwrap();
        assert!((busy - 150.0 * 7.02e-3 / (199.0 * 18.0)).abs() < 1e-5, "{busy}");
    }

    #[test]
    fn even_load_needs_no_fast_tier() {
        let requests: Vec<_> = (0..50).map(|slice| request(Op::Read, slice * MIB, 4096, 0, slice)).collect();
        let advice = SliceLoads::of_trace(&requests, MIB).advise(&classes());
        let sizes: Vec<_> = advice.tiers.iter().map(|tier| (tier.class.as_str(), tier.slices)).collect();
        assert_eq!((advice.knee, sizes), (None, vec![("nl-sas", 50)]));
        let untimed: Vec<_> = requests.iter().map(|request| Request { time_ns: None, ..*request }).collect();
        assert_eq!(SliceLoads::of_trace(&untimed, MIB).advise(&classes()).busy_disks, None);
    }
}
