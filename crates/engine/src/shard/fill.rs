//! Fills: reads of blocks from the backing into memory, each guarded by a ticket (R2).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use super::state::State;
use super::{Shard, Span};
use crate::backing::{Cause, Op, Priority};
use crate::memory::{BlockNo, Memory, Sectors};
use crate::policy::Admit;
use crate::spec::Sabotage;
use crate::wait::Signal;

/// Fill guard (R2): permission of a fill to install the content that it read. A change of a block during the fill voids
/// the ticket for the changed sectors.
pub struct Ticket {
    blocks: Range<BlockNo>,
    /// Other requests may wait for its content. False for a query and for a read past a bad sector.
    brings: bool,
    voided: RefCell<Vec<Sectors>>,
    over: Cell<bool>,
    signal: Signal,
}

impl Ticket {
    fn new(blocks: Range<BlockNo>, brings: bool) -> Rc<Self> {
        let count = BlockNo::count(&blocks) as usize;
        let voided = RefCell::new(vec![Sectors::NONE; count]);
        Rc::new(Ticket { blocks, brings, voided, over: Cell::new(false), signal: Signal::default() })
    }

    /// True if the ticket covers the block.
    pub fn covers(&self, block: BlockNo) -> bool {
        self.blocks.contains(&block)
    }

    /// Sectors of a block for which the ticket is void.
    pub fn voided(&self, block: BlockNo) -> Sectors {
        self.voided.borrow()[block.since(self.blocks.start) as usize]
    }

    /// Waits until the fill ends.
    pub async fn ended(&self) {
        self.signal.wait_for(|| self.over.get().then_some(())).await;
    }

    fn void(&self, blocks: &Range<BlockNo>, sectors: Sectors) {
        let (start, end) = (self.blocks.start.max(blocks.start), self.blocks.end.min(blocks.end));
        let mut voided = self.voided.borrow_mut();
        for block in BlockNo::each(&(start..end)) {
            let entry = &mut voided[block.since(self.blocks.start) as usize];
            *entry = entry.with(sectors);
        }
    }
}

impl State {
    /// Voids these sectors in all tickets: their newest content is no longer the backing's, so no fill may install them
    /// (R2).
    pub fn void(&self, blocks: Range<BlockNo>, sectors: Sectors) {
        for ticket in &self.tickets {
            ticket.void(&blocks, sectors);
        }
    }

    /// Issues a ticket for the reload of spilled blocks.
    pub fn issue_recall(&mut self, blocks: Range<BlockNo>) -> Rc<Ticket> {
        let ticket = Ticket::new(blocks, true);
        self.tickets.push(Rc::clone(&ticket));
        ticket
    }

    /// A fill in flight that will bring valid content of these sectors.
    pub fn ticket_for(&self, block: BlockNo, sectors: Sectors) -> Option<&Rc<Ticket>> {
        let counts = |ticket: &&Rc<Ticket>| {
            ticket.brings && ticket.covers(block) && ticket.voided(block).without(sectors) == ticket.voided(block)
        };
        self.tickets.iter().find(counts)
    }

    /// Issues a ticket. Sectors that are newer in memory than on the backing are void from the start. `brings`: other
    /// requests may wait for the fill and find its content in memory.
    pub fn issue_ticket<S: Seam>(
        &mut self,
        memory: &Memory<S>,
        volume: u32,
        blocks: Range<BlockNo>,
        brings: bool,
    ) -> Rc<Ticket> {
        let ticket = Ticket::new(blocks.clone(), brings);
        for block in BlockNo::each(&blocks) {
            if let Some(id) = memory.find(volume, block) {
                let slot = memory.slot(id);
                if !slot.is_clean() {
                    ticket.void(&block.single(), slot.present);
                }
            } else if self.zeroes.contains(block) || self.ledger.rests(block) {
                ticket.void(&block.single(), Sectors::ALL);
            }
        }
        self.tickets.push(Rc::clone(&ticket));
        ticket
    }

    /// Removes the ticket of a fill that has ended.
    pub fn return_ticket(&mut self, ticket: &Rc<Ticket>) {
        self.tickets.retain(|other| !Rc::ptr_eq(other, ticket));
        ticket.over.set(true);
        ticket.signal.notify();
    }
}

/// Result of a fill: the content, and its ticket with the sectors changed meanwhile.
pub struct Filled<S: Seam> {
    /// First block.
    pub first: BlockNo,
    /// The blocks, in order.
    pub blocks: Vec<S::Block>,
    /// Number of blocks from flash.
    pub from_flash: usize,
    /// Number of blocks that flash failed to deliver.
    pub bad: usize,
    /// Time that the fill waited for requests of other volumes.
    pub waited: Nanos,
    ticket: Rc<Ticket>,
}

