//! An NBD export as a disk of the engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use nbd_protocol::flags;
use seam::{
    AllocationExtent, BLOCK_BYTES, Disk, DiskError, DiskResult, Geometry, Lineage, Nanos, PendingRequests, Piece,
    PieceMut, Seam, StreamWriter, block::pieces_len,
};

use crate::export_info::ExportInfo;
use crate::reconnect::{connect, keep_connected};
use crate::request_table::{OpenRequest, Operation};
use crate::shared::SharedConnection;
use crate::{DedicatedServer, NbdOptions, NbdTarget};

/// Longest zero-range or status request, in bytes: well inside 32 bits, and a multiple of any block.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Number of requests that a server is expected to process in parallel.
const QUEUE_DEPTH: u32 = 64;

impl<S: Seam> SharedConnection<S> {
    async fn zero(&self, at: u64, len: u64, may_unmap: bool, fast_only: bool) -> DiskResult<()> {
        let starts = (at..at + len).step_by(RANGE_BYTES_MAX as usize);
        let requests: Vec<_> = starts
            .map(|start| {
                let len = RANGE_BYTES_MAX.min(at + len - start) as u32;
                self.submit(Operation::Zero { may_unmap, fast_only }, start, len, Vec::new())
            })
            .collect();
        wait_all(requests).await
    }
}

/// Ends the connection when the last [`NbdDisk`] is dropped.
struct DiskHandle<S: Seam>(Rc<SharedConnection<S>>);

impl<S: Seam> Drop for DiskHandle<S> {
    fn drop(&mut self) {
        // A dedicated server ends with its disk, also if a request hangs.
        if self.0.server.is_some() {
            self.0.is_abandoned.set(true);
        }
        self.0.is_closing.set(true);
        self.0.wake();
    }
}

/// Another server's NBD export. A clone is another handle. When the last handle is dropped, the connection ends after
/// the last answer.
pub struct NbdDisk<S: Seam>(Rc<DiskHandle<S>>);

impl<S: Seam> Clone for NbdDisk<S> {
    fn clone(&self) -> Self {
        NbdDisk(Rc::clone(&self.0))
    }
}

impl<S: Seam> NbdDisk<S> {
    /// Connects to an export. A failure of the first attempt is returned at once; later connection losses are repaired.
    pub async fn open(seam: &S, target: NbdTarget, options: NbdOptions) -> DiskResult<Self> {
        NbdDisk::connect(seam, target, options, None).await
    }

    /// Connects to a server that serves this disk alone. Its identity is the disk's.
    pub async fn open_dedicated(
        seam: &S,
        target: NbdTarget,
        options: NbdOptions,
        server: Box<dyn DedicatedServer>,
    ) -> DiskResult<Self> {
        NbdDisk::connect(seam, target, options, Some(server)).await
    }

    async fn connect(
        seam: &S,
        target: NbdTarget,
        options: NbdOptions,
        server: Option<Box<dyn DedicatedServer>>,
    ) -> DiskResult<Self> {
        let link = connect(seam, &target, &options).await?;
        let shared = Rc::new(SharedConnection {
            seam: seam.clone(),
            target,
            options,
            server,
            export_info: Cell::new(link.export_info),
            connection_epoch: Cell::new(0),
            request_table: RefCell::default(),
            pending: PendingRequests::default(),
            failure: RefCell::default(),
            is_closing: Cell::new(false),
            is_abandoned: Cell::new(false),
            is_fast_zero_refused: Cell::new(false),
            receive_count: Cell::new(0),
            waker: RefCell::default(),
        });
        let connection = Rc::clone(&shared);
        seam.spawn(async move { keep_connected(connection, link).await });
        Ok(NbdDisk(Rc::new(DiskHandle(shared))))
    }

    fn shared(&self) -> &SharedConnection<S> {
        &self.0.0
    }

    fn request_bytes_max(&self) -> usize {
        self.shared().export_info.get().request_bytes_max as usize
    }
}

impl<S: Seam> Disk<S> for NbdDisk<S> {
    fn geometry(&self) -> Geometry {
        let export_info = self.shared().export_info.get();
        let block = BLOCK_BYTES as u32;
        Geometry {
            size_bytes: export_info.size_bytes,
            logical_block: export_info.logical_block_bytes,
            physical_block: export_info.preferred_block_bytes.min(block),
            stripe_bytes: if export_info.preferred_block_bytes > block { export_info.preferred_block_bytes } else { 0 },
            queue_depth: QUEUE_DEPTH,
            fast_zero: self.shared().may_zero_fast(),
        }
    }

    fn identity(&self) -> String {
        let shared = self.shared();
        shared.server.as_ref().map_or_else(|| shared.target.to_string(), |server| server.identity())
    }

    fn is_identity_unique(&self) -> bool {
        self.shared().server.is_some()
    }

