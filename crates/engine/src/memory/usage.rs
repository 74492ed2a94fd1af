//! Memory quotas of the volumes, and the choice of the volume that loses a block when memory is full. The replacement
//! policy chooses the block.

use seam::Seam;

use super::MemoryCache;

/// Maximum number of volumes whose oldest blocks are compared for one eviction; more volumes are compared in rotation.
const COMPARED_MAX: usize = 32;
/// Blocks that a volume above its maximum loses for each new one, so that a lowered maximum takes effect without a
/// pause.
const SHRINK_MAX: u64 = 8;

/// Usage and quota of a volume in memory, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Blocks in memory.
    pub held: u64,
    /// Minimum: up to this number, no block is evicted for other volumes.
    pub min: u64,
    /// Maximum, except for blocks that are not clean.
    pub max: u64,
    /// Recent cache hits (not blocks).
    pub hits: u64,
    /// Blocks above this number are evicted first; `None` treats the blocks of all volumes equally.
    pub target: Option<u64>,
}

impl VolumeUsage {
    const UNBOUNDED: VolumeUsage = VolumeUsage { held: 0, min: 0, max: u64::MAX, hits: 0, target: None };

    /// True when the volume has a maximum or a target.
    fn is_bounded(&self) -> bool {
        self.max != u64::MAX || self.target.is_some()
    }

    /// Number of blocks above which the volume is evicted from before others.
    fn eviction_floor(&self) -> u64 {
        self.target.unwrap_or(self.max).min(self.max).max(self.min)
    }
}

/// Usage and quotas of all volumes.
#[derive(Default)]
pub struct VolumeUsageTable {
    /// Indexed by the volume's number.
    usages: Vec<VolumeUsage>,
    /// Attached volumes, and detached ones that still hold blocks.
    volumes: Vec<u32>,
    /// Detached volumes that still hold blocks.
    detached: Vec<u32>,
    /// Number of volumes with a maximum or a target; at zero, no search for them is needed.
    bounded: usize,
    /// Position at which the next search for victims starts.
    hand: usize,
    /// Volumes that may lose a block; a field only to avoid allocation.
    candidates: Vec<u32>,
}

impl VolumeUsageTable {
    /// Usage and quota of a volume.
    pub fn get(&self, volume: u32) -> VolumeUsage {
        self.usages.get(volume as usize).copied().unwrap_or(VolumeUsage::UNBOUNDED)
    }

    /// Counts a use of one of the volume's blocks.
    pub fn record_use(&mut self, volume: u32) {
        self.usages[volume as usize].hits += 1;
    }

    /// Changes usage or quota of a volume; adds the volume if it is new.
    pub fn update(&mut self, volume: u32, change: impl FnOnce(&mut VolumeUsage)) {
        if self.usages.len() <= volume as usize {
            self.volumes.extend(self.usages.len() as u32..=volume);
            self.usages.resize(volume as usize + 1, VolumeUsage::UNBOUNDED);
        }
        let usage = &mut self.usages[volume as usize];
        let was_bounded = usage.is_bounded();
        change(usage);
        self.bounded = self.bounded + usize::from(usage.is_bounded()) - usize::from(was_bounded);
    }

    /// Removes detached volumes that no longer hold blocks.
    fn remove_empty_detached(&mut self) {
        if !self.detached.iter().any(|volume| self.usages[*volume as usize].held == 0) {
            return;
        }
        let (empty, remaining) = self.detached.iter().partition(|volume| self.usages[**volume as usize].held == 0);
        self.detached = remaining;
        let empty: Vec<u32> = empty;
        empty.iter().for_each(|volume| self.update(*volume, |usage| *usage = VolumeUsage::UNBOUNDED));
        self.volumes.retain(|volume| !empty.contains(volume));
    }

    /// The next volumes that hold more than `keep` allows; `seen` counts the volumes already examined.
    fn next_candidates(&mut self, seen: &mut usize, keep: impl Fn(&VolumeUsage) -> u64) -> &[u32] {
        self.candidates.clear();
        let count = self.volumes.len();
        while *seen < count && self.candidates.len() < COMPARED_MAX {
            let volume = self.volumes[(self.hand + *seen) % count];
            let usage = &self.usages[volume as usize];
            if usage.held > keep(usage) {
                self.candidates.push(volume);
            }
            *seen += 1;
        }
        &self.candidates
    }
}

impl<S: Seam> MemoryCache<S> {
    /// Usage and quota of a volume.
    pub fn usage(&self, volume: u32) -> VolumeUsage {
        self.volume_usage.get(volume)
    }

    /// Changes the quota of a volume.
    pub fn update_usage(&mut self, volume: u32, change: impl FnOnce(&mut VolumeUsage)) {
        self.volume_usage.update(volume, change);
    }

    /// Marks a volume as detached; its remaining blocks are evicted first.
    pub fn detach_volume(&mut self, volume: u32) {
        self.update_usage(volume, |usage| *usage = VolumeUsage { held: usage.held, max: 0, ..VolumeUsage::UNBOUNDED });
        self.volume_usage.detached.push(volume);
        self.volume_usage.remove_empty_detached();
    }

    /// Chooses a block to evict. Volumes above their maximum come first, then volumes above their target, then volumes
    /// above their minimum. If there are none, any volume loses a block, or the cache would be stuck.
    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.volume_usage.bounded > 0 {
            let above: [fn(&VolumeUsage) -> u64; 2] = [|usage| usage.max, VolumeUsage::eviction_floor];
            if let Some(victim) = above.into_iter().find_map(|keep| self.victim_above(keep)) {
                return Some(victim);
            }
            self.volume_usage.remove_empty_detached();
        }
        self.victim_above(|usage| usage.min).or_else(|| self.victim_above(|_| 0))
    }

    fn victim_above(&mut self, keep: impl Fn(&VolumeUsage) -> u64) -> Option<u32> {
        let mut seen = 0;
        loop {
            let candidates = self.volume_usage.next_candidates(&mut seen, &keep);
            if candidates.is_empty() {
                return None;
            }
            if let Some(victim) = self.policy.victim(candidates) {
                if self.volume_usage.volumes.len() > COMPARED_MAX {
                    self.volume_usage.hand = (self.volume_usage.hand + seen) % self.volume_usage.volumes.len();
                }
                return Some(victim);
            }
        }
    }

    /// Evicts blocks of a volume that has reached its maximum, for a new block of its own.
    pub(super) fn evict_to_max(&mut self, volume: u32) {
        for _ in 0..SHRINK_MAX {
            let usage = self.volume_usage.get(volume);
            if usage.held < usage.max {
                return;
            }
            let Some(victim) = self.policy.victim(&[volume]) else { return };
            self.free_slot(victim);
        }
    }
}
