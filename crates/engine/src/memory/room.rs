//! Whose block leaves when room is needed. The policy chooses which one of them.

use seam::Seam;

use super::Memory;

/// Volumes whose oldest blocks are compared, at most; where there are more they take turns.
const COMPARED: usize = 32;
/// Blocks that one goes down by when another one comes to a volume that has more than it may: a maximum that was lowered costs no pause.
const SHRINK_MAX: u64 = 8;

/// What a volume holds in memory and may hold, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// So many are there.
    pub held: u64,
    /// While it has no more, none of them goes for others.
    pub min: u64,
    /// It never has more, what is not clean aside.
    pub max: u64,
    /// Uses of its blocks of late.
    pub hits: u64,
    /// What has more than that loses blocks first; `None`: all volumes' blocks are alike.
    pub target: Option<u64>,
}

impl Room {
    const OPEN: Room = Room { held: 0, min: 0, max: u64::MAX, hits: 0, target: None };

    /// True when the volume has a maximum or a target.
    fn is_bounded(&self) -> bool {
        self.max != u64::MAX || self.target.is_some()
    }

    /// What is above that goes first.
    fn share(&self) -> u64 {
        self.target.unwrap_or(self.max).min(self.max).max(self.min)
    }
}

/// Those of all volumes.
#[derive(Default)]
pub struct Rooms {
    /// By the volume's number.
    rooms: Vec<Room>,
    /// The volumes that are there, and those that are gone and still hold something.
    volumes: Vec<u32>,
    /// Those that are gone.
    gone: Vec<u32>,
    /// Of all, those with a maximum or a target: while there are none nobody looks for them.
    bounded: usize,
    /// Where the next look at them begins.
    hand: usize,
    /// Who may lose a block; here so that nothing is allocated for it.
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

    /// Forgets those who are gone and hold nothing any more.
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

    /// The next volumes that hold more than `keep` says; `seen` of them all were looked at before.
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
    /// What a volume holds and may hold.
    pub fn room(&self, volume: u32) -> Room {
        self.rooms.of(volume)
    }

    /// Changes what a volume may hold.
    pub fn set_room(&mut self, volume: u32, change: impl FnOnce(&mut Room)) {
        self.rooms.change(volume, change);
    }

    /// A volume is gone. What may be left of it goes first.
    pub fn forget(&mut self, volume: u32) {
        self.set_room(volume, |room| *room = Room { held: room.held, max: 0, ..Room::OPEN });
        self.rooms.gone.push(volume);
        self.rooms.forget_gone();
    }

    /// A block to go: of who has more than he may; else of who has more than his share; else of who has more than his minimum; else
    /// anybody's, or nothing would ever move again.
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

    /// Makes room for one more block of a volume that has all that it may have, at its own cost.
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
