//! Queueing of replies.

use nbd_protocol::reply::{self, DONE};
use nbd_protocol::{Command, Errno, Request};
use seam::{Block, Piece, Seam, block::pieces_len};

use super::Connection;

/// Shortest read that is checked for zeroes, which are sent as a hole.
const HOLE_BYTES_MIN: usize = 32 << 10;

impl<S: Seam> Connection<S> {
    /// Queues a reply without data.
    pub(super) fn queue_reply(&self, request: &Request, error: Option<Errno>) {
        match error {
            Some(error) if self.has_chunked_reply(request) => {
                let mut chunk = Vec::new();
                reply::push_error_chunk(&mut chunk, request.cookie, error, None);
                self.duplex.queue_bytes(&chunk);
            }
            error => self.duplex.queue_bytes(&reply::simple(request.cookie, error)),
        }
    }

    /// Queues data of a read from `offset` on: as a chunk of a structured reply, or as the whole simple reply. The
    /// reply takes over the loan of `lent_bytes` for the buffers of `data`.
    pub(super) fn queue_data(
        &self,
        request: &Request,
        offset: u64,
        is_last: bool,
        data: &mut Vec<Piece<S::Block>>,
        lent_bytes: usize,
    ) {
        let len = pieces_len(data);
        let flags = if is_last { DONE } else { 0 };
        let may_be_hole = self.structured && len >= HOLE_BYTES_MIN;
        if may_be_hole && data.iter().all(|piece| piece.block.is_zero(piece.start(), piece.len())) {
            self.duplex.queue_bytes(&reply::hole_chunk(request.cookie, offset, len as u32, flags));
            data.clear();
            return self.duplex.buffer_account().release(lent_bytes);
        }
        let Some(mut out) = self.duplex.queue(lent_bytes) else { return data.clear() };
        if self.structured {
            out.push_bytes(&reply::data_chunk(request.cookie, offset, len as u32, flags));
        } else {
            assert!(is_last && len == request.len as usize, "a simple reply carries all of its data");
            out.push_bytes(&reply::simple(request.cookie, None));
        }
        data.drain(..).for_each(|piece| out.push_piece(piece));
    }

    /// Queues a part of a simple reply that is too long to be held, with the header before the first part. The reply
    /// takes over the loan of `lent_bytes` for the buffers of `data`.
    pub(super) fn queue_part(
        &self,
        request: &Request,
        is_first: bool,
        data: &mut Vec<Piece<S::Block>>,
        lent_bytes: usize,
    ) {
        let Some(mut out) = self.duplex.queue(lent_bytes) else { return data.clear() };
        if is_first {
            out.push_bytes(&reply::simple(request.cookie, None));
        }
        data.drain(..).for_each(|piece| out.push_piece(piece));
    }

    fn has_chunked_reply(&self, request: &Request) -> bool {
        self.structured && matches!(request.command, Command::Read | Command::BlockStatus)
    }
}
