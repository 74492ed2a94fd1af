//! Requests that are acknowledged only when their blocks are on the backing, and the blocks that they wait for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flash::BlockNo;
use seam::DiskError;

use crate::wait::Signal;

/// State of its blocks on the backing that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The writes of the blocks have completed.
    Written,
    /// The writes have completed, and a flush of the backing covers them.
    Durable,
}

impl WaitFor {
    /// The state that a request with or without the FUA flag waits for.
    pub fn of_fua(fua: bool) -> Self {
        if fua { WaitFor::Durable } else { WaitFor::Written }
    }
}

/// Counts the remaining blocks of a request.
#[derive(Default)]
pub struct WriteWait {
    remaining_blocks: Cell<u64>,
    failure: RefCell<Option<DiskError>>,
    /// A part of the content was lost, and newer content replaced it.
    was_replaced: Cell<bool>,
    completed: Signal,
}

impl WriteWait {
    /// Adds one block to be written.
    pub fn expect_one(&self) {
        self.remaining_blocks.set(self.remaining_blocks.get() + 1);
    }

    /// Counts one block as written or failed.
    pub fn finish_one(&self, result: Result<&(), &DiskError>) {
        if let Err(error) = result {
            self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        }
        self.remaining_blocks.set(self.remaining_blocks.get().checked_sub(1).expect("as many finish as were expected"));
        if self.remaining_blocks.get() == 0 {
            self.completed.notify();
        }
    }

    /// Records that a part was lost, and that newer content has to be written in its place.
    pub fn mark_replaced(&self) {
        self.was_replaced.set(true);
    }

    /// True if a part was replaced.
    pub fn was_replaced(&self) -> bool {
        self.was_replaced.get()
    }

    /// Waits for all blocks; returns the first failure.
    pub async fn wait_for_all(&self) -> Result<(), DiskError> {
        self.completed.wait_for(|| (self.remaining_blocks.get() == 0).then_some(())).await;
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// Requests that wait for the write of a block, or of the zero-range that begins there. A request is listed at most
/// once for each block. Otherwise repeated cuts and merges of a range would double its waiting requests each time.
#[derive(Default)]
pub struct WriteWaits(BTreeMap<BlockNo, Vec<Rc<WriteWait>>>);

impl WriteWaits {
    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a request waits for `block`.
    pub fn contains(&self, block: BlockNo) -> bool {
        self.0.contains_key(&block)
    }

    /// The requests that wait for `block`.
    pub fn waits_of(&self, block: BlockNo) -> &[Rc<WriteWait>] {
        self.0.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Blocks with waiting requests, from `first` on, and then the ones before it.
    pub fn blocks_from(&self, first: BlockNo) -> impl Iterator<Item = BlockNo> {
        self.0.range(first..).chain(self.0.range(..first)).map(|(block, _)| *block)
    }

    /// Makes `wait` wait for one more write, of `block`.
    pub fn add(&mut self, block: BlockNo, wait: &Rc<WriteWait>) {
        let waits = self.0.entry(block).or_default();
        if !waits.iter().any(|other| Rc::ptr_eq(other, wait)) {
            wait.expect_one();
            waits.push(Rc::clone(wait));
        }
    }

    /// Assigns to `block` a write that each of `waits` already expects.
    pub fn reassign(&mut self, block: BlockNo, waits: impl IntoIterator<Item = Rc<WriteWait>>) {
        for wait in waits {
            let waiting = self.0.entry(block).or_default();
            if waiting.iter().any(|other| Rc::ptr_eq(other, &wait)) {
                // The two writes have become one, which is still to come.
                wait.finish_one(Ok(&()));
            } else {
                waiting.push(wait);
            }
        }
    }

    /// Removes and returns the requests that wait for any of `blocks`, once for each block.
    pub fn take_waits(&mut self, blocks: Range<BlockNo>) -> Vec<Rc<WriteWait>> {
        let mut taken = Vec::new();
        while let Some((block, _)) = self.0.range(blocks.clone()).next() {
            let block = *block;
            taken.extend(self.0.remove(&block).expect("the place has requests"));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_cut_and_merged_repeatedly_is_waited_for_once() {
        let (mut waits, wait) = (WriteWaits::default(), Rc::new(WriteWait::default()));
        waits.add(BlockNo(0), &wait);
        for _ in 0..64 {
            let whole = waits.waits_of(BlockNo(0)).to_vec();
            assert_eq!(whole.len(), 1);
            [3, 5].map(BlockNo).into_iter().for_each(|part| whole.iter().for_each(|wait| waits.add(part, wait)));
            for part in [3, 5].map(BlockNo) {
                let merged = waits.take_waits(part.single());
                waits.reassign(BlockNo(0), merged);
            }
        }
        assert_eq!(wait.remaining_blocks.get(), 1);
        waits.take_waits(BlockNo(0)..BlockNo(8)).iter().for_each(|wait| wait.finish_one(Ok(&())));
        assert!(wait.remaining_blocks.get() == 0 && waits.is_empty());
    }

    #[test]
    fn request_of_several_blocks_is_returned_for_each() {
        let (mut waits, wait) = (WriteWaits::default(), Rc::new(WriteWait::default()));
        [1, 2, 9].map(BlockNo).into_iter().for_each(|block| waits.add(block, &wait));
        assert_eq!(waits.blocks_from(BlockNo(2)).collect::<Vec<_>>(), [2, 9, 1].map(BlockNo));
        let taken = waits.take_waits(BlockNo(0)..BlockNo(9));
        assert_eq!((taken.len(), waits.contains(BlockNo(9)), waits.contains(BlockNo(1))), (2, true, false));
        taken.iter().for_each(|wait| wait.finish_one(Ok(&())));
        assert_eq!(wait.remaining_blocks.get(), 1);
    }
}