impl<S: Seam> Filled<S> {
    /// Blocks from `first` on, read under `ticket`.
    pub fn new(first: BlockNo, blocks: Vec<S::Block>, ticket: Rc<Ticket>) -> Self {
        Filled { first, blocks, ticket, from_flash: 0, bad: 0, waited: Nanos::ZERO }
    }

    /// The content of a block, if all of `sectors` were still valid when the fill ended.
    pub fn content(&self, block: BlockNo, sectors: Sectors) -> Option<&S::Block> {
        let voided = self.ticket.voided(block);
        (voided.without(sectors) == voided).then(|| &self.blocks[block.since(self.first) as usize])
    }
}

impl<S: Seam> Shard<S> {
    /// Reads `blocks` from the backing, merges them into partial blocks, and admits absent ones according to `how`.
    pub async fn fill(&self, blocks: Range<BlockNo>, how: Option<Admit>, cause: Cause) -> Result<Filled<S>, DiskError> {
        let ticket = self.with(|state, memory| match self.sabotage(Sabotage::FillOverResting) {
            true => state.issue_recall(blocks.clone()),
            false => state.issue_ticket(memory, self.number, blocks.clone(), true),
        });
        let result = self.fill_under(&ticket, blocks, how, cause).await;
        self.state.borrow_mut().return_ticket(&ticket);
        result
    }

    async fn fill_under(
        &self,
        ticket: &Rc<Ticket>,
        blocks: Range<BlockNo>,
        how: Option<Admit>,
        cause: Cause,
    ) -> Result<Filled<S>, DiskError> {
        // Readahead does not wait for buffers, because clients wait for theirs. The place in the backing's queue is
        // taken with the buffers in hand: otherwise fills that wait for buffers could occupy all places, and keep out
        // the writes that make room.
        let patient = cause != Cause::Readahead;
        let Some(buffers) = self.core.alloc_all(BlockNo::count(&blocks) as usize, patient).await else {
            return Err(DiskError::Io("no memory is free to read ahead".into()));
        };
        let mut found = self.read_from_flash(blocks.clone(), buffers, self.priority_of_read(cause)).await;
        let missing = found.missing();
        let from_backing: usize = missing.iter().map(Range::len).sum();
        let is_from_backing: Vec<bool> = found.content.iter().map(Option::is_none).collect();
        for run in missing {
            let first = blocks.start.plus(run.start as u64);
            let taken =
                run.clone().map(|place| found.buffers[place].take().expect("a block without content has a buffer"));
            let (read, waited) = self.read_blocks(first, taken.collect(), cause).await?;
            found.waited += waited;
            run.zip(read).for_each(|(place, block)| found.content[place] = Some(block));
        }
        let content: Vec<_> = found.content.into_iter().map(|block| block.expect("read from here or there")).collect();
        self.with(|state, memory| {
            for ((block, data), is_from_backing) in BlockNo::each(&blocks).zip(&content).zip(is_from_backing) {
                let new = self.install(state, memory, ticket, block, data, how);
                if let Some(id) = new.filter(|_| is_from_backing && cause == Cause::Readahead) {
                    memory.slot_mut(id).prefetched = true;
                }
            }
        });
        let from_flash = content.len() - from_backing;
        let (bad, waited) = (found.bad, found.waited);
        Ok(Filled { first: blocks.start, blocks: content, from_flash, bad, waited, ticket: Rc::clone(ticket) })
    }

    /// Reads blocks of the backing from `first` on, a buffer each; bytes past the volume's end are zeroes. Also returns
    /// the time that the read waited for other volumes.
    pub async fn read_blocks(
        &self,
        first: BlockNo,
        buffers: Vec<S::BlockMut>,
        cause: Cause,
    ) -> Result<(Vec<S::Block>, Nanos), DiskError> {
        if first.plus(buffers.len() as u64) > self.end_block() {
            // The volume has been shrunk or removed since the caller looked.
            return Err(DiskError::Io("the block lies past the end of the volume".into()));
        }
        let of_block = |(block, buffer)| Piece::new(buffer, 0, self.bytes_inside(block));
        let pieces: Vec<_> = first.onward().zip(buffers).map(of_block).collect();
        let bytes = seam::block::pieces_len(&pieces) as u64;
        let at = first.offset();
        let permit = self.dispatch.enter(cause).await;
        let turn = self.turn(false, at, bytes, self.priority_of_read(cause)).await;
        let waited = turn.as_ref().map_or(Nanos::ZERO, |turn| turn.waited);
        let began = self.seam().now();
        let (result, pieces) = self.disk.read(at, pieces).await;
        drop((turn, permit));
        let now = self.seam().now();
        self.counters.backing(Op::Read, cause, bytes, result.is_ok(), now.since(began));
        self.level.width.note(now, bytes);
        result?;
        let whole = pieces.into_iter().map(|piece| {
            let (len, mut block) = (piece.len(), piece.block);
            if len < BLOCK_BYTES {
                block.zero(len, BLOCK_BYTES - len);
            }
            block.freeze()
        });
        Ok((whole.collect(), waited))
    }

