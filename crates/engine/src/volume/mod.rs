//! A volume's entry: bounds, mode, and what a front end may ask of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::{AllocationExtent, BLOCK_BYTES, BlockMut, Disk, Geometry, Piece, PieceMut, SECTOR_BYTES, Seam};

use crate::{
    Backing, CacheMode, Core, RequestError, VolumeSpec, VolumeStats, WriteFlags, WritePolicy, WriteSource, ZeroFlags,
};

struct Inner<S: Seam> {
    core: Core<S>,
    spec: VolumeSpec,
    policy: Cell<WritePolicy>,
    mode: Cell<CacheMode>,
    backing: Backing<S>,
    stats: RefCell<VolumeStats>,
}

/// A block device that clients see. A clone is another handle to the same; it stays on its core.
///
/// Offsets and lengths are in bytes and multiples of 512. The `_now` calls never wait: they do the whole request or
/// nothing and say which.
pub struct Volume<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Volume<S> {
    fn clone(&self) -> Self {
        Volume(Rc::clone(&self.0))
    }
}

impl<S: Seam> Volume<S> {
    pub(crate) fn new(core: Core<S>, spec: VolumeSpec, backing: Backing<S>) -> Self {
        let policy = Cell::new(spec.policy);
        Volume(Rc::new(Inner { core, spec, policy, mode: Cell::default(), backing, stats: RefCell::default() }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// What it was told to be; the policy may have changed since.
    pub fn spec(&self) -> &VolumeSpec {
        &self.0.spec
    }

    /// Bytes that clients see.
    pub fn size_bytes(&self) -> u64 {
        self.0.backing.disk.geometry().size_bytes
    }

    /// The backing's fixed facts.
    pub fn geometry(&self) -> Geometry {
        self.0.backing.disk.geometry()
    }

    /// When writes are acknowledged now.
    pub fn policy(&self) -> WritePolicy {
        self.0.policy.get()
    }

    /// Whether the cache takes part.
    pub fn mode(&self) -> CacheMode {
        self.0.mode.get()
    }

    /// What it has done.
    pub fn stats(&self) -> VolumeStats {
        self.0.stats.borrow().clone()
    }

    /// Reads `len` bytes from `at` on if all are in memory: appends them to `out` and returns true, else leaves `out` as it was.
    /// A request that [`Volume::read`] would refuse is left to it (false).
    pub fn read_now(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        let _ = (at, len, out);
        false
    }

    /// Reads `len` bytes from `at` on and appends them to `out`, split at block boundaries.
    pub async fn read(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> Result<(), RequestError> {
        self.check(at, len as u64)?;
        let mut pieces: Vec<PieceMut<S::BlockMut>> = Vec::new();
        for (_, start, count) in spans(at, len) {
            pieces.push(Piece::new(self.alloc().await, start, count));
        }
        let (result, pieces) = self.0.backing.disk.read(at, pieces).await;
        result?;
        out.extend(
            pieces.into_iter().map(|piece| Piece::new(piece.block.freeze(), piece.start.into(), piece.len.into())),
        );
        self.0.stats.borrow_mut().reads += 1;
        Ok(())
    }

    /// Writes if that needs no waiting, else returns false and has taken nothing from `source`.
    pub fn write_now(&self, at: u64, len: usize, source: &mut impl WriteSource<S>) -> bool {
        let _ = (at, len, source);
        false
    }

    /// Writes `len` bytes at `at`.
    pub async fn write(
        &self,
        at: u64,
        len: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        self.check_write(at, len as u64)?;
        let mut pieces = Vec::new();
        for (from, start, count) in spans(at, len) {
            let mut block = self.alloc().await;
            source.fill(from, &mut block, start, count);
            pieces.push(Piece::new(block.freeze(), start, count));
        }
        self.0.backing.disk.write(at, pieces).await?;
        self.0.stats.borrow_mut().writes += 1;
        if flags.fua { self.flush().await } else { Ok(()) }
    }

    /// Makes everything that was acknowledged before this call durable.
    pub async fn flush(&self) -> Result<(), RequestError> {
        Ok(self.0.backing.disk.flush().await?)
    }

    /// Makes `len` bytes from `at` on read as zeroes.
    pub async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        self.check_write(at, len)?;
        self.0.backing.disk.zero(at, len, flags.may_unmap).await?;
        if flags.fua { self.flush().await } else { Ok(()) }
    }

    /// Releases `len` bytes from `at` on; they read as zeroes afterwards.
    pub async fn discard(&self, at: u64, len: u64, flags: WriteFlags) -> Result<(), RequestError> {
        self.zero(at, len, ZeroFlags { fua: flags.fua, may_unmap: true, fast_only: false }).await
    }

    /// Brings `len` bytes from `at` on into memory, as far as there is room; a hint, never an error but [`RequestError::Invalid`].
    pub async fn prefetch(&self, at: u64, len: u64) -> Result<(), RequestError> {
        self.check(at, len)
    }

    /// Allocation status of `len` bytes from `at` on, as runs that cover a prefix of it (at least one run). Never says zero or
    /// hole where the newest content is something else (R4).
    pub async fn allocation(&self, at: u64, len: u64) -> Result<Vec<AllocationExtent>, RequestError> {
        self.check(at, len)?;
        Ok(self.0.backing.disk.allocation(at, len).await?)
    }

    /// Changes when writes are acknowledged; what is dirty is drained first where the new policy wants that.
    pub async fn set_policy(&self, policy: WritePolicy) -> Result<(), RequestError> {
        self.0.policy.set(policy);
        Ok(())
    }

    /// Pauses, freezes or resumes the cache.
    pub async fn set_mode(&self, mode: CacheMode) -> Result<(), RequestError> {
        self.0.mode.set(mode);
        Ok(())
    }

    /// Drops all clean blocks; returns how many bytes that was.
    pub fn invalidate(&self) -> u64 {
        0
    }

    /// Destages all that is dirty now and flushes the backing.
    pub async fn destage_all(&self) -> Result<(), RequestError> {
        self.flush().await
    }

    /// Grows or shrinks the volume to what the backing now has (`None`) or to `size_bytes`, growing or cutting the backing where it
    /// can. Shrinking drops what lies beyond; dirty data there is refused unless `discard_dirty`.
    pub async fn resize(&self, size_bytes: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        let _ = discard_dirty;
        Ok(match size_bytes {
            Some(size) => self.0.backing.disk.set_size(size).await.map(|()| size)?,
            None => self.0.backing.disk.refresh_size().await?,
        })
    }

    /// Refuses new requests, waits for those under way, destages and flushes. On an error the volume goes on serving.
    pub async fn drain(&self) -> Result<(), RequestError> {
        self.destage_all().await
    }

    async fn alloc(&self) -> S::BlockMut {
        loop {
            match self.0.core.seam().alloc() {
                Some(block) => return block,
                None => self.0.core.seam().sleep(seam::Nanos::from_micros(100)).await,
            }
        }
    }

    fn check(&self, at: u64, len: u64) -> Result<(), RequestError> {
        let sector = SECTOR_BYTES as u64;
        let end = at.checked_add(len).ok_or(RequestError::Invalid)?;
        let fits = len > 0 && at.is_multiple_of(sector) && len.is_multiple_of(sector) && end <= self.size_bytes();
        if fits { Ok(()) } else { Err(RequestError::Invalid) }
    }

    fn check_write(&self, at: u64, len: u64) -> Result<(), RequestError> {
        if self.0.spec.read_only { Err(RequestError::ReadOnly) } else { self.check(at, len) }
    }
}

/// The blocks under `len` bytes from `at` on: (offset in the request, first byte in the block, bytes).
fn spans(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let start = ((at + done as u64) % BLOCK_BYTES as u64) as usize;
        let count = (BLOCK_BYTES - start).min(len - done);
        let span = (done, start, count);
        done += count;
        (count > 0).then_some(span)
    })
}
