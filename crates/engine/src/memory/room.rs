//! Memory quotas of the volumes, and the choice of the volume that loses a block when room is needed. The replacement
//! policy chooses the block.

use seam::Seam;

use super::Memory;

/// Limit of volumes whose oldest blocks are compared for one eviction; more volumes are compared in rotation.
const COMPARED: usize = 32;
/// Blocks that a volume above its maximum loses for each new one, so that a lowered maximum takes effect without a
/// pause.
const SHRINK_MAX: u64 = 8;

/// Usage and quota of a volume in memory, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks in memory.
    pub held: u64,
    /// Minimum: up to this number, no block is evicted for other volumes.
    pub min: u64,
    /// Maximum, except for blocks that are not clean.
    pub max: u64,
    /// Recent uses of its blocks.
    pub hits: u64,
    /// Blocks above this number are evicted first; `None` treats the blocks of all volumes alike.
    pub target: Option<u64>,
}

impl Room {
    const OPEN: Room = Room { held: 0, min: 0, max: u64::MAX, hits: 0, target: None };

    /// True when the volume has a maximum or a target.
    fn is_bounded(&self) -> bool {
        self.max != u64::MAX || self.target.is_some()
    }

    /// Number of blocks above which the volume is evicted from before others.
    fn share(&self) -> u64 {
        self.target.unwrap_or(self.max).min(self.max).max(self.min)
    }
}

/// The quotas of all volumes.
#[derive(Default)]
pub struct Rooms {
    /// Indexed by the volume's number.
    rooms: Vec<Room>,
    /// Attached volumes, and detached ones that still hold blocks.
    volumes: Vec<u32>,
    /// The detached ones.
    gone: Vec<u32>,
    /// Number of volumes with a maximum or a target; at zero, no search for them is needed.
    bounded: usize,
    /// Position at which the next search for victims starts.
    hand: usize,
    /// Volumes that may lose a block; kept here to avoid allocation.
    losers: Vec<u32>,
}

impl Rooms {
    pub fn of(&self, volume: u32) -> Room {
        self.rooms.get(volume as usize).copied().unwrap_or(Room::OPEN)
    }

    pub fn used(&mut self, volume: u32) {
        self.rooms[volume as usize].hits += 1;
    }

    pub fn change(&mut self, volume: u32, change: impl FnOnce(&mut Room)) {
        if self.rooms.len() <= volume as usize {
            self.volumes.extend(self.rooms.len() as u32..=volume);
            self.rooms.resize(volume as usize + 1, Room::OPEN);
        }
        let room = &mut self.rooms[volume as usize];
        let was_bounded = room.is_bounded();
        change(room);
        self.bounded = self.bounded + usize::from(room.is_bounded()) - usize::from(was_bounded);
    }

    /// Forgets detached volumes that no longer hold blocks.
    fn forget_gone(&mut self) {
        if !self.gone.iter().any(|volume| self.rooms[*volume as usize].held == 0) {
            return;
        }
        let (gone, left) = self.gone.iter().partition(|volume| self.rooms[**volume as usize].held == 0);
        self.gone = left;
        let gone: Vec<u32> = gone;
        gone.iter().for_each(|volume| self.change(*volume, |room| *room = Room::OPEN));
        self.volumes.retain(|volume| !gone.contains(volume));
    }

    /// The next volumes that hold more than `keep` allows; `seen` counts the volumes already examined.
    fn more_losers(&mut self, seen: &mut usize, keep: impl Fn(&Room) -> u64) -> &[u32] {
        self.losers.clear();
        let count = self.volumes.len();
        while *seen < count && self.losers.len() < COMPARED {
            let volume = self.volumes[(self.hand + *seen) % count];
            let room = &self.rooms[volume as usize];
            if room.held > keep(room) {
                self.losers.push(volume);
            }
            *seen += 1;
        }
        &self.losers
    }
}

impl<S: Seam> Memory<S> {
    /// Usage and quota of a volume.
    pub fn room(&self, volume: u32) -> Room {
        self.rooms.of(volume)
    }

    /// Changes the quota of a volume.
    pub fn set_room(&mut self, volume: u32, change: impl FnOnce(&mut Room)) {
        self.rooms.change(volume, change);
    }

    /// Forgets a detached volume; its remaining blocks are evicted first.
    pub fn forget(&mut self, volume: u32) {
        self.set_room(volume, |room| *room = Room { held: room.held, max: 0, ..Room::OPEN });
        self.rooms.gone.push(volume);
        self.rooms.forget_gone();
    }

    /// Chooses a block to evict. Volumes above their maximum come first, then volumes above their target, then volumes
    /// above their minimum. If there are none, any volume loses a block, or the cache would be stuck.
    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.rooms.bounded > 0 {
            let above: [fn(&Room) -> u64; 2] = [|room| room.max, Room::share];
            if let Some(victim) = above.into_iter().find_map(|keep| self.victim_above(keep)) {
                return Some(victim);
            }
            self.rooms.forget_gone();
        }
        self.victim_above(|room| room.min).or_else(|| self.victim_above(|_| 0))
    }

    fn victim_above(&mut self, keep: impl Fn(&Room) -> u64) -> Option<u32> {
        let mut seen = 0;
        loop {
            let losers = self.rooms.more_losers(&mut seen, &keep);
            if losers.is_empty() {
                return None;
            }
            if let Some(victim) = self.policy.victim(losers) {
                if self.rooms.volumes.len() > COMPARED {
                    self.rooms.hand = (self.rooms.hand + seen) % self.rooms.volumes.len();
                }
                return Some(victim);
            }
        }
    }

    /// Evicts blocks of a volume that has reached its maximum, to make room for one more of its own.
    pub(super) fn keep_below_max(&mut self, volume: u32) {
        for _ in 0..SHRINK_MAX {
            let room = self.rooms.of(volume);
            if room.held < room.max {
                return;
            }
            let Some(victim) = self.policy.victim(&[volume]) else { return };
            self.discharge(victim);
        }
    }
}
