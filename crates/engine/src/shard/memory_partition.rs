//! Partition of memory among the volumes of a core by their miss-ratio curves.
//!
//! A new partition is considered when a miss needs buffers or something is dirty, so an idle engine has no timer. Its
//! result is a target for each volume. Volumes above their target lose blocks first (`memory/usage.rs`), so memory
//! moves with the misses and no block is dropped for it. While the curves predict little gain, the partition stays as
//! it is: at first a common pool, later the last partition. A partition that does not reach its expected gain is
//! abandoned.
//!
//! Only recent uses count, within the time in which memory turns over once: a curve over hours would serve a load that
//! is over. The curves describe an LRU, but the policy does better for some loads. So the hits at a volume's present
//! size are counted, not estimated.

use seam::{BLOCK_BYTES, Nanos, Seam};

use super::core_state::CoreState;
use super::{Shard, ShardRef};
use crate::memory::{MemoryCache, VolumeUsage};
use crate::policy::partition::{VolumeDemand, partition};
use crate::{CacheMode, WritePolicy};

const BLOCK_SIZE: u64 = BLOCK_BYTES as u64;
/// Each volume with requests gets at least 1/64 of an equal part: repeated reads should hit, and a curve is unreliable
/// at small sizes.
const FLOOR_DIVISOR: u64 = 64;
/// Uses for each block of memory, averaged over all volumes, after which memory has turned over: older uses decay.
const MEMORY_USES: f64 = 8.0;
/// A new partition must gain at least 1/32 of the misses, or of the hits if they are fewer. The error of a curve's
/// difference between two sizes is smaller.
const GAIN_DIVISOR: f64 = 32.0;
/// Part of the expected gain that must be reached once memory has turned over.
const KEPT_GAIN_RATIO: f64 = 0.25;
/// Maximum doublings of the pause after partitions that missed their expected gain. The pause is two turnovers at
/// first, then four, and so on.
const BACKOFF_MAX: u32 = 6;
/// Least maximum in blocks; a long request would evict itself otherwise.
const MAX_BLOCKS_MIN: u64 = 64;
/// Sizes probed on a curve, up to a few times the memory, in geometric steps.
const SIZE_STEPS: i32 = 64;
const SIZE_MAX_RATIO: f64 = 4.0;
const SIZE_STEP_RATIO: f64 = 1.15;

/// The last partition of memory and its result.
#[derive(Clone, Copy)]
pub struct MemoryPartition {
    /// Time of the last check, and the uses that were counted then.
    checked_at: Nanos,
    counted_uses: f64,
    /// All uses until then.
    uses: f64,
    /// The gain that the partition must reach.
    expected_gain: Option<ExpectedGain>,
    /// Consecutive partitions that missed their expected gain, and the count of uses before which no new one is made.
    missed_gains: u32,
    not_before: f64,
}

#[derive(Clone, Copy)]
struct ExpectedGain {
    /// The count of uses when memory was partitioned.
    since: f64,
    /// Least hit ratio from then on.
    hit_ratio: f64,
}

impl MemoryPartition {
    /// The state before the first partition.
    pub fn new(now: Nanos) -> Self {
        MemoryPartition {
            checked_at: now,
            counted_uses: 0.0,
            uses: 0.0,
            expected_gain: None,
            missed_gains: 0,
            not_before: 0.0,
        }
    }
}

impl<S: Seam> CoreState<S> {
    /// Partitions memory anew if the interval has passed.
    pub fn repartition_memory_if_due(&self) {
        let (interval, now, mut partition) =
            (self.spec().repartition_interval, self.seam().now(), self.memory_partition.get());
        if interval == Nanos::ZERO || now.since(partition.checked_at) < interval {
            return;
        }
        let shards = self.shards();
        let mut memory = self.memory().borrow_mut();
        let blocks = self.seam().blocks_total() as u64;
        let counted_uses = || shards.iter().map(|shard| shard.curves.borrow_mut().memory().recent().total as f64).sum();
        let (counted, turnover): (f64, f64) = (counted_uses(), blocks as f64 * MEMORY_USES);
        let new_uses = (counted - partition.counted_uses).max(0.0);
        partition.uses += new_uses;
        // With too few uses there is no reliable estimate, and the volumes compete for the common pool.
        if shards.len() > 1 && counted >= turnover / 2.0 {
            let hits: u64 = shards.iter().map(|shard| memory.usage(shard.number).hits).sum();
            partition.check_gain(hits as f64 / counted, turnover);
            if partition.expected_gain.is_none() {
                shards.iter().for_each(|shard| memory.update_usage(shard.number, |usage| usage.target = None));
            }
            if partition.uses >= partition.not_before
                && let Some((targets, gain)) = better_targets(&memory, &shards, blocks)
            {
                for (shard, target) in shards.iter().zip(targets) {
                    memory.update_usage(shard.number, |usage| usage.target = Some(target));
                }
                let hit_ratio = (hits as f64 + gain * KEPT_GAIN_RATIO) / counted;
                partition.expected_gain = Some(ExpectedGain { since: partition.uses, hit_ratio });
            }
        }
        let decay_factor = (-new_uses / turnover).exp();
        for shard in &shards {
            shard.curves.borrow_mut().memory().decay(decay_factor);
            memory.update_usage(shard.number, |usage| usage.hits = (usage.hits as f64 * decay_factor) as u64);
        }
        (partition.checked_at, partition.counted_uses) = (now, counted_uses());
        self.memory_partition.set(partition);
    }
}

