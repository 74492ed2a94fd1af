//! The pool of a core's blocks: one mapped region of 4 KiB blocks, in private memory or in a file that outlives the
//! process, and an array of small headers.
//!
//! Address space is reserved at once, and memory is touched only at the first allocation of a block. Freed blocks are
//! reused last in, first out. Resident memory is thus the peak number of blocks in use, and never more than the
//! ceiling. The pool stays on one thread, so its counts are plain integers.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;

use super::block::{RealBlock, RealBlockMut};
use super::persist::{PersistFile, PoolFile, TAG_BYTES};
use crate::BLOCK_BYTES;

/// End of the free list, in place of an index.
const END_OF_LIST: u32 = u32::MAX;

/// State of one block; a block handle is a pointer to its header.
pub(super) struct Header {
    /// Reference count of the block; of a free block, the index of the next free one.
    pub(super) refs: Cell<u32>,
    index: u32,
    pool: NonNull<PoolInner>,
}

const HEADER_BYTES: usize = size_of::<Header>();

/// State of a pool, freed with the last of its blocks and its handle.
pub(super) struct PoolInner {
    data: NonNull<u8>,
    headers: NonNull<Header>,
    /// Blocks in the region, including the zero block.
    capacity: u32,
    /// Blocks with an index from here on have never been allocated.
    fresh: Cell<u32>,
    /// Index of the last freed block, the head of the free list.
    free: Cell<u32>,
    /// Allocated blocks, including the zero block.
    out: Cell<u32>,
    has_handle: Cell<bool>,
    /// The file behind `data`, if buffers outlive the process.
    file: Option<PoolFile>,
}

/// The pool of a core. Blocks that outlive it keep the region mapped.
pub(super) struct Pool {
    inner: NonNull<PoolInner>,
    zero: RealBlock,
}

/// Maps `len` bytes that are zero, private and not resident.
fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address chosen by the kernel overlaps no other.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("the kernel maps address zero only on request"))
}

impl Pool {
    /// A pool whose blocks and headers take at most `bytes` together, plus the zero block, which is never touched. With
    /// `file`, the blocks lie in a new file, each with a persistence tag.
    pub(super) fn new(bytes: usize, file: Option<&PersistFile>) -> io::Result<Pool> {
        let tag_bytes = if file.is_some() { TAG_BYTES } else { 0 };
        let blocks = (bytes / (BLOCK_BYTES + HEADER_BYTES + tag_bytes)).min(END_OF_LIST as usize - 2);
        let capacity = blocks as u32 + 1;
        let headers = map(capacity as usize * HEADER_BYTES)?.cast();
        let region = match file {
            Some(file) => PoolFile::new(file, capacity as usize).map(|file| (file.data(), Some(file))),
            None => map(capacity as usize * BLOCK_BYTES).map(|data| (data, None)),
        };
        let (data, file) = region.inspect_err(|_| {
            // SAFETY: mapped above with this length, and no pointers into it exist yet.
            unsafe { libc::munmap(NonNull::<Header>::as_ptr(headers).cast(), capacity as usize * HEADER_BYTES) };
        })?;
        // Huge pages reduce misses of the page-table cache on a hit; a refusal by the kernel is harmless.
        // SAFETY: advice on the region just mapped, which is still unused.
        unsafe { libc::madvise(data.as_ptr().cast(), capacity as usize * BLOCK_BYTES, libc::MADV_HUGEPAGE) };
        let inner = NonNull::from(Box::leak(Box::new(PoolInner {
            data,
            headers,
            capacity,
            fresh: Cell::new(0),
            free: Cell::new(END_OF_LIST),
            out: Cell::new(0),
            has_handle: Cell::new(true),
            file,
        })));
        // A fresh page reads as zeroes and costs no memory, unless it is written or lies in a file.
        let Some(zero) = take(inner) else {
            release(inner);
            return Err(io::ErrorKind::StorageFull.into());
        };
        Ok(Pool { inner, zero })
    }

    fn inner(&self) -> &PoolInner {
        // SAFETY: freed only if `has_handle` is false, which the drop of this handle sets.
        unsafe { self.inner.as_ref() }
    }

    /// A block with one owner; `None` at the ceiling.
    #[inline]
    pub(super) fn alloc(&self) -> Option<RealBlockMut> {
        take(self.inner).map(RealBlockMut)
    }

    /// Capacity of the pool in blocks.
    pub(super) fn total(&self) -> usize {
        self.inner().capacity as usize - 1
    }

    /// Blocks that can still be allocated.
    pub(super) fn free(&self) -> usize {
        (self.inner().capacity - self.inner().out.get()) as usize
    }

    /// The file with the blocks, if they outlive the process.
    #[inline]
    pub(super) fn file(&self) -> Option<&PoolFile> {
        self.inner().file.as_ref()
    }

    /// The shared block of zeroes.
    pub(super) fn zero_block(&self) -> RealBlock {
        self.zero.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The zero block is a field and is dropped later, so the region outlives this call.
        self.inner().has_handle.set(false);
    }
}

/// Takes the last freed block, or else one that has never been used.
#[inline]
fn take(pool: NonNull<PoolInner>) -> Option<RealBlock> {
    // SAFETY: the caller holds the pool's handle.
    let inner = unsafe { pool.as_ref() };
    let index = inner.free.get();
    let header = if index != END_OF_LIST {
        // SAFETY: indices on the free list are below `capacity`, and their headers were written at first use.
        let header = unsafe { inner.headers.add(index as usize) };
        // SAFETY: as above; headers are accessed only by shared reference.
        let free_header = unsafe { header.as_ref() };
        inner.free.set(free_header.refs.get());
        free_header.refs.set(1);
        header
    } else {
        let index = inner.fresh.get();
        if index == inner.capacity || inner.file.as_ref().is_some_and(|file| !file.ensure_allocated(index as usize)) {
            return None;
        }
        inner.fresh.set(index + 1);
        // SAFETY: `index` is below `capacity`, and no handle to this header exists yet.
        unsafe {
            let header = inner.headers.add(index as usize);
            header.write(Header { refs: Cell::new(1), index, pool });
            header
        }
    };
    inner.out.set(inner.out.get() + 1);
    Some(RealBlock(header))
}

