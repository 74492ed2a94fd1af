//! Clean pages on flash: what the owner of a store puts there, reads from there, and says about writes to its backing.
//!
//! A page is 64 KiB of a volume, aligned, of which any of the 16 blocks may be there. There is one copy: whoever has put it there can
//! read it from the backing again, so every error here is a miss and nothing else. What must never happen is that a block is served
//! which the backing does not hold any more:
//!
//! - **R2** [`PagesOf::invalidate`] takes blocks away at once, also from a `put` that is under way.
//! - **R8** [`PagesOf::begin_write`] returns when the regions of a write are durably *in flux*: after a crash nothing of them is trusted.
//! - **R11** each block is checked before anybody sees it.

mod api;
mod held;

use std::cell::RefCell;
use std::rc::Rc;

use seam::Seam;

use crate::error::StoreError;
use crate::store::Inner;

pub use api::{MapLoaded, PAGE_BLOCKS, PageMember, PagesStats, PutError, REGION_BLOCKS, WriteMark};
use held::Held;

/// What the handles share.
pub(crate) struct Shared<S: Seam> {
    pub(crate) inner: Rc<Inner<S>>,
    held: RefCell<Held<S>>,
}

/// The clean pages of a store. A clone is another handle.
pub struct Pages<S: Seam>(pub(crate) Rc<Shared<S>>);

impl<S: Seam> Clone for Pages<S> {
    fn clone(&self) -> Self {
        Pages(Rc::clone(&self.0))
    }
}

impl<S: Seam> Pages<S> {
    pub(crate) fn new(inner: Rc<Inner<S>>) -> Self {
        Pages(Rc::new(Shared { inner, held: RefCell::default() }))
    }

    /// Reads the map, once after the store was opened. Until it has ended every look-up finds nothing, `put` says
    /// [`PutError::Busy`], and `begin_write` waits.
    pub async fn load(&self) -> MapLoaded {
        self.0.inner.seam.yield_now().await;
        self.0.held.borrow_mut().loaded()
    }

    /// The pages of a volume, for the request path.
    pub fn volume(&self, incarnation: u64) -> PagesOf<S> {
        PagesOf { shared: Rc::clone(&self.0), incarnation }
    }

    /// Drops all pages, marks and noted blocks of a volume, durably. An error leaves them dropped in memory alone.
    pub async fn forget(&self, incarnation: u64) -> Result<(), StoreError> {
        self.0.held.borrow_mut().forget(incarnation);
        self.0.inner.seam.yield_now().await;
        Ok(())
    }

    /// The owner has durably noted that this map is void: it holds nothing any more and takes nothing, and `begin_write` returns at
    /// once.
    pub fn abandon(&self) {
        self.0.held.borrow_mut().abandon();
    }

    /// How it stands.
    pub fn stats(&self) -> PagesStats {
        self.0.held.borrow().stats()
    }
}

/// The pages of one volume. Pages and blocks are numbered from the volume's start; the blocks of a page from the page's.
pub struct PagesOf<S: Seam> {
    shared: Rc<Shared<S>>,
    incarnation: u64,
}

impl<S: Seam> Clone for PagesOf<S> {
    fn clone(&self) -> Self {
        PagesOf { shared: Rc::clone(&self.shared), incarnation: self.incarnation }
    }
}

impl<S: Seam> PagesOf<S> {
    /// The blocks of a page that can be read: bit *n* for block *n*, 0 where there is nothing. Counts no use.
    pub fn valid(&self, page: u64) -> u16 {
        self.shared.held.borrow().valid(self.incarnation, page)
    }

    /// Counts a use of a page, where it is there.
    pub fn touch(&self, page: u64) {
        let _ = page;
    }

