//! Fill guards (R2, docs/rules.md): one for each fill or query in flight.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use seam::Seam;

use super::state::State;
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::wait::Signal;

/// Fill guard (R2): lets a fill install only content that no write has superseded. A change of a block during the fill
/// invalidates the guard for the changed sectors.
pub struct FillGuard {
    blocks: Range<BlockNo>,
    /// Other requests may wait for its content. False for a query and for a read past a bad sector.
    installs: bool,
    invalidated: RefCell<Vec<Sectors>>,
    is_ended: Cell<bool>,
    signal: Signal,
}

impl FillGuard {
    fn new(blocks: Range<BlockNo>, installs: bool) -> Rc<Self> {
        let count = BlockNo::count(&blocks) as usize;
        let invalidated = RefCell::new(vec![Sectors::NONE; count]);
        Rc::new(FillGuard { blocks, installs, invalidated, is_ended: Cell::new(false), signal: Signal::default() })
    }

    /// True if the guard covers the block.
    pub fn covers(&self, block: BlockNo) -> bool {
        self.blocks.contains(&block)
    }

    /// Sectors of a block that changed since the fill began.
    pub fn invalidated(&self, block: BlockNo) -> Sectors {
        self.invalidated.borrow()[block.distance_from(self.blocks.start) as usize]
    }

    /// Waits until the fill ends.
    pub async fn wait_for_end(&self) {
        self.signal.wait_for(|| self.is_ended.get().then_some(())).await;
    }

    fn invalidate(&self, blocks: &Range<BlockNo>, sectors: Sectors) {
        let (start, end) = (self.blocks.start.max(blocks.start), self.blocks.end.min(blocks.end));
        let mut invalidated = self.invalidated.borrow_mut();
        for block in BlockNo::each(&(start..end)) {
            let entry = &mut invalidated[block.distance_from(self.blocks.start) as usize];
            *entry = entry.with(sectors);
        }
    }
}

impl State {
    /// Invalidates these sectors in all fill guards: their newest content is no longer the backing's, so no fill may
    /// install them (R2). Copies that the volume's former owner has of the blocks are no longer admitted either.
    pub fn invalidate_fills(&mut self, blocks: Range<BlockNo>, sectors: Sectors) {
        for guard in &self.fill_guards {
            guard.invalidate(&blocks, sectors);
        }
        if self.changed_blocks.as_mut().is_some_and(|changed| changed.add(&blocks).is_err()) {
            self.changed_blocks = None;
        }
    }

    /// Issues a guard for the reload of spilled blocks.
    pub fn issue_reload_guard(&mut self, blocks: Range<BlockNo>) -> Rc<FillGuard> {
        let guard = FillGuard::new(blocks, true);
        self.fill_guards.push(Rc::clone(&guard));
        guard
    }

    /// A fill in flight that will install valid content of these sectors.
    pub fn fill_guard_for(&self, block: BlockNo, sectors: Sectors) -> Option<&Rc<FillGuard>> {
        let has_content = |guard: &&Rc<FillGuard>| {
            guard.installs
                && guard.covers(block)
                && guard.invalidated(block).without(sectors) == guard.invalidated(block)
        };
        self.fill_guards.iter().find(has_content)
    }

    /// Issues a guard. Sectors that are newer in memory than on the backing are invalid from the start. `installs`:
    /// other requests may wait for the fill and find its content in memory.
    pub fn issue_fill_guard<S: Seam>(
        &mut self,
        memory: &MemoryCache<S>,
        volume_number: u32,
        blocks: Range<BlockNo>,
        installs: bool,
    ) -> Rc<FillGuard> {
        let guard = FillGuard::new(blocks.clone(), installs);
        for block in BlockNo::each(&blocks) {
            if let Some(id) = memory.find(volume_number, block) {
                let slot = memory.slot(id);
                if !slot.is_clean() {
                    guard.invalidate(&block.single(), slot.present);
                }
            } else if self.zeroes.contains(block) || self.log_tracker.is_spilled(block) {
                guard.invalidate(&block.single(), Sectors::ALL);
            }
        }
        self.fill_guards.push(Rc::clone(&guard));
        guard
    }

    /// Removes the guard of a fill that has ended.
    pub fn release_fill_guard(&mut self, guard: &Rc<FillGuard>) {
        self.fill_guards.retain(|other| !Rc::ptr_eq(other, guard));
        guard.is_ended.set(true);
        guard.signal.notify();
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::{World, WorldSpec};

    use super::*;

    #[test]
    fn read_joins_fill_but_not_query_and_write_invalidates_query() {
        let world = World::new(WorldSpec::new(1));
        let (memory, mut state) = (MemoryCache::new(world.seam()), State::new(0));
        let query = state.issue_fill_guard(&memory, 0, BlockNo(0).range_of_len(16), false);
        assert!(state.fill_guard_for(BlockNo(3), Sectors::ALL).is_none());
        state.invalidate_fills(BlockNo(3).single(), Sectors::ALL);
        assert_eq!((query.invalidated(BlockNo(3)), query.invalidated(BlockNo(4))), (Sectors::ALL, Sectors::NONE));
        let fill = state.issue_fill_guard(&memory, 0, BlockNo(0).range_of_len(16), true);
        assert!(state.fill_guard_for(BlockNo(3), Sectors::ALL).is_some_and(|guard| Rc::ptr_eq(guard, &fill)));
    }
}