impl Header {
    /// Start of the block's bytes.
    #[inline]
    pub(super) fn data(&self) -> *mut u8 {
        // SAFETY: a block handle leads to this header and keeps the pool alive; `index` is below its capacity.
        unsafe { self.pool.as_ref().data.add(self.index as usize * BLOCK_BYTES).as_ptr() }
    }

    /// The block's index in the pool.
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the block to the pool; the last block of a pool without a handle frees the pool.
    #[inline]
    pub(super) fn give_back(&self) {
        // SAFETY: this block still counts as allocated, which keeps the pool alive.
        let pool = unsafe { self.pool.as_ref() };
        self.refs.set(pool.free.get());
        pool.free.set(self.index);
        let out = pool.out.get() - 1;
        pool.out.set(out);
        if out == 0 && !pool.has_handle.get() {
            release(self.pool);
        }
    }
}

/// Unmaps a pool without any references.
#[cold]
fn release(pool: NonNull<PoolInner>) {
    // SAFETY: made by `Box::leak` in `Pool::new`; no handle and no block remains, so this is the only reference.
    let inner = unsafe { Box::from_raw(pool.as_ptr()) };
    let capacity = inner.capacity as usize;
    // SAFETY: both were mapped with these lengths in `Pool::new`, and no pointers into them remain. A file is unmapped
    // with `inner`.
    unsafe {
        if inner.file.is_none() {
            libc::munmap(inner.data.as_ptr().cast(), capacity * BLOCK_BYTES);
        }
        libc::munmap(inner.headers.as_ptr().cast(), capacity * HEADER_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, BlockMut};

    /// Resident memory of a pool's blocks in bytes. The figure of the whole process also counts the memory of other
    /// tests.
    fn resident(pool: &Pool) -> usize {
        let inner = pool.inner();
        let mut pages = vec![0_u8; inner.capacity as usize];
        // SAFETY: the region has `capacity` pages of 4 KiB, and `pages` has a byte for each.
        let result =
            unsafe { libc::mincore(inner.data.as_ptr().cast(), pages.len() * BLOCK_BYTES, pages.as_mut_ptr().cast()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count() * BLOCK_BYTES
    }

    #[test]
    fn pool_stops_at_its_ceiling_and_reuses_the_last_freed_block() {
        let pool = Pool::new(10 * (BLOCK_BYTES + HEADER_BYTES), None).expect("a small pool can be mapped");
        assert_eq!((pool.total(), pool.free()), (10, 10));
        let mut blocks: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!((blocks.len(), pool.free()), (10, 0));
        let last = blocks.pop().expect("the pool has ten blocks").freeze();
        let address = last.as_bytes().expect("real blocks have bytes").as_ptr();
        drop(last);
        assert_eq!(pool.free(), 1);
        let again = pool.alloc().expect("a block was freed").freeze();
        assert_eq!(again.as_bytes().expect("real blocks have bytes").as_ptr(), address);
    }

    #[test]
    fn block_is_writable_again_only_with_one_holder() {
        let pool = Pool::new(1 << 20, None).expect("a small pool can be mapped");
        let mut block = pool.alloc().expect("the pool has a free block");
        block.write_bytes(10, b"content");
        let first = block.freeze();
        let second = first.clone();
        assert!(!first.is_unique());
        let first = first.thaw().err().expect("the block has two holders");
        drop(second);
        assert!(first.is_unique());
        let mut read = [0; 7];
        first.read_bytes(10, &mut read);
        assert_eq!(&read, b"content");
        assert!(first.thaw().is_ok());
    }

    #[test]
    fn zero_block_is_zero_never_writable_and_not_counted() {
        let pool = Pool::new(1 << 20, None).expect("a small pool can be mapped");
        let before = pool.free();
        let zero = pool.zero_block();
        assert!(zero.is_zero(0, BLOCK_BYTES));
        assert!(zero.thaw().is_err());
        assert_eq!(pool.free(), before);
    }

    #[test]
    fn blocks_outlive_their_pool() {
        let pool = Pool::new(1 << 20, None).expect("a small pool can be mapped");
        let mut block = pool.alloc().expect("the pool has a free block");
        block.write_bytes(0, b"still here");
        let (block, zero) = (block.freeze(), pool.zero_block());
        drop(pool);
        assert_eq!(&block.as_bytes().expect("real blocks have bytes")[..10], b"still here");
        assert!(zero.is_zero(0, BLOCK_BYTES) && !zero.has_same_content(&block));
    }

    #[test]
    fn memory_is_resident_only_where_blocks_were_used() {
        let pool = Pool::new(4 << 30, None).expect("address space is not memory");
        assert_eq!(resident(&pool), 0);
        let blocks: Vec<_> = (0..4096)
            .map(|_| {
                let mut block = pool.alloc().expect("the pool has a free block");
                block.write_bytes(0, &[1; BLOCK_BYTES]);
                block
            })
            .collect();
        let resident = resident(&pool);
        // Huge pages round it up.
        assert!((16 << 20..64 << 20).contains(&resident), "16 MiB of blocks made {resident} bytes resident");
        drop(blocks);
    }
}
