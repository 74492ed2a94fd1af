//! WOW (Gill and Modha, FAST 2005): the groups of a write cache in one circle by address, as CSCAN, each with a recency
//! bit, as CLOCK.
//!
//! A group is the stripe of a RAID group. It enters with its bit clear, and a write of a block that the cache holds
//! sets the bit. The hand writes all dirty blocks of a group whose bit is clear, and clears the bit of the others.

use std::collections::BTreeMap;

use super::dirty_blocks::{DirtyBlocks, Run};
use super::{DestageState, Order};

/// A group with dirty blocks.
#[derive(Debug, Default)]
struct Group {
    dirty: u64,
    was_hit: bool,
}

/// The circle of groups.
pub struct Wow {
    group_blocks: u64,
    groups: BTreeMap<u64, Group>,
    /// The group at which the hand looks next.
    hand: u64,
    /// End of the group that is being written, and the next block to look at.
    current: Option<(u64, u64)>,
}

impl Wow {
    /// A circle of groups of `group_blocks`.
    pub fn new(group_blocks: u64) -> Wow {
        Wow { group_blocks, groups: BTreeMap::new(), hand: 0, current: None }
    }

    /// Moves the hand to the next group that is to be written.
    fn advance_hand(&mut self) -> Option<u64> {
        // The second round finds all bits clear.
        for _ in 0..2 * self.groups.len() {
            let next = self.groups.range(self.hand..).next().or_else(|| self.groups.iter().next());
            let number = *next?.0;
            self.hand = number + 1;
            let group = self.groups.get_mut(&number).expect("the hand points at a group");
            if !std::mem::take(&mut group.was_hit) {
                return Some(number);
            }
        }
        None
    }
}

impl Order for Wow {
    fn record_write(&mut self, block: u64, was_held: bool, was_dirty: bool) {
        let number = block / self.group_blocks;
        let is_new = !self.groups.contains_key(&number);
        let group = self.groups.entry(number).or_default();
        group.dirty += u64::from(!was_dirty);
        group.was_hit |= was_held && !is_new;
    }

    fn record_start(&mut self, run: Run) {
        let number = run.first / self.group_blocks;
        let group = self.groups.get_mut(&number).expect("a run of dirty blocks lies in a group");
        group.dirty -= run.blocks;
        if group.dirty == 0 {
            self.groups.remove(&number);
            self.current = None;
        }
    }

    fn next_run(&mut self, dirty: &DirtyBlocks, _: &DestageState, blocks_max: u64) -> Option<Run> {
        // A group whose dirty blocks are all in flight is passed over.
        for _ in 0..=self.groups.len() {
            let (next, end) = match self.current {
                Some(current) => current,
                None => {
                    let first = self.advance_hand()? * self.group_blocks;
                    (first, first + self.group_blocks)
                }
            };
            let Some(first) = dirty.first_writable(next, end) else {
                self.current = None;
                continue;
            };
            let run = dirty.run(first, end.min(first.saturating_add(blocks_max)), |_, _| true);
            self.current = Some((run.end(), end));
            return Some(run);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use seam::Nanos;

    use super::*;

    /// A cache of groups of four blocks.
    struct Fixture {
        dirty: DirtyBlocks,
        order: Wow,
    }

    impl Fixture {
        fn write(&mut self, block: u64) {
            let was_dirty = self.dirty.get(block).is_some();
            let was_held = self.dirty.write(block, Nanos::ZERO);
            self.order.record_write(block, was_held, was_dirty);
        }

        fn next(&mut self) -> Option<(u64, u64)> {
            let run = self.order.next_run(&self.dirty, &DestageState::default(), u64::MAX)?;
            self.order.record_start(run);
            self.dirty.start(run);
            self.dirty.complete(run);
            Some((run.first, run.blocks))
        }
    }

    fn written(blocks: &[u64]) -> Fixture {
        let mut fixture = Fixture { dirty: DirtyBlocks::default(), order: Wow::new(4) };
        blocks.iter().for_each(|block| fixture.write(*block));
        fixture
    }

    #[test]
    fn groups_are_written_by_address_whatever_the_order_of_writes() {
        let mut fixture = written(&[40, 8, 9, 11, 20]);
        let runs: Vec<_> = std::iter::from_fn(|| fixture.next()).collect();
        assert_eq!(runs, [(8, 2), (11, 1), (20, 1), (40, 1)]);
    }

    #[test]
    fn hand_passes_over_a_hit_group_once_and_clears_its_bit() {
        let mut fixture = written(&[0, 8, 16]);
        fixture.write(8);
        assert_eq!([fixture.next(), fixture.next()], [Some((0, 1)), Some((16, 1))]);
        assert_eq!(fixture.next(), Some((8, 1)), "the bit was cleared in the first round");
        assert_eq!(fixture.next(), None);
    }

    #[test]
    fn new_block_of_a_known_group_is_no_hit() {
        let mut fixture = written(&[0, 1, 8]);
        assert_eq!(fixture.next(), Some((0, 2)));
        // The hand does not go back for a group behind it before it has been around.
        fixture.write(2);
        fixture.write(12);
        assert_eq!([fixture.next(), fixture.next(), fixture.next()], [Some((8, 1)), Some((12, 1)), Some((2, 1))]);
    }
}
