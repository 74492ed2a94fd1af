//! Memory divided between the volumes of a core, by their miss-ratio curves.
//!
//! Looked at when a miss wants buffers or something is dirty, so an idle engine has no timer. What comes of it are targets: whoever holds more loses
//! blocks first (`memory/room.rs`), so the division moves with the misses and nothing is dropped for it. As long as the curves promise little of
//! another division than there is, all stays as it is: at first a common pool, later the last division; and that goes when it does not bring what
//! was promised.
//!
//! What counts is what was asked for of late, in the time in which memory comes round: a curve of hours would divide it for a load that is over. The
//! curves are an LRU's, and the policy does better for some loads: what a volume's part brings now is not estimated but counted.

use seam::{BLOCK_BYTES, Nanos, Seam};

use super::common::Common;
use super::{Shard, ShardRef};
use crate::memory::{Memory, Room};
use crate::policy::division::{Claim, divide};
use crate::{CacheMode, WritePolicy};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The part of an equal share that nobody goes below who is asked for something: what is read twice in a moment should be there, and a curve
/// knows little of small sizes.
const FLOOR_PART: u64 = 64;
/// Uses of all volumes are forgotten after so many for each block of memory, on average.
const MEMORY_USES: f64 = 8.0;
/// Another division has to save at least this part of the misses, or of the hits where those are fewer. What a curve says of two sizes is off
/// by less.
const GAIN_PART: f64 = 32.0;
/// So much of the gain that was promised has to be there once memory has come round.
const KEPT_PART: f64 = 0.25;
/// What did not bring it is tried again after two rounds, then after four, and so on, doubled so many times at most.
const BROKEN_MAX: u32 = 6;
/// A maximum is at least so many blocks, or a long request would push itself out.
const MAX_LEAST: u64 = 64;
/// Sizes that are looked at in a curve, up to a few times the memory, each so much larger than the one before.
const SIZES: i32 = 64;
const SIZES_UP_TO: f64 = 4.0;
const SIZES_FACTOR: f64 = 1.15;

/// When memory was divided, and what came of it.
#[derive(Clone, Copy)]
pub struct Division {
    /// When it was looked at last, and how many uses were remembered then.
    looked: Nanos,
    remembered: f64,
    /// Uses until then.
    uses: f64,
    /// What it is held against.
    promise: Option<Promise>,
    /// Divisions in a row that did not keep what they promised, and the uses until which there is none for that.
    broken: u32,
    not_before: f64,
}

#[derive(Clone, Copy)]
struct Promise {
    /// The uses at which it was given.
    since: f64,
    /// Hits a use from then on, at least.
    hit_ratio: f64,
}

impl Division {
    /// None yet.
    pub fn since(now: Nanos) -> Self {
        Division { looked: now, remembered: 0.0, uses: 0.0, promise: None, broken: 0, not_before: 0.0 }
    }
}

impl<S: Seam> Common<S> {
    /// Divides memory if it is time for that.
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
        // Of too little nothing can be said, and the volumes share what they win.
        if shards.len() > 1 && all >= round / 2.0 {
            let hits: u64 = shards.iter().map(|shard| memory.room(shard.number).hits).sum();
            division.judge(hits as f64 / all, round);
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
    /// Memory has come round once: does the division bring what it promised? If not, the common pool is what volumes have.
    fn judge(&mut self, hit_ratio: f64, round: f64) {
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

/// A division that is worth it, if there is one, and the hits that it promises besides.
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
    /// Tells memory what the volume may have of it.
    pub fn bound_memory(&self) {
        let share = self.memory_share.get();
        self.core.memory().borrow_mut().set_room(self.number, |room| {
            room.min = share.min_bytes.div_ceil(BLOCK);
            room.max = self.memory_max();
        });
    }

    /// Blocks of memory that it may have.
    pub fn memory_max(&self) -> u64 {
        let share = self.memory_share.get();
        let max = share.max_bytes.map_or(u64::MAX, |bytes| (bytes / BLOCK).max(MAX_LEAST));
        max.max(share.min_bytes.div_ceil(BLOCK))
    }

    /// What it could do with memory. `floor`: it has at least so much while it is asked for something.
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