    fn lost(&self) -> Option<DiskError> {
        self.shared().lost().cloned()
    }

    fn unproven_for(&self) -> Option<Nanos> {
        self.shared().server.as_ref().and_then(|server| server.unproven_for())
    }

    fn lineage(&self) -> Option<Lineage> {
        self.shared().server.as_ref().and_then(|server| server.lineage())
    }

    async fn mark_undestaged(&self, is_marked: bool) -> DiskResult<()> {
        let shared = self.shared();
        let Some(change) = shared.server.as_ref().map(|server| server.mark_undestaged(is_marked)) else {
            return Ok(());
        };
        let _pending = shared.pending.begin(shared.seam.now());
        change.await
    }

    fn abandon(&self) {
        let shared = self.shared();
        shared.is_abandoned.set(true);
        shared.is_closing.set(true);
        shared.server.iter().for_each(|server| server.end());
        shared.wake();
    }

    fn connection_epoch(&self) -> u64 {
        self.shared().connection_epoch.get()
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        self.shared().pending.oldest_started_at()
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<S::BlockMut>>) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        let requests: Vec<_> = split(into, self.request_bytes_max())
            .map(|(offset, pieces)| {
                let len = pieces_len(&pieces) as u32;
                self.shared().submit(Operation::Read, at + offset, len, pieces)
            })
            .collect();
        let (mut result, mut into) = (Ok(()), Vec::new());
        for request in requests {
            result = result.and(request.wait().await);
            into.append(&mut request.take_pieces());
        }
        (result, into)
    }

    async fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        self.shared().check_writable()?;
        let requests: Vec<_> = split(from, self.request_bytes_max())
            .map(|(offset, pieces)| {
                let len = pieces_len(&pieces) as u32;
                self.shared().submit(Operation::Write(pieces), at + offset, len, Vec::new())
            })
            .collect();
        wait_all(requests).await
    }

    async fn flush(&self) -> DiskResult<()> {
        if !self.shared().has_flag(flags::SEND_FLUSH) {
            // Such a server has no volatile cache, or no way to flush it.
            return Ok(());
        }
        self.shared().submit(Operation::Flush, 0, 0, Vec::new()).wait().await
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        self.shared().check_writable()?;
        if !self.shared().has_flag(flags::SEND_WRITE_ZEROES) {
            return Err(DiskError::Unsupported);
        }
        if self.shared().may_zero_fast() {
            let result = self.shared().zero(at, len, may_unmap, true).await;
            if result != Err(DiskError::Unsupported) {
                return result;
            }
            self.shared().is_fast_zero_refused.set(true);
        }
        self.shared().zero(at, len, may_unmap, false).await
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        if self.shared().export_info.get().allocation_context_id.is_none() {
            return Ok(vec![AllocationExtent { len_bytes: len, hole: false, zero: false }]);
        }
        let request = self.shared().submit(Operation::Status, at, len.min(RANGE_BYTES_MAX) as u32, Vec::new());
        request.wait().await?;
        let (mut remaining, mut extents) = (len, Vec::new());
        for mut extent in request.take_extents() {
            // The last extent may reach past the requested range.
            extent.len_bytes = extent.len_bytes.min(remaining);
            remaining -= extent.len_bytes;
            if extent.len_bytes > 0 {
                extents.push(extent);
            }
        }
        Ok(extents)
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        let shared = self.shared();
        // A server reports the size only in the handshake, so this needs another connection.
        let mut link = connect(&shared.seam, &shared.target, &shared.options).await?;
        link.writer.shutdown();
        let (before, now) = (shared.export_info.get(), link.export_info.size_bytes);
        shared.export_info.set(ExportInfo { size_bytes: now, ..before });
        Ok(now)
    }

    async fn set_size(&self, _: u64) -> DiskResult<()> {
        Err(DiskError::Unsupported)
    }
}

/// Groups pieces into runs of at most `bytes_max` bytes (at least a block) and returns them with their offsets.
fn split<B>(pieces: Vec<Piece<B>>, bytes_max: usize) -> impl Iterator<Item = (u64, Vec<Piece<B>>)> {
    assert!(bytes_max >= BLOCK_BYTES, "a piece fits into a request");
    let (mut remaining, mut offset) = (pieces.into_iter().peekable(), 0);
    std::iter::from_fn(move || {
        let (mut run, mut len) = (Vec::new(), 0);
        while let Some(piece) = remaining.next_if(|piece| len + piece.len() <= bytes_max) {
            len += piece.len();
            run.push(piece);
        }
        let start = offset;
        offset += len as u64;
        (len > 0).then_some((start, run))
    })
}

async fn wait_all<S: Seam>(requests: Vec<Rc<OpenRequest<S>>>) -> DiskResult<()> {
    let mut result = Ok(());
    for request in requests {
        result = result.and(request.wait().await);
    }
    result
}
