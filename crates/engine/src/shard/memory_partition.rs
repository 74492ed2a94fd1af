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

/// Each volume with requests gets at least 1/64 of an equal part: repeated reads should hit, and a curve is unreliable
/// at small sizes.
const FLOOR_DIVISOR: u64 = 64;
/// Uses for each block of memory, averaged over all volumes, after which memory has turned over: older uses decay.
const USES_PER_BLOCK: f64 = 8.0;
/// A new partition must gain at least 1/32 of the misses, or of the hits if they are fewer. The error of a curve's
/// difference between two sizes is smaller.
const GAIN_DIVISOR: f64 = 32.0;
/// Minimum part of the expected gain that a partition must reach, or it is abandoned once memory has turned over.
const REACHED_GAIN_RATIO_MIN: f64 = 0.25;
/// Maximum doublings of the pause after partitions that missed their expected gain. The pause is two turnovers at
/// first, then four, and so on.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// A volume's maximum is at least this many blocks: with fewer, a long request would evict its own first blocks.
const VOLUME_MAX_BLOCKS_FLOOR: u64 = 64;
/// Number of steps between the sizes at which a curve is evaluated. The sizes grow geometrically.
const SIZE_STEPS: i32 = 64;
/// Largest of these sizes, as a multiple of the memory.
const SIZE_MAX_RATIO: f64 = 4.0;
/// Ratio of two adjacent sizes.
const SIZE_STEP_RATIO: f64 = 1.15;

/// The last partition of memory and its result.
#[derive(Clone, Copy)]
pub struct MemoryPartition {
    /// Time of the last check.
    checked_at: Nanos,
    /// Recent uses of all volumes, after their decay at the last check.
    uses_at_check: f64,
    /// All uses until then.
    total_uses: f64,
    /// The gain that the partition must reach.
    expected_gain: Option<ExpectedGain>,
    /// Consecutive partitions that missed their expected gain.
    missed_gains: u32,
    /// No new partition is made before `total_uses` reaches this number.
    retry_at_uses: f64,
}

/// The gain by which a partition is judged.
#[derive(Clone, Copy)]
struct ExpectedGain {
    /// The count of uses when memory was partitioned.
    since_uses: f64,
    /// Least hit ratio from then on.
    hit_ratio_min: f64,
}

impl MemoryPartition {
    /// The state before the first partition.
    pub fn new(now: Nanos) -> Self {
        MemoryPartition {
            checked_at: now,
            uses_at_check: 0.0,
            total_uses: 0.0,
            expected_gain: None,
            missed_gains: 0,
            retry_at_uses: 0.0,
        }
    }

    /// Checks the gain once memory has turned over. If the gain falls short, the volumes return to the common pool.
    fn check_gain(&mut self, hit_ratio: f64, turnover: f64) {
        let Some(expected_gain) =
            self.expected_gain.filter(|expected_gain| self.total_uses - expected_gain.since_uses >= turnover)
        else {
            return;
        };
        if hit_ratio >= expected_gain.hit_ratio_min {
            self.missed_gains = 0;
            return;
        }
        self.expected_gain = None;
        self.missed_gains = (self.missed_gains + 1).min(BACKOFF_DOUBLINGS_MAX);
        self.retry_at_uses = self.total_uses + turnover * f64::from(1 << self.missed_gains);
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
        let sum_recent_uses =
            || shards.iter().map(|shard| shard.curves.borrow_mut().memory().recent_histogram().total_uses as f64).sum();
        let (recent_uses, turnover): (f64, f64) = (sum_recent_uses(), blocks as f64 * USES_PER_BLOCK);
        let new_uses = (recent_uses - partition.uses_at_check).max(0.0);
        partition.total_uses += new_uses;
        // With too few uses there is no reliable estimate, and the volumes compete for the common pool.
        if shards.len() > 1 && recent_uses >= turnover / 2.0 {
            let hits: u64 = shards.iter().map(|shard| memory.usage(shard.volume_number).hits).sum();
            partition.check_gain(hits as f64 / recent_uses, turnover);
            if partition.expected_gain.is_none() {
                shards
                    .iter()
                    .for_each(|shard| memory.update_usage(shard.volume_number, |usage| usage.target_blocks = None));
            }
            if partition.total_uses >= partition.retry_at_uses
                && let Some((targets, gain)) = find_better_targets(&memory, &shards, blocks)
            {
                for (shard, target) in shards.iter().zip(targets) {
                    memory.update_usage(shard.volume_number, |usage| usage.target_blocks = Some(target));
                }
                let hit_ratio = (hits as f64 + gain * REACHED_GAIN_RATIO_MIN) / recent_uses;
                partition.expected_gain =
                    Some(ExpectedGain { since_uses: partition.total_uses, hit_ratio_min: hit_ratio });
            }
        }
        let decay_factor = (-new_uses / turnover).exp();
        for shard in &shards {
            shard.curves.borrow_mut().memory().decay(decay_factor);
            memory.update_usage(shard.volume_number, |usage| usage.hits = (usage.hits as f64 * decay_factor) as u64);
        }
        (partition.checked_at, partition.uses_at_check) = (now, sum_recent_uses());
        self.memory_partition.set(partition);
    }
}

