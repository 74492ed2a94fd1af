//! Division of memory between the volumes of a core by their miss-ratio curves.
//!
//! A division is considered when a miss needs buffers or something is dirty, so an idle engine has no timer. Its result
//! is a target for each volume. Volumes above their target lose blocks first (`memory/room.rs`), so memory moves with
//! the misses and no block is dropped for it. As long as the curves promise little gain, all stays as it is: at first a
//! common pool, later the last division. A division that does not bring the promised gain is given up.
//!
//! Only recent uses count, within the time in which memory turns over once: a curve over hours would serve a load that
//! is over. The curves describe an LRU, but the policy does better for some loads. So the hits of a volume's
//! present part are counted, not estimated.

use seam::{BLOCK_BYTES, Nanos, Seam};

use super::common::Common;
use super::{Shard, ShardRef};
use crate::memory::{Memory, Room};
use crate::policy::division::{Claim, divide};
use crate::{CacheMode, WritePolicy};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The least part of an equal share for each volume with requests: two reads in a moment should hit, and a curve is
/// unreliable at small sizes.
const FLOOR_PART: u64 = 64;
/// Uses for each block of memory, averaged over all volumes, after which memory has turned over: older uses fade.
const MEMORY_USES: f64 = 8.0;
/// Least gain of a new division: this part of the misses, or of the hits if they are fewer. The error of a curve's
/// difference between two sizes is smaller.
const GAIN_PART: f64 = 32.0;
/// Part of the promised gain that has to be there once memory has turned over.
const KEPT_PART: f64 = 0.25;
/// Most doublings of the pause after broken promises: the pause is two turnovers at first, then four, and so on.
const BROKEN_MAX: u32 = 6;
/// Least maximum in blocks; a long request would evict itself otherwise.
const MAX_LEAST: u64 = 64;
/// Sizes probed on a curve, up to a few times the memory, in geometric steps.
const SIZES: i32 = 64;
const SIZES_UP_TO: f64 = 4.0;
const SIZES_FACTOR: f64 = 1.15;

/// The last division of memory and its result.
#[derive(Clone, Copy)]
pub struct Division {
    /// Time of the last look, and the uses that were counted then.
    looked: Nanos,
    remembered: f64,
    /// All uses until then.
    uses: f64,
    /// The promised gain that the division has to bring.
    promise: Option<Promise>,
    /// Consecutive divisions with a broken promise, and the count of uses before which no new one is made.
    broken: u32,
    not_before: f64,
}

#[derive(Clone, Copy)]
struct Promise {
    /// The count of uses when the promise was made.
    since: f64,
    /// Least hit ratio from then on.
    hit_ratio: f64,
}

impl Division {
    /// The state before the first division.
    pub fn since(now: Nanos) -> Self {
        Division { looked: now, remembered: 0.0, uses: 0.0, promise: None, broken: 0, not_before: 0.0 }
    }
}

impl<S: Seam> Common<S> {
    /// Divides memory if it is due.
    pub fn divide_if_due(&self) {
        let (every, now, mut division) = (self.spec().divide_every, self.seam().now(), self.division.get());
        if every == Nanos::ZERO || now.since(division.looked) < every {
            return;
        }
        let shards = self.shards();
        let mut memory = self.memory().borrow_mut();
        let blocks = self.seam().blocks_total() as u64;
        let remembered = || shards.iter().map(|shard| shard.curves.borrow_mut().memory().recent().all as f64).sum();
        let (all, round): (f64, f64) = (remembered(), blocks as f64 * MEMORY_USES);
        let fresh = (all - division.remembered).max(0.0);
        division.uses += fresh;
        // With too few uses there is no reliable estimate, and the volumes compete for the common pool.
        if shards.len() > 1 && all >= round / 2.0 {
            let hits: u64 = shards.iter().map(|shard| memory.room(shard.number).hits).sum();
            division.check_promise(hits as f64 / all, round);
            if division.promise.is_none() {
                shards.iter().for_each(|shard| memory.set_room(shard.number, |room| room.target = None));
            }
            if division.uses >= division.not_before
                && let Some((targets, gain)) = better(&memory, &shards, blocks)
            {
                for (shard, target) in shards.iter().zip(targets) {
                    memory.set_room(shard.number, |room| room.target = Some(target));
                }
                let hit_ratio = (hits as f64 + gain * KEPT_PART) / all;
                division.promise = Some(Promise { since: division.uses, hit_ratio });
            }
        }
        let part = (-fresh / round).exp();
        for shard in &shards {
            shard.curves.borrow_mut().memory().fade(part);
            memory.set_room(shard.number, |room| room.hits = (room.hits as f64 * part) as u64);
        }
        (division.looked, division.remembered) = (now, remembered());
        self.division.set(division);
    }
}