    /// Reads a run of blocks of a page, one buffer each. A block that is not valid, cannot be read or does not match its checksum
    /// (R11) gives its buffer back, and is not valid any more.
    ///
    /// # Panics
    /// When there are not as many buffers as blocks, or the run leaves the page.
    pub async fn read(
        &self,
        page: u64,
        blocks: std::ops::Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, S::BlockMut>> {
        assert!(blocks.end <= PAGE_BLOCKS && buffers.len() == blocks.len(), "{blocks:?} of a page");
        let found: Vec<_> = {
            let held = self.shared.held.borrow();
            blocks.map(|block| held.block(self.incarnation, page, block)).collect()
        };
        self.shared.inner.seam.yield_now().await;
        let give = |(found, mut buffer): (Option<S::Block>, S::BlockMut)| match found {
            Some(block) => {
                seam::BlockMut::copy_from(&mut buffer, 0, &block, 0, seam::BLOCK_BYTES);
                Ok(seam::BlockMut::freeze(buffer))
            }
            None => Err(buffer),
        };
        found.into_iter().zip(buffers).map(give).collect()
    }

    /// These blocks of the volume are not valid any more, at once: not in the map, and not of a `put` that is under way (R2).
    pub fn invalidate(&self, blocks: std::ops::Range<u64>) {
        self.shared.held.borrow_mut().invalidate(self.incarnation, blocks);
    }

    /// Adds blocks of a page, each with what the backing durably holds of it at the time of this call, and returns which of them the
    /// map has now. Blocks that are there already stay as they are. The page is known before the first await, so that
    /// [`PagesOf::invalidate`] sees it.
    ///
    /// # Panics
    /// With no block, or one that is not in a page.
    pub async fn put(&self, page: u64, blocks: Vec<(u32, S::Block)>) -> Result<u16, PutError> {
        assert!(!blocks.is_empty() && blocks.iter().all(|(block, _)| *block < PAGE_BLOCKS), "blocks of a page");
        let putting = self.shared.held.borrow_mut().begin_put(self.incarnation, page, blocks)?;
        self.shared.inner.seam.yield_now().await;
        Ok(self.shared.held.borrow_mut().end_put(putting))
    }

    /// To be awaited before these blocks of the backing are written or zeroed, for whatever reason: they are not valid any more, and
    /// when this returns their regions are durably in flux, as far as anything durable speaks of them (R8).
    pub async fn begin_write(&self, blocks: std::ops::Range<u64>) -> WriteMark {
        self.invalidate(blocks.clone());
        self.shared.inner.seam.yield_now().await;
        WriteMark { blocks }
    }

    /// The write has ended, well or not, as completion number `sequence` of the volume: what [`PagesOf::flushed`] counts in.
    pub fn end_write(&self, mark: WriteMark, sequence: u64) {
        let _ = (mark, sequence);
    }

    /// A flush of the backing has succeeded that was issued after all completions below `covered`.
    pub fn flushed(&self, covered: u64) {
        let _ = covered;
    }

    /// Few regions are left that could be marked: a flush of the backing soon would free some.
    pub fn wants_flush(&self) -> bool {
        false
    }

    /// The backing durably holds this content of a block, which was destaged: noted for [`PagesOf::ring`].
    pub fn destaged(&self, block: u64, content: &S::Block) {
        self.shared.held.borrow_mut().destaged(self.incarnation, block, seam::Block::checksum(content, 0));
    }

    /// Blocks of a page that are there and not trusted, since a crash came upon a write to their region: to be compared with the
    /// backing, and judged.
    pub fn suspect(&self, page: u64) -> u16 {
        let _ = page;
        0
    }

    /// Reads suspect blocks of a page, like [`PagesOf::read`].
    pub async fn read_suspect(
        &self,
        page: u64,
        blocks: std::ops::Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, S::BlockMut>> {
        let _ = (page, blocks);
        self.shared.inner.seam.yield_now().await;
        buffers.into_iter().map(Err).collect()
    }

    /// Of a page's suspect blocks those in `good` were found to be what the backing durably holds, and are valid from now on unless
    /// they were invalidated meanwhile; the others are gone.
    pub fn judge(&self, page: u64, good: u16) {
        let _ = (page, good);
    }

    /// The last blocks that were destaged, each with the checksum (from seed 0) that the backing must have of it.
    pub fn ring(&self) -> Vec<(u64, u32)> {
        self.shared.held.borrow().ring(self.incarnation)
    }

    /// Up to `count` pages with valid blocks, spread over the volume by `random`: page and mask.
    pub fn sample(&self, random: u64, count: usize) -> Vec<(u64, u16)> {
        self.shared.held.borrow().sample(self.incarnation, random, count)
    }
}
