//! The writing half of a connection: queueing and sending of replies.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use nbd_protocol::reply::{self, DONE};
use nbd_protocol::{Command, Errno, Request};
use seam::{Block, Gather, Piece, Seam, StreamWriter, block::pieces_len};

use super::Connection;

/// Shortest read that is checked for zeroes, which are sent as a hole.
const HOLE_BYTES_MIN: usize = 32 << 10;

impl<S: Seam> Connection<S> {
    /// Sends queued replies until the connection has nothing left to answer; returns `None` if the socket fails.
    pub(super) async fn send_replies<W: StreamWriter<S>>(self: &Rc<Self>, mut writer: W) -> Option<W> {
        let mut gather = Gather::default();
        loop {
            let ready = |_: &mut std::task::Context<'_>| match () {
                () if !self.out.borrow().is_empty() => Poll::Ready(true),
                () if self.draining.get() && self.requests.get() == 0 => Poll::Ready(false),
                () => Poll::Pending,
            };
            if !poll_fn(ready).await {
                return Some(writer);
            }
            std::mem::swap(&mut *self.out.borrow_mut(), &mut gather);
            self.sending.set(gather.len());
            self.control.sends(true);
            let lent_bytes = self.account.queued_bytes();
            let (result, sent) = writer.send(gather).await;
            gather = sent;
            gather.clear();
            self.sending.set(0);
            self.control.sends(false);
            self.account.sent(lent_bytes, result.is_ok());
            if result.is_err() {
                return None;
            }
        }
    }

    /// Bytes queued or being sent.
    pub(super) fn queued_bytes(&self) -> usize {
        self.out.borrow().len() + self.sending.get()
    }

    /// Queues a reply without data.
    pub(super) fn answer(&self, request: &Request, error: Option<Errno>) {
        match error {
            Some(error) if self.needs_chunks(request) => {
                let mut chunk = Vec::new();
                reply::push_error_chunk(&mut chunk, request.cookie, error, None);
                self.queue(&chunk);
            }
            error => self.queue(&reply::simple(request.cookie, error)),
        }
    }

    /// Queues data of a read from `offset` on: as a chunk of a structured reply, or as the whole simple reply. The
    /// buffers were borrowed as `lent_bytes`.
    pub(super) fn answer_data(
        &self,
        request: &Request,
        offset: u64,
        last: bool,
        data: &mut Vec<Piece<S::Block>>,
        lent_bytes: usize,
    ) {
        if self.account.has_ended() {
            data.clear();
            return self.account.give_back(lent_bytes);
        }
        let len = pieces_len(data);
        let mut out = self.out.borrow_mut();
        if self.structured {
            let flags = if last { DONE } else { 0 };
            if len >= HOLE_BYTES_MIN && data.iter().all(|piece| piece.block.is_zero(piece.start(), piece.len())) {
                out.push_bytes(&reply::hole_chunk(request.cookie, offset, len as u32, flags));
                data.clear();
                return self.account.give_back(lent_bytes);
            }
            out.push_bytes(&reply::data_chunk(request.cookie, offset, len as u32, flags));
        } else {
            assert!(last && len == request.len as usize, "a simple reply carries all of its data");
            out.push_bytes(&reply::simple(request.cookie, None));
        }
        data.drain(..).for_each(|piece| out.push_piece(piece));
        self.account.queue(lent_bytes);
    }

    /// Queues a part of a simple reply that is too long to be held, with the header before the first part. The buffers
    /// were borrowed as `lent_bytes`.
    pub(super) fn answer_part(
        &self,
        request: &Request,
        is_first: bool,
        data: &mut Vec<Piece<S::Block>>,
        lent_bytes: usize,
    ) {
        if self.account.has_ended() {
            data.clear();
            return self.account.give_back(lent_bytes);
        }
        let mut out = self.out.borrow_mut();
        if is_first {
            out.push_bytes(&reply::simple(request.cookie, None));
        }
        data.drain(..).for_each(|piece| out.push_piece(piece));
        self.account.queue(lent_bytes);
    }

    /// Queues bytes; drops them once the connection has ended.
    pub(super) fn queue(&self, bytes: &[u8]) {
        if !self.account.has_ended() {
            self.out.borrow_mut().push_bytes(bytes);
        }
    }

    fn needs_chunks(&self, request: &Request) -> bool {
        self.structured && matches!(request.command, Command::Read | Command::BlockStatus)
    }
}
