//! Memory quotas of the volumes, and the choice of the volume that loses a block when memory is full. The replacement
//! policy chooses the block.

use seam::Seam;

use super::MemoryCache;

/// Maximum number of volumes whose oldest blocks are compared for one eviction; more volumes are compared in rotation.
const COMPARED_VOLUMES_MAX: usize = 32;
/// Blocks that a volume above its maximum loses for each new one, so that a lowered maximum takes effect without a
/// pause.
const SHRINK_BLOCKS_MAX: u64 = 8;

/// Usage and quota of a volume in memory, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Blocks in memory.
    pub held_blocks: u64,
    /// Minimum: up to this number, no block is evicted for other volumes.
    pub min_blocks: u64,
    /// Maximum, except for blocks that are not clean.
    pub max_blocks: u64,
    /// Recent cache hits (not blocks).
    pub hits: u64,
    /// Blocks above this number are evicted first; `None` treats the blocks of all volumes equally.
    pub target_blocks: Option<u64>,
}

impl VolumeUsage {
    /// Usage of a volume without blocks, quota and target.
    const UNBOUNDED: VolumeUsage =
        VolumeUsage { held_blocks: 0, min_blocks: 0, max_blocks: u64::MAX, hits: 0, target_blocks: None };

    /// True when the volume has a maximum or a target.
    fn is_bounded(&self) -> bool {
        self.max_blocks != u64::MAX || self.target_blocks.is_some()
    }

    /// Number of blocks above which the volume is evicted from before others.
    fn eviction_floor_blocks(&self) -> u64 {
        self.target_blocks.unwrap_or(self.max_blocks).min(self.max_blocks).max(self.min_blocks)
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
    bounded_volumes: usize,
    /// Position at which the next search for victims starts.
    next_search_position: usize,
    /// Volumes that may lose a block; a field only to avoid allocation.
    candidates: Vec<u32>,
}

impl VolumeUsageTable {
    /// Usage and quota of a volume.
    pub fn get(&self, volume_number: u32) -> VolumeUsage {
        self.usages.get(volume_number as usize).copied().unwrap_or(VolumeUsage::UNBOUNDED)
    }

    /// Counts a use of one of the volume's blocks.
    pub fn record_use(&mut self, volume_number: u32) {
        self.usages[volume_number as usize].hits += 1;
    }

    /// Changes usage or quota of a volume; adds the volume if it is new.
    pub fn update(&mut self, volume_number: u32, change: impl FnOnce(&mut VolumeUsage)) {
        if self.usages.len() <= volume_number as usize {
            self.volumes.extend(self.usages.len() as u32..=volume_number);
            self.usages.resize(volume_number as usize + 1, VolumeUsage::UNBOUNDED);
        }
        let usage = &mut self.usages[volume_number as usize];
        let was_bounded = usage.is_bounded();
        change(usage);
        self.bounded_volumes = self.bounded_volumes + usize::from(usage.is_bounded()) - usize::from(was_bounded);
    }

    /// Removes detached volumes that no longer hold blocks.
    fn remove_empty_detached(&mut self) {
        if !self.detached.iter().any(|volume| self.usages[*volume as usize].held_blocks == 0) {
            return;
        }
        let (empty, remaining) =
            self.detached.iter().partition(|volume| self.usages[**volume as usize].held_blocks == 0);
        self.detached = remaining;
        let empty: Vec<u32> = empty;
        empty.iter().for_each(|volume| self.update(*volume, |usage| *usage = VolumeUsage::UNBOUNDED));
        self.volumes.retain(|volume| !empty.contains(volume));
    }

    /// The next volumes that hold more than `keep` allows; `seen` counts the volumes already examined.
    fn next_candidates(&mut self, seen: &mut usize, keep: impl Fn(&VolumeUsage) -> u64) -> &[u32] {
        self.candidates.clear();
        let count = self.volumes.len();
        while *seen < count && self.candidates.len() < COMPARED_VOLUMES_MAX {
            let volume = self.volumes[(self.next_search_position + *seen) % count];
            let usage = &self.usages[volume as usize];
            if usage.held_blocks > keep(usage) {
                self.candidates.push(volume);
            }
            *seen += 1;
        }
        &self.candidates
    }
}

impl<S: Seam> MemoryCache<S> {
    /// Usage and quota of a volume.
    pub fn usage(&self, volume_number: u32) -> VolumeUsage {
        self.volume_usage.get(volume_number)
    }

    /// Changes the quota of a volume.
    pub fn update_usage(&mut self, volume_number: u32, change: impl FnOnce(&mut VolumeUsage)) {
        self.volume_usage.update(volume_number, change);
    }

    /// Marks a volume as detached; its remaining blocks are evicted first.
    pub fn detach_volume(&mut self, volume_number: u32) {
        self.update_usage(volume_number, |usage| {
            *usage = VolumeUsage { held_blocks: usage.held_blocks, max_blocks: 0, ..VolumeUsage::UNBOUNDED }
        });
        self.volume_usage.detached.push(volume_number);
        self.volume_usage.remove_empty_detached();
    }

    /// Chooses a block to evict. Volumes above their maximum come first, then volumes above their target, then volumes
    /// above their minimum. If there are none, any volume loses a block, or the cache would be stuck.
    pub(super) fn find_victim(&mut self) -> Option<u32> {
        if self.volume_usage.bounded_volumes > 0 {
            let above: [fn(&VolumeUsage) -> u64; 2] = [|usage| usage.max_blocks, VolumeUsage::eviction_floor_blocks];
            if let Some(victim) = above.into_iter().find_map(|keep| self.find_victim_above(keep)) {
                return Some(victim);
            }
            self.volume_usage.remove_empty_detached();
        }
        self.find_victim_above(|usage| usage.min_blocks).or_else(|| self.find_victim_above(|_| 0))
    }

    /// Chooses a block of the volumes that hold more blocks than `keep` returns.
    fn find_victim_above(&mut self, keep: impl Fn(&VolumeUsage) -> u64) -> Option<u32> {
        let mut seen = 0;
        loop {
            let candidates = self.volume_usage.next_candidates(&mut seen, &keep);
            if candidates.is_empty() {
                return None;
            }
            if let Some(victim) = self.policy.choose_victim(candidates) {
                if self.volume_usage.volumes.len() > COMPARED_VOLUMES_MAX {
                    self.volume_usage.next_search_position =
                        (self.volume_usage.next_search_position + seen) % self.volume_usage.volumes.len();
                }
                return Some(victim);
            }
        }
    }

    /// Evicts blocks of a volume that has reached its maximum, for a new block of its own.
    pub(super) fn evict_to_max(&mut self, volume_number: u32) {
        for _ in 0..SHRINK_BLOCKS_MAX {
            let usage = self.volume_usage.get(volume_number);
            if usage.held_blocks < usage.max_blocks {
                return;
            }
            let Some(victim) = self.policy.choose_victim(&[volume_number]) else { return };
            self.free_slot(victim);
        }
    }
}