    /// Reads only some sectors of a block, for a request whose block cannot be read whole; admits nothing.
    pub async fn fill_part(&self, span: &Span) -> Result<Filled<S>, DiskError> {
        let block = span.block;
        let ticket = self.with(|state, memory| state.issue_ticket(memory, self.number, block.single(), false));
        let piece = Piece::new(self.core.alloc().await, span.start, span.len);
        let at = block.offset() + span.start as u64;
        let permit = self.dispatch.enter(Cause::ClientRead).await;
        let turn = self.turn(false, at, span.len as u64, Priority::Foreground).await;
        let waited = turn.as_ref().map_or(Nanos::ZERO, |turn| turn.waited);
        let began = self.seam().now();
        let (result, pieces) = self.disk.read(at, vec![piece]).await;
        drop((turn, permit));
        let took = self.seam().now().since(began);
        self.counters.backing(Op::Read, Cause::ClientRead, span.len as u64, result.is_ok(), took);
        self.state.borrow_mut().return_ticket(&ticket);
        result?;
        let blocks = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
        Ok(Filled { first: block, blocks, from_flash: 0, bad: 0, waited, ticket })
    }

    /// Installs a block that was read under `ticket` in memory, as far as it is still valid. Returns the slot of a
    /// block that had none.
    pub fn install(
        &self,
        state: &State,
        memory: &mut Memory<S>,
        ticket: &Ticket,
        block: BlockNo,
        data: &S::Block,
        how: Option<Admit>,
    ) -> Option<u32> {
        let void = if self.sabotage(Sabotage::NoTickets) { Sectors::NONE } else { ticket.voided(block) };
        let Some(id) = memory.find(self.number, block) else {
            let is_valid = void == Sectors::NONE && !state.zeroes.contains(block) && block < self.end_block();
            let how = how.filter(|_| is_valid)?;
            return Some(memory.insert(self.number, block, data.clone(), Sectors::ALL, how));
        };
        let present = memory.slot(id).present;
        let missing = match () {
            () if self.sabotage(Sabotage::NoTickets) => Sectors::ALL,
            () if self.sabotage(Sabotage::LosePartialWrite) && present != Sectors::ALL => Sectors::ALL,
            () => Sectors::ALL.without(present).without(void),
        };
        if missing == Sectors::NONE {
            return None;
        }
        // R1: holders of the partial block keep their content; the merged block is a copy where necessary.
        let mut merged = match memory.take_unique(id) {
            Some(unique) => unique,
            None => match self.seam().alloc() {
                Some(mut copy) => {
                    let old = memory.slot(id).data.as_ref().expect("a slot in use has content");
                    copy.copy_from(0, old, 0, BLOCK_BYTES);
                    copy
                }
                // Without a buffer for the copy the block stays partial until a later fill.
                None => return None,
            },
        };
        for (start, len) in missing.runs() {
            merged.copy_from(start, data, start, len);
        }
        let slot = memory.slot_mut(id);
        let old = slot.data.replace(merged.freeze());
        slot.present = present.with(missing);
        memory.changed(id, old);
        None
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::{World, WorldSpec};

    use super::*;

    #[test]
    fn read_joins_fill_but_not_query_and_write_voids_query() {
        let world = World::new(WorldSpec::new(1));
        let (memory, mut state) = (Memory::new(world.seam()), State::new(0));
        let query = state.issue_ticket(&memory, 0, BlockNo(0).run(16), false);
        assert!(state.ticket_for(BlockNo(3), Sectors::ALL).is_none());
        state.void(BlockNo(3).single(), Sectors::ALL);
        assert_eq!((query.voided(BlockNo(3)), query.voided(BlockNo(4))), (Sectors::ALL, Sectors::NONE));
        let fill = state.issue_ticket(&memory, 0, BlockNo(0).run(16), true);
        assert!(state.ticket_for(BlockNo(3), Sectors::ALL).is_some_and(|found| Rc::ptr_eq(found, &fill)));
    }
}
