//! Requests that have to wait: a task each, bounded by what the connection may hold.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use engine::{GivenBlocks, WriteFlags, ZeroFlags};
use front::{Stop, buffer_bytes};
use nbd_protocol::reply::{push_error_chunk, push_status_chunk};
use nbd_protocol::{Errno, Request, command, flags};
use seam::{AllocationExtent, BLOCK_BYTES, Seam};

use super::Connection;
use crate::errno::errno;
use crate::negotiation::ALLOCATION_CONTEXT;
use crate::options::{EXTENTS_MAX, READ_PIECE_BYTES, WHOLE_READ_BYTES_MAX};

/// How the answer to a read leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// In one piece, which is held until it is whole.
    Whole,
    /// As chunks of a structured reply.
    Chunks,
    /// As one simple reply that is too long to be held: piece by piece, with no other reply in between.
    Stream,
}

/// A request under way; gives back what it holds, and wakes the connection, when it ends.
pub(super) struct UnderWay<S: Seam> {
    connection: Rc<Connection<S>>,
    held_bytes: usize,
    payload_bytes: usize,
    lent_bytes: usize,
}

impl<S: Seam> UnderWay<S> {
    /// One more under way, which holds so many bytes for its reply or its blocks, and so many that it writes.
    pub(super) fn new(connection: &Rc<Connection<S>>, held_bytes: usize, payload_bytes: usize) -> Self {
        let add = |cell: &Cell<usize>, more: usize| cell.set(cell.get() + more);
        add(&connection.requests, 1);
        add(&connection.held_bytes, held_bytes);
        add(&connection.payload_bytes, payload_bytes);
        UnderWay { connection: Rc::clone(connection), held_bytes, payload_bytes, lent_bytes: 0 }
    }

    /// Holds buffers that were borrowed, too.
    pub(super) fn with_loan(mut self, lent_bytes: usize) -> Self {
        self.lent_bytes += lent_bytes;
        self
    }
}

impl<S: Seam> Drop for UnderWay<S> {
    fn drop(&mut self) {
        let subtract = |cell: &Cell<usize>, less: usize| {
            cell.set(cell.get().checked_sub(less).expect("what is given back was taken"));
        };
        subtract(&self.connection.requests, 1);
        subtract(&self.connection.held_bytes, self.held_bytes);
        subtract(&self.connection.payload_bytes, self.payload_bytes);
        self.connection.account.give_back(self.lent_bytes);
        if let Some(last_one) = self.connection.last_one.take() {
            last_one.wake();
        }
        self.connection.control.wake();
    }
}

impl<S: Seam> Connection<S> {
    /// Runs `work` as a task and answers `request` with what it ends in.
    fn later<F>(self: &Rc<Self>, request: &Request, work: impl FnOnce(Rc<Self>) -> F)
    where
        F: Future<Output = Result<(), Errno>> + 'static,
    {
        let (under_way, request) = (UnderWay::new(self, 0, 0), *request);
        let work = work(Rc::clone(self));
        self.seam.spawn(async move {
            let result = work.await;
            under_way.connection.answer(&request, result.err());
        });
    }

    pub(super) fn flush_later(self: &Rc<Self>, request: &Request) {
        self.later(request, |this| async move { this.volume.flush().await.map_err(|error| errno(&error)) });
    }