/// Returns targets of a partition with sufficient gain, and the hits that it is expected to gain.
fn find_better_targets<S: Seam>(
    memory: &MemoryCache<S>,
    shards: &[ShardRef<S>],
    memory_blocks: u64,
) -> Option<(Vec<u64>, f64)> {
    let floor = memory_blocks / shards.len() as u64 / FLOOR_DIVISOR;
    let usages: Vec<VolumeUsage> = shards.iter().map(|shard| memory.usage(shard.volume_number)).collect();
    let demands: Vec<VolumeDemand> =
        shards.iter().zip(&usages).map(|(shard, usage)| shard.estimate_demand(*usage, floor, memory_blocks)).collect();
    let targets = partition(memory_blocks, &demands);
    let misses = |size: &dyn Fn(usize) -> u64| -> f64 {
        demands.iter().enumerate().map(|(volume, demand)| demand.expected_misses(size(volume))).sum()
    };
    let current_misses = misses(&|volume| usages[volume].target_blocks.unwrap_or(usages[volume].held_blocks));
    let hits = demands.iter().map(VolumeDemand::recent_uses).sum::<f64>() - current_misses;
    let gain = current_misses - misses(&|volume| targets[volume]);
    (gain > current_misses.min(hits) / GAIN_DIVISOR).then_some((targets, gain))
}

impl<S: Seam> Shard<S> {
    /// Passes the volume's bounds to memory.
    pub fn apply_memory_quota(&self) {
        let quota = self.memory_quota.get();
        self.core.memory().borrow_mut().update_usage(self.volume_number, |usage| {
            usage.min_blocks = quota.min_bytes.div_ceil(BLOCK_BYTES as u64);
            usage.max_blocks = self.memory_max_blocks();
        });
    }

    /// Maximum number of blocks of memory that the volume may have.
    pub fn memory_max_blocks(&self) -> u64 {
        let quota = self.memory_quota.get();
        let max = quota.max_bytes.map_or(u64::MAX, |bytes| (bytes / BLOCK_BYTES as u64).max(VOLUME_MAX_BLOCKS_FLOOR));
        max.max(quota.min_bytes.div_ceil(BLOCK_BYTES as u64))
    }

    /// The volume's demand for memory, from its curve and its counted hits. While it has requests it gets at least
    /// `floor_blocks` blocks.
    fn estimate_demand(&self, usage: VolumeUsage, floor_blocks: u64, memory_blocks: u64) -> VolumeDemand {
        let mut curves = self.curves.borrow_mut();
        let uses = curves.memory().recent_histogram();
        let caches = self.policy.get() != WritePolicy::None && self.mode.get() != CacheMode::Paused;
        if !caches || uses.total_uses == 0 {
            return VolumeDemand::new(usage.min_blocks, usage.max_blocks, 0.0, []);
        }
        let size = |step: i32| memory_blocks as f64 * SIZE_MAX_RATIO * SIZE_STEP_RATIO.powi(step - SIZE_STEPS);
        let mut sizes: Vec<u64> =
            (0..=SIZE_STEPS).map(|step| size(step).round() as u64).filter(|size| *size > 0).collect();
        sizes.dedup();
        let mut points: Vec<_> = sizes.iter().copied().zip(uses.miss_ratios(sizes.iter().copied())).collect();
        points.push((usage.held_blocks, 1.0 - usage.hits as f64 / uses.total_uses as f64));
        points.sort_by_key(|point| point.0);
        VolumeDemand::new(usage.min_blocks.max(floor_blocks), usage.max_blocks, uses.total_uses as f64, points)
    }
}
