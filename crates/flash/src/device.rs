//! One device of the store: block reads and durable writes, for the write path and recovery.

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskError, DiskResult, Nanos, Piece, Seam};

use crate::abort::AbortHandle;
use crate::error::StoreError;
use crate::format::{FIRST_SEGMENT_BYTES, Raw};
use crate::member_disk::MemberDisk;
use crate::number::{MemberNo, SegmentNo};

/// Maximum number of attempts of a write whose disk reconnects before the flush.
const WRITE_ATTEMPTS_MAX: u32 = 3;

/// A device of the store.
pub struct Device<S: Seam> {
    /// The device's number in the store.
    pub member: MemberNo,
    /// The disk behind it.
    pub disk: MemberDisk<S>,
    /// Ends the wait for the device's requests when it leaves service.
    pub abort: AbortHandle,
}

impl<S: Seam> Clone for Device<S> {
    fn clone(&self) -> Self {
        Device { member: self.member, disk: self.disk.clone(), abort: self.abort.clone() }
    }
}

impl<S: Seam> Device<S> {
    /// The device of a disk with this member number.
    pub fn new(member: MemberNo, disk: MemberDisk<S>) -> Self {
        Device { member, disk, abort: AbortHandle::default() }
    }

    /// The device's name for people.
    pub fn name(&self) -> String {
        self.disk.identity()
    }

    /// Wraps an error of this device, with the device's name.
    pub fn wrap_error(&self, error: DiskError) -> StoreError {
        StoreError::Disk { device: self.name(), error }
    }

    /// Reads the block at byte offset `offset_bytes` as bytes.
    pub async fn read_raw(&self, source: &impl BufferSource<S>, offset_bytes: u64) -> DiskResult<Box<Raw>> {
        let block = self.read_blocks(source, offset_bytes, 1).await?.pop().expect("one block was read");
        Ok(raw(&block))
    }

    /// Reads `count` blocks from byte offset `offset_bytes` on in one request.
    pub async fn read_blocks(
        &self,
        source: &impl BufferSource<S>,
        offset_bytes: u64,
        count: usize,
    ) -> DiskResult<Vec<S::Block>> {
        let mut pieces = Vec::with_capacity(count);
        for _ in 0..count {
            pieces.push(Piece::whole(source.wait_buffer().await));
        }
        let (result, pieces) = self.disk.read(offset_bytes, pieces).await;
        result?;
        Ok(pieces.into_iter().map(|piece| piece.block.freeze()).collect())
    }

    /// Writes blocks from byte offset `offset_bytes` on. If the disk reconnects meanwhile, it may have lost the write,
    /// so the write is repeated.
    pub async fn write_with_retry(
        &self,
        offset_bytes: u64,
        blocks: Vec<S::Block>,
        durability: Durability,
    ) -> DiskResult<()> {
        for _ in 0..WRITE_ATTEMPTS_MAX {
            let connection_epoch = self.disk.connection_epoch();
            self.disk.write(offset_bytes, blocks.iter().cloned().map(Piece::whole).collect()).await?;
            if durability == Durability::Flushed {
                self.disk.flush().await?;
            }
            if self.disk.connection_epoch() == connection_epoch {
                return Ok(());
            }
        }
        Err(DiskError::Io("the device keeps reconnecting before its writes are flushed".to_owned()))
    }
}

/// Whether a write ends with a flush of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The write is durable when it ends.
    Flushed,
    /// A later flush makes the write durable.
    Unflushed,
}

impl Durability {
    /// [`Durability::Flushed`] if `needs_flush` is set.
    pub fn flushed_if(needs_flush: bool) -> Durability {
        if needs_flush { Durability::Flushed } else { Durability::Unflushed }
    }
}

/// The bytes of a block.
pub fn raw(block: &impl Block) -> Box<Raw> {
    let mut raw = Box::new([0; BLOCK_BYTES]);
    block.read_bytes(0, &mut *raw);
    raw
}

/// Fills a buffer with these bytes and freezes it.
pub fn block_of<S: Seam>(mut buffer: S::BlockMut, raw: &Raw) -> S::Block {
    buffer.write_metadata(0, raw);
    buffer.freeze()
}

/// A source of read buffers: the pool, or, for an open store, also the engine above it, whose cache can free buffers.
pub trait BufferSource<S: Seam> {
    /// Waits for a free buffer.
    fn wait_buffer(&self) -> impl Future<Output = S::BlockMut>;
}

impl<S: Seam> BufferSource<S> for S {
    async fn wait_buffer(&self) -> S::BlockMut {
        alloc_buffer(self).await
    }
}

/// Waits for a free buffer of the pool.
pub async fn alloc_buffer<S: Seam>(seam: &S) -> S::BlockMut {
    loop {
        match seam.alloc() {
            Some(buffer) => return buffer,
            None => seam.sleep(Nanos::from_millis(1)).await,
        }
    }
}

/// The byte offset of block `block_index` of a segment on a device.
pub fn block_offset(segment_bytes: u64, segment: SegmentNo, block_index: u32) -> u64 {
    FIRST_SEGMENT_BYTES + u64::from(segment.0) * segment_bytes + u64::from(block_index) * BLOCK_BYTES as u64
}