    pub(super) fn prefetch_later(self: &Rc<Self>, request: &Request) {
        let (offset, len) = (request.offset, request.len.into());
        self.later(request, move |this| async move {
            this.volume.prefetch_bytes(offset, len).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn trim_later(self: &Rc<Self>, request: &Request) {
        let (offset, len, flags) = (request.offset, request.len.into(), write_flags(request));
        self.later(request, move |this| async move {
            this.volume.discard_bytes(offset, len, flags).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn zero_later(self: &Rc<Self>, request: &Request) {
        let (offset, len) = (request.offset, request.len.into());
        let flags = ZeroFlags {
            fua: request.flags & command::FUA != 0,
            may_unmap: request.flags & command::NO_HOLE == 0,
            fast_only: request.flags & command::FAST_ZERO != 0,
        };
        self.later(request, move |this| async move {
            this.volume.zero_bytes(offset, len, flags).await.map_err(|error| errno(&error))
        });
    }

    pub(super) fn write_later(self: &Rc<Self>, request: &Request, payload: &[u8]) {
        let (under_way, request, payload) = (UnderWay::new(self, 0, payload.len()), *request, payload.to_vec());
        self.seam.spawn(async move {
            let this = &under_way.connection;
            let result = this.volume.write_bytes(request.offset, &payload, write_flags(&request)).await;
            this.answer(&request, result.err().map(|error| errno(&error)));
        });
    }

    /// As [`Connection::write_later`], with the data in the engine's own buffers.
    pub(super) fn write_given_later(
        self: &Rc<Self>,
        request: &Request,
        mut data: GivenBlocks<S>,
        under_way: UnderWay<S>,
    ) {
        let request = *request;
        self.seam.spawn(async move {
            let this = &under_way.connection;
            let flags = write_flags(&request);
            let result = this.volume.write(request.offset, request.len as usize, flags, &mut data).await;
            this.answer(&request, result.err().map(|error| errno(&error)));
        });
    }

    pub(super) fn read_later(self: &Rc<Self>, request: &Request) {
        let shape = match request.len {
            _ if self.structured && request.flags & command::DF == 0 => Shape::Chunks,
            ..=WHOLE_READ_BYTES_MAX => Shape::Whole,
            _ => Shape::Stream,
        };
        let len = request.len as usize;
        let held_bytes = if shape == Shape::Whole { len } else { READ_PIECE_BYTES.min(len) };
        let (under_way, request) = (UnderWay::new(self, held_bytes, 0), *request);
        self.is_streaming.set(shape == Shape::Stream);
        self.seam.spawn(async move {
            let this = &under_way.connection;
            match shape {
                Shape::Whole => this.read_whole(&request).await,
                Shape::Chunks => this.read_in_pieces(&request, shape).await,
                Shape::Stream => {
                    this.others_ended().await;
                    this.read_in_pieces(&request, shape).await;
                    this.is_streaming.set(false);
                }
            }
        });
    }

    /// Reads all before anything is sent.
    async fn read_whole(&self, request: &Request) {
        let (end, mut at, mut data) = (request.offset + u64::from(request.len), request.offset, Vec::new());
        let lent_bytes = buffer_bytes(at, request.len as usize);
        let Some(loan) = self.account.borrow(&self.seam, lent_bytes, || true).await else { return };
        while at < end {
            let len = (READ_PIECE_BYTES - (at % READ_PIECE_BYTES as u64) as usize).min((end - at) as usize);
            if let Err(error) = self.volume.read_bytes(at, len, &mut data).await {
                return self.answer_failed_read(request, at, errno(&error));
            }
            at += len as u64;
        }
        self.answer_data(request, request.offset, true, &mut data, loan.into_bytes());
    }

    /// Reads piece by piece; the pieces leave as they come, so that no more than one of them need be held.
    async fn read_in_pieces(&self, request: &Request, shape: Shape) {
        let (end, mut at, mut data) = (request.offset + u64::from(request.len), request.offset, Vec::new());
        // No longer than the connection's share, within which it waits for no other client.
        let share = self.shares.clients.share_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let piece_bytes = share.clamp(BLOCK_BYTES, READ_PIECE_BYTES);
        while at < end {
            let len = (piece_bytes - (at % piece_bytes as u64) as usize).min((end - at) as usize);
            let Some(loan) = self.account.borrow(&self.seam, buffer_bytes(at, len), || true).await else { return };
            let result = self.volume.read_bytes(at, len, &mut data).await;
            let is_first = at == request.offset;
            match (result, shape) {
                (Ok(()), Shape::Stream) => self.answer_part(request, is_first, &mut data, loan.into_bytes()),
                (Ok(()), _) => self.answer_data(request, at, at + len as u64 == end, &mut data, loan.into_bytes()),
                // The head of a simple reply has said that there is no error: the protocol wants the connection to end.
                (Err(_), Shape::Stream) if !is_first => return self.control.ask(Stop::Now),
                (Err(error), _) => return self.answer_failed_read(request, at, errno(&error)),
            }
            at += len as u64;
            self.control.wake();
        }
    }

    /// Waits until no request but the caller's is under way: nothing may come between the parts of a simple reply.
    async fn others_ended(&self) {
        poll_fn(|context| {
            if self.requests.get() == 1 {
                return Poll::Ready(());
            }
            *self.last_one.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn answer_failed_read(&self, request: &Request, at: u64, error: Errno) {
        if !self.structured {
            return self.answer(request, Some(error));
        }
        let mut chunk = Vec::new();
        push_error_chunk(&mut chunk, request.cookie, error, Some(at));
        self.queue(&chunk);
    }

    pub(super) fn status_later(self: &Rc<Self>, request: &Request) {
        let (under_way, request) = (UnderWay::new(self, 0, 0), *request);
        self.seam.spawn(async move {
            let this = &under_way.connection;
            match this.status(&request).await {
                Ok(extents) => {
                    let mut chunk = Vec::new();
                    push_status_chunk(&mut chunk, request.cookie, ALLOCATION_CONTEXT, &extents);
                    this.queue(&chunk);
                }
                Err(error) => this.answer(&request, Some(error)),
            }
        });
    }

    /// Extents from the request's offset on as the protocol wants them: (bytes, flags), neighbours that differ.
    async fn status(&self, request: &Request) -> Result<Vec<(u32, u32)>, Errno> {
        let end = request.offset + u64::from(request.len);
        let only_one = request.flags & command::REQ_ONE != 0;
        let (mut at, mut extents) = (request.offset, Vec::<(u32, u32)>::new());
        while at < end && extents.len() <= EXTENTS_MAX {
            let runs = self.volume.allocation_bytes(at, end - at).await.map_err(|error| errno(&error))?;
            let before = at;
            for run in runs {
                let len = run.len_bytes.min(end - at) as u32;
                let state = state(&run);
                match extents.last_mut() {
                    _ if len == 0 => (),
                    Some((sum, last)) if *last == state => *sum += len,
                    _ => extents.push((len, state)),
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

/// A write that arrives in pieces and is answered when the last of them is written.
pub(super) struct LargeWrite<S: Seam> {
    under_way: UnderWay<S>,
    request: Request,
    /// Pieces being written, and one more until all have arrived.
    left: Cell<usize>,
    error: Cell<Option<Errno>>,
}

impl<S: Seam> LargeWrite<S> {
    pub(super) fn new(connection: &Rc<Connection<S>>, request: &Request) -> Rc<Self> {
        let under_way = UnderWay::new(connection, 0, 0);
        Rc::new(LargeWrite { under_way, request: *request, left: Cell::new(1), error: Cell::new(None) })
    }

    /// True when a piece could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Writes a piece as a task.
    pub(super) fn piece_later(self: &Rc<Self>, at: u64, payload: &[u8]) {
        let (write, payload) = (Rc::clone(self), payload.to_vec());
        let piece = UnderWay::new(&self.under_way.connection, 0, payload.len());
        write.left.set(write.left.get() + 1);
        self.under_way.connection.seam.spawn(async move {
            let flags = write_flags(&write.request);
            let result = piece.connection.volume.write_bytes(at, &payload, flags).await;
            if let Err(error) = result {
                write.error.set(Some(errno(&error)));
            }
            drop(piece);
            write.taken();
        });
    }

    /// One less to wait for; the last one answers.
    pub(super) fn taken(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.under_way.connection.answer(&self.request, self.error.get());
        }
    }
}

fn write_flags(request: &Request) -> WriteFlags {
    WriteFlags { fua: request.flags & command::FUA != 0, ..Default::default() }
}

fn state(run: &AllocationExtent) -> u32 {
    (if run.hole { flags::STATE_HOLE } else { 0 }) | if run.zero { flags::STATE_ZERO } else { 0 }
}
