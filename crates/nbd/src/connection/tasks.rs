//! Requests that have to wait, a task each.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use connection::{Stop, buffer_bytes};
use engine::{ByteOffset, OwnedBlocks, WriteFlags, ZeroFlags};
use nbd_protocol::reply::{push_error_chunk, push_status_chunk};
use nbd_protocol::{Errno, Request, command, flags};
use seam::{AllocationExtent, BLOCK_BYTES, Seam};

use super::Connection;
use super::request_guard::RequestGuard;
use crate::errno::errno;
use crate::negotiation::ALLOCATION_CONTEXT;
use crate::options::{EXTENTS_MAX, READ_PIECE_BYTES, WHOLE_READ_BYTES_MAX};

/// Form of the reply to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyShape {
    /// One reply, held until the data is complete.
    Whole,
    /// Chunks of a structured reply.
    Chunks,
    /// A simple reply that is too long to be held: sent piece by piece, without other replies in between.
    Stream,
}

impl<S: Seam> Connection<S> {
    /// Runs `work` as a task and answers `request` with its result.
    fn spawn_and_answer<F>(self: &Rc<Self>, request: &Request, work: impl FnOnce(Rc<Self>) -> F)
    where
        F: Future<Output = Result<(), Errno>> + 'static,
    {
        let (guard, request) = (RequestGuard::new(self, 0, 0), *request);
        let work = work(Rc::clone(self));
        self.seam.spawn(async move {
            let result = work.await;
            guard.connection.queue_reply(&request, result.err());
        });
    }

    pub(super) fn spawn_flush(self: &Rc<Self>, request: &Request) {
        self.spawn_and_answer(request, |this| async move { this.volume.flush().await.map_err(|error| errno(&error)) });
    }

