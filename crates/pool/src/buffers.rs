//! Buffers of the pool's own: for metadata blocks, for copies, and for reads that cross two slices. Some are kept, so
//! that an exhausted buffer pool blocks neither a commit nor a move.

use std::cell::RefCell;

use seam::{Block, BlockMut, Nanos, Seam};

use crate::format::Raw;

/// Buffers that are kept.
const KEPT: usize = 32;
/// Pause before another attempt to get a buffer.
const PAUSE: Nanos = Nanos::from_millis(1);

/// The kept buffers.
pub(crate) struct Buffers<S: Seam> {
    seam: S,
    kept: RefCell<Vec<S::BlockMut>>,
}

impl<S: Seam> Buffers<S> {
    /// Takes the buffers to keep from the core's pool, as far as it has them.
    pub fn new(seam: &S) -> Buffers<S> {
        let kept = std::iter::from_fn(|| seam.alloc()).take(KEPT).collect();
        Buffers { seam: seam.clone(), kept: RefCell::new(kept) }
    }

    /// Keeps no buffers in advance, for a few reads of a disk that is no part of an open pool.
    pub fn without_reserve(seam: &S) -> Buffers<S> {
        Buffers { seam: seam.clone(), kept: RefCell::default() }
    }

    /// A buffer: a new one, or a kept one. Waits until one is free.
    pub async fn get(&self) -> S::BlockMut {
        loop {
            if let Some(buffer) = self.try_get() {
                return buffer;
            }
            self.seam.sleep(PAUSE).await;
        }
    }

    /// A buffer, if one is free.
    pub fn try_get(&self) -> Option<S::BlockMut> {
        self.seam.alloc().or_else(|| self.kept.borrow_mut().pop())
    }

    /// Between 1 and `max` buffers, as many as are free.
    pub async fn get_up_to(&self, max: usize) -> Vec<S::BlockMut> {
        let mut buffers = vec![self.get().await];
        while buffers.len() < max
            && let Some(buffer) = self.try_get()
        {
            buffers.push(buffer);
        }
        buffers
    }

    /// Returns a buffer.
    pub fn put(&self, buffer: S::BlockMut) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }

    /// Returns a frozen buffer; one that a request still holds returns to the core's pool later.
    pub fn put_frozen(&self, block: S::Block) {
        if let Ok(buffer) = block.thaw() {
            self.put(buffer);
        }
    }

    /// Returns the frozen buffers of writes at byte offsets that no request holds any more.
    pub fn put_unique(&self, runs: Vec<(u64, Vec<S::Block>)>) {
        runs.into_iter()
            .flat_map(|(_, blocks)| blocks)
            .filter(Block::is_unique)
            .for_each(|block| self.put_frozen(block));
    }

    /// A frozen buffer with these bytes.
    pub async fn metadata(&self, raw: &Raw) -> S::Block {
        let mut buffer = self.get().await;
        buffer.write_metadata(0, raw);
        buffer.freeze()
    }
}
