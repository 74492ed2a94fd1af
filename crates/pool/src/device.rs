//! Requests to one group's disk: metadata blocks, durable writes, zero-ranges on disks without them.

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskError, DiskResult, Piece, Seam};

use crate::buffers::Buffers;
use crate::format::Raw;

/// Maximum number of attempts of a write whose disk reconnects before the flush.
const ATTEMPTS_MAX: u32 = 3;
/// Bytes of a write that stands for a part of a zero-range.
const ZERO_WRITE_BYTES: u64 = 1 << 20;

/// Reads `count` blocks from byte `at` on, in requests as large as the free buffers allow, and calls `visit` with the
/// index and content of each.
pub(crate) async fn read_each<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    disk: &D,
    at: u64,
    count: usize,
    mut visit: impl FnMut(usize, &S::Block),
) -> DiskResult<()> {
    let mut done = 0;
    while done < count {
        let pieces = buffers.get_up_to(count - done).await.into_iter().map(Piece::whole).collect();
        let (result, pieces) = disk.read(at + (done * BLOCK_BYTES) as u64, pieces).await;
        for piece in pieces {
            let block = piece.block.freeze();
            if result.is_ok() {
                visit(done, &block);
                done += 1;
            }
            buffers.put_frozen(block);
        }
        result?;
    }
    Ok(())
}

/// Reads one metadata block.
pub(crate) async fn read_one<S: Seam, D: Disk<S>>(buffers: &Buffers<S>, disk: &D, at: u64) -> DiskResult<Box<Raw>> {
    let mut raw = Box::new([0; BLOCK_BYTES]);
    read_each(buffers, disk, at, 1, |_, block| block.read_bytes(0, &mut *raw)).await?;
    Ok(raw)
}

/// Writes blocks at byte offsets and flushes the disk, before the pool on it is open. If the disk reconnects meanwhile,
/// it may have lost a write, so all are repeated.
pub(crate) async fn write_durably<S: Seam, D: Disk<S>>(disk: &D, runs: &[(u64, Vec<S::Block>)]) -> DiskResult<()> {
    for _ in 0..ATTEMPTS_MAX {
        let connection_epoch = disk.connection_epoch();
        for (at, blocks) in runs {
            disk.write(*at, blocks.iter().cloned().map(Piece::whole).collect()).await?;
        }
        disk.flush().await?;
        if disk.connection_epoch() == connection_epoch {
            return Ok(());
        }
    }
    Err(DiskError::Io("the device keeps reconnecting before its writes are flushed".to_owned()))
}

/// Zeroes a range, and releases its space below only with `may_unmap`: a later write to a released range may find the
/// storage below full. Writes zeroes where the disk cannot do that by itself.
pub(crate) async fn zero_range<S: Seam, D: Disk<S>>(
    seam: &S,
    disk: &D,
    (at, len): (u64, u64),
    may_unmap: bool,
) -> DiskResult<()> {
    if len == 0 {
        return Ok(());
    }
    match disk.zero(at, len, may_unmap).await {
        Err(DiskError::Unsupported) => {}
        other => return other,
    }
    let mut done = 0;
    while done < len {
        let count = ZERO_WRITE_BYTES.min(len - done);
        let whole = count / BLOCK_BYTES as u64;
        let mut pieces: Vec<_> = (0..whole).map(|_| Piece::whole(seam.zero_block())).collect();
        let rest = (count % BLOCK_BYTES as u64) as usize;
        if rest > 0 {
            pieces.push(Piece::new(seam.zero_block(), 0, rest));
        }
        disk.write(at + done, pieces).await?;
        done += count;
    }
    Ok(())
}