impl MemoryPartition {
    /// Checks the gain once memory has turned over. If the gain falls short, the volumes return to the common pool.
    fn check_gain(&mut self, hit_ratio: f64, turnover: f64) {
        let Some(expected_gain) =
            self.expected_gain.filter(|expected_gain| self.uses - expected_gain.since >= turnover)
        else {
            return;
        };
        if hit_ratio >= expected_gain.hit_ratio {
            self.missed_gains = 0;
            return;
        }
        self.expected_gain = None;
        self.missed_gains = (self.missed_gains + 1).min(BACKOFF_MAX);
        self.not_before = self.uses + turnover * f64::from(1 << self.missed_gains);
    }
}

/// Returns targets of a partition with sufficient gain, and the hits that it is expected to gain.
fn better_targets<S: Seam>(memory: &MemoryCache<S>, shards: &[ShardRef<S>], blocks: u64) -> Option<(Vec<u64>, f64)> {
    let floor = blocks / shards.len() as u64 / FLOOR_DIVISOR;
    let usages: Vec<VolumeUsage> = shards.iter().map(|shard| memory.usage(shard.number)).collect();
    let demands: Vec<VolumeDemand> =
        shards.iter().zip(&usages).map(|(shard, usage)| shard.demand(*usage, floor, blocks)).collect();
    let targets = partition(blocks, &demands);
    let misses = |size: &dyn Fn(usize) -> u64| -> f64 {
        demands.iter().enumerate().map(|(volume, demand)| demand.misses(size(volume))).sum()
    };
    let current_misses = misses(&|volume| usages[volume].target.unwrap_or(usages[volume].held));
    let hits = demands.iter().map(VolumeDemand::rate).sum::<f64>() - current_misses;
    let gain = current_misses - misses(&|volume| targets[volume]);
    (gain > current_misses.min(hits) / GAIN_DIVISOR).then_some((targets, gain))
}

impl<S: Seam> Shard<S> {
    /// Passes the volume's bounds to memory.
    pub fn apply_memory_quota(&self) {
        let quota = self.memory_quota.get();
        self.core.memory().borrow_mut().update_usage(self.number, |usage| {
            usage.min = quota.min_bytes.div_ceil(BLOCK_SIZE);
            usage.max = self.memory_max();
        });
    }

    /// Maximum number of blocks of memory that the volume may have.
    pub fn memory_max(&self) -> u64 {
        let quota = self.memory_quota.get();
        let max = quota.max_bytes.map_or(u64::MAX, |bytes| (bytes / BLOCK_SIZE).max(MAX_BLOCKS_MIN));
        max.max(quota.min_bytes.div_ceil(BLOCK_SIZE))
    }

    /// The volume's demand for memory, from its curve and its counted hits. While it has requests it gets at least
    /// `floor` blocks.
    fn demand(&self, usage: VolumeUsage, floor: u64, blocks: u64) -> VolumeDemand {
        let mut curves = self.curves.borrow_mut();
        let uses = curves.memory().recent();
        let caches = self.policy.get() != WritePolicy::None && self.mode.get() != CacheMode::Paused;
        if !caches || uses.total == 0 {
            return VolumeDemand::new(usage.min, usage.max, 0.0, []);
        }
        let size = |step: i32| blocks as f64 * SIZE_MAX_RATIO * SIZE_STEP_RATIO.powi(step - SIZE_STEPS);
        let mut sizes: Vec<u64> =
            (0..=SIZE_STEPS).map(|step| size(step).round() as u64).filter(|size| *size > 0).collect();
        sizes.dedup();
        let mut points: Vec<_> = sizes.iter().copied().zip(uses.miss_ratios(sizes.iter().copied())).collect();
        points.push((usage.held, 1.0 - usage.hits as f64 / uses.total as f64));
        points.sort_by_key(|point| point.0);
        VolumeDemand::new(usage.min.max(floor), usage.max, uses.total as f64, points)
    }
}