    pub(super) fn spawn_prefetch(self: &Rc<Self>, request: &Request) {
        let (offset, len) = (ByteOffset(request.offset), request.len.into());
        self.spawn_and_answer(request, move |this| async move {
            this.volume.prefetch_bytes(offset, len).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn spawn_trim(self: &Rc<Self>, request: &Request) {
        let (offset, len, flags) = (ByteOffset(request.offset), request.len.into(), write_flags(request));
        self.spawn_and_answer(request, move |this| async move {
            this.volume.discard_bytes(offset, len, flags).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn spawn_zero(self: &Rc<Self>, request: &Request) {
        let (offset, len) = (ByteOffset(request.offset), request.len.into());
        let flags = ZeroFlags {
            fua: request.flags & command::FUA != 0,
            may_unmap: request.flags & command::NO_HOLE == 0,
            fast_only: request.flags & command::FAST_ZERO != 0,
        };
        self.spawn_and_answer(request, move |this| async move {
            this.volume.zero_bytes(offset, len, flags).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn spawn_write(self: &Rc<Self>, request: &Request, payload: &[u8]) {
        let (guard, request, payload) = (RequestGuard::new(self, 0, payload.len()), *request, payload.to_vec());
        self.seam.spawn(async move {
            let this = &guard.connection;
            let result = this.volume.write_bytes(ByteOffset(request.offset), &payload, write_flags(&request)).await;
            this.queue_reply(&request, result.err().map(|error| errno(&error)));
        });
    }

    /// Like [`Connection::spawn_write`], with the data in blocks of the engine.
    pub(super) fn spawn_write_of_blocks(
        self: &Rc<Self>,
        request: &Request,
        mut data: OwnedBlocks<S>,
        guard: RequestGuard<S>,
    ) {
        let request = *request;
        self.seam.spawn(async move {
            let this = &guard.connection;
            let flags = write_flags(&request);
            let result = this.volume.write(ByteOffset(request.offset), request.len as usize, flags, &mut data).await;
            this.queue_reply(&request, result.err().map(|error| errno(&error)));
        });
    }

    pub(super) fn spawn_read(self: &Rc<Self>, request: &Request) {
        let shape = match request.len {
            _ if self.structured && request.flags & command::DF == 0 => ReplyShape::Chunks,
            ..=WHOLE_READ_BYTES_MAX => ReplyShape::Whole,
            _ => ReplyShape::Stream,
        };
        let len = request.len as usize;
        let held_bytes = if shape == ReplyShape::Whole { len } else { READ_PIECE_BYTES.min(len) };
        let (guard, request) = (RequestGuard::new(self, held_bytes, 0), *request);
        self.is_streaming.set(shape == ReplyShape::Stream);
        self.seam.spawn(async move {
            let this = &guard.connection;
            match shape {
                ReplyShape::Whole => this.read_whole(&request).await,
                ReplyShape::Chunks => this.read_in_pieces(&request, shape).await,
                ReplyShape::Stream => {
                    this.wait_until_sole_request().await;
                    this.read_in_pieces(&request, shape).await;
                    this.is_streaming.set(false);
                }
            }
        });
    }

    /// Reads all data before the reply is queued.
    async fn read_whole(&self, request: &Request) {
        let (end, mut at, mut data) = (request.offset + u64::from(request.len), request.offset, Vec::new());
        let lent_bytes = buffer_bytes(at, request.len as usize);
        let Some(loan) = self.duplex.buffer_account().borrow(&self.seam, lent_bytes, || true).await else { return };
        while at < end {
            let len = (READ_PIECE_BYTES - (at % READ_PIECE_BYTES as u64) as usize).min((end - at) as usize);
            if let Err(error) = self.volume.read_bytes(ByteOffset(at), len, &mut data).await {
                return self.queue_read_error(request, at, errno(&error));
            }
            at += len as u64;
        }
        self.queue_data(request, request.offset, true, &mut data, loan.into_bytes());
    }

    /// Reads and sends piece by piece, so that only one piece is held.
    async fn read_in_pieces(&self, request: &Request, shape: ReplyShape) {
        let (end, mut at, mut data) = (request.offset + u64::from(request.len), request.offset, Vec::new());
        // Pieces within the connection's quota need not wait for other clients.
        let quota_bytes = self.limits.clients.client_quota_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let piece_bytes = quota_bytes.clamp(BLOCK_BYTES, READ_PIECE_BYTES);
        while at < end {
            let len = (piece_bytes - (at % piece_bytes as u64) as usize).min((end - at) as usize);
            let Some(loan) = self.duplex.buffer_account().borrow(&self.seam, buffer_bytes(at, len), || true).await
            else {
                return;
            };
            let result = self.volume.read_bytes(ByteOffset(at), len, &mut data).await;
            let is_first = at == request.offset;
            match (result, shape) {
                (Ok(()), ReplyShape::Stream) => self.queue_part(request, is_first, &mut data, loan.into_bytes()),
                (Ok(()), _) => self.queue_data(request, at, at + len as u64 == end, &mut data, loan.into_bytes()),
                // The header of a simple reply has reported success: the protocol requires closing the connection.
                (Err(_), ReplyShape::Stream) if !is_first => return self.duplex.control().request_stop(Stop::Now),
                (Err(error), _) => return self.queue_read_error(request, at, errno(&error)),
            }
            at += len as u64;
            self.duplex.control().wake();
        }
    }

    /// Waits until the caller's request is the only one in flight: no reply may interrupt a simple reply.
    async fn wait_until_sole_request(&self) {
        poll_fn(|context| {
            if self.requests_in_flight.get() == 1 {
                return Poll::Ready(());
            }
            *self.sole_request_waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn queue_read_error(&self, request: &Request, at: u64, error: Errno) {
        if !self.structured {
            return self.queue_reply(request, Some(error));
        }
        let mut chunk = Vec::new();
        push_error_chunk(&mut chunk, request.cookie, error, Some(at));
        self.duplex.queue_bytes(&chunk);
    }

    pub(super) fn spawn_block_status(self: &Rc<Self>, request: &Request) {
        let (guard, request) = (RequestGuard::new(self, 0, 0), *request);
        self.seam.spawn(async move {
            let this = &guard.connection;
            match this.block_status(&request).await {
                Ok(extents) => {
                    let mut chunk = Vec::new();
                    push_status_chunk(&mut chunk, request.cookie, ALLOCATION_CONTEXT, &extents);
                    this.duplex.queue_bytes(&chunk);
                }
                Err(error) => this.queue_reply(&request, Some(error)),
            }
        });
    }

    /// Extents from the request's offset on: (bytes, flags); adjacent extents differ in their flags.
    async fn block_status(&self, request: &Request) -> Result<Vec<(u32, u32)>, Errno> {
        let end = request.offset + u64::from(request.len);
        let only_one = request.flags & command::REQ_ONE != 0;
        let (mut at, mut extents) = (request.offset, Vec::<(u32, u32)>::new());
        while at < end && extents.len() <= EXTENTS_MAX {
            let runs = self.volume.allocation_bytes(ByteOffset(at), end - at).await.map_err(|error| errno(&error))?;
            let before = at;
            for run in runs {
                let len = run.len_bytes.min(end - at) as u32;
                let state_flags = status_flags(&run);
                match extents.last_mut() {
                    _ if len == 0 => (),
                    Some((last_len, last_flags)) if *last_flags == state_flags => *last_len += len,
                    _ => extents.push((len, state_flags)),
                }
                at += u64::from(len);
            }
            if at == before || only_one && extents.len() > 1 {
                break;
            }
        }
        extents.truncate(if only_one { 1 } else { EXTENTS_MAX });
        if extents.is_empty() { Err(Errno::Io) } else { Ok(extents) }
    }
}

/// A write received in pieces and answered when the last piece is written.
pub(super) struct LargeWrite<S: Seam> {
    guard: RequestGuard<S>,
    request: Request,
    /// Pieces in flight, plus one until all pieces have been received.
    pending_pieces: Cell<usize>,
    error: Cell<Option<Errno>>,
}

impl<S: Seam> LargeWrite<S> {
    pub(super) fn new(connection: &Rc<Connection<S>>, request: &Request) -> Rc<Self> {
        let guard = RequestGuard::new(connection, 0, 0);
        Rc::new(LargeWrite { guard, request: *request, pending_pieces: Cell::new(1), error: Cell::new(None) })
    }

    /// True if a piece failed.
    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Writes a piece as a task.
    pub(super) fn spawn_piece(self: &Rc<Self>, at: ByteOffset, payload: &[u8]) {
        let (write, payload) = (Rc::clone(self), payload.to_vec());
        let piece = RequestGuard::new(&self.guard.connection, 0, payload.len());
        write.pending_pieces.set(write.pending_pieces.get() + 1);
        self.guard.connection.seam.spawn(async move {
            let flags = write_flags(&write.request);
            let result = piece.connection.volume.write_bytes(at, &payload, flags).await;
            if let Err(error) = result {
                write.error.set(Some(errno(&error)));
            }
            drop(piece);
            write.finish_piece();
        });
    }

    /// Records the end of a piece or of the reception; the last one answers the request.
    pub(super) fn finish_piece(&self) {
        self.pending_pieces.set(self.pending_pieces.get() - 1);
        if self.pending_pieces.get() == 0 {
            self.guard.connection.queue_reply(&self.request, self.error.get());
        }
    }
}

fn write_flags(request: &Request) -> WriteFlags {
    WriteFlags { fua: request.flags & command::FUA != 0, ..Default::default() }
}

fn status_flags(run: &AllocationExtent) -> u32 {
    (if run.hole { flags::STATE_HOLE } else { 0 }) | if run.zero { flags::STATE_ZERO } else { 0 }
}