impl Division {
    /// Checks the promise once memory has turned over. If it is broken, the volumes return to the common pool.
    fn check_promise(&mut self, hit_ratio: f64, round: f64) {
        let Some(promise) = self.promise.filter(|promise| self.uses - promise.since >= round) else { return };
        if hit_ratio >= promise.hit_ratio {
            self.broken = 0;
            return;
        }
        self.promise = None;
        self.broken = (self.broken + 1).min(BROKEN_MAX);
        self.not_before = self.uses + round * f64::from(1 << self.broken);
    }
}

/// Returns a division that is worth it, with the hits that it promises to gain.
fn better<S: Seam>(memory: &Memory<S>, shards: &[ShardRef<S>], blocks: u64) -> Option<(Vec<u64>, f64)> {
    let floor = blocks / shards.len() as u64 / FLOOR_PART;
    let rooms: Vec<Room> = shards.iter().map(|shard| memory.room(shard.number)).collect();
    let claims: Vec<Claim> = shards.iter().zip(&rooms).map(|(shard, room)| shard.claim(*room, floor, blocks)).collect();
    let wanted = divide(blocks, &claims);
    let misses = |share: &dyn Fn(usize) -> u64| -> f64 {
        claims.iter().enumerate().map(|(at, claim)| claim.misses(share(at))).sum()
    };
    let now = misses(&|at| rooms[at].target.unwrap_or(rooms[at].held));
    let hits = claims.iter().map(Claim::rate).sum::<f64>() - now;
    let gain = now - misses(&|at| wanted[at]);
    (gain > now.min(hits) / GAIN_PART).then_some((wanted, gain))
}

impl<S: Seam> Shard<S> {
    /// Passes the volume's bounds to memory.
    pub fn bound_memory(&self) {
        let share = self.memory_share.get();
        self.core.memory().borrow_mut().set_room(self.number, |room| {
            room.min = share.min_bytes.div_ceil(BLOCK);
            room.max = self.memory_max();
        });
    }

    /// The most blocks of memory that the volume may have.
    pub fn memory_max(&self) -> u64 {
        let share = self.memory_share.get();
        let max = share.max_bytes.map_or(u64::MAX, |bytes| (bytes / BLOCK).max(MAX_LEAST));
        max.max(share.min_bytes.div_ceil(BLOCK))
    }

    /// The volume's claim to memory, from its curve and its counted hits. While it has requests it gets at least
    /// `floor` blocks.
    fn claim(&self, room: Room, floor: u64, blocks: u64) -> Claim {
        let mut curves = self.curves.borrow_mut();
        let uses = curves.memory().recent();
        let caches = self.policy.get() != WritePolicy::None && self.mode.get() != CacheMode::Paused;
        if !caches || uses.all == 0 {
            return Claim::new(room.min, room.max, 0.0, []);
        }
        let size = |step: i32| blocks as f64 * SIZES_UP_TO * SIZES_FACTOR.powi(step - SIZES);
        let mut sizes: Vec<u64> = (0..=SIZES).map(|step| size(step).round() as u64).filter(|size| *size > 0).collect();
        sizes.dedup();
        let mut points: Vec<_> = sizes.iter().copied().zip(uses.miss_ratios(sizes.iter().copied())).collect();
        points.push((room.held, 1.0 - room.hits as f64 / uses.all as f64));
        points.sort_by_key(|point| point.0);
        Claim::new(room.min.max(floor), room.max, uses.all as f64, points)
    }
}
