//! The reading half of a connection: decodes requests, serves requests that never wait, and starts tasks for others.

use std::io;
use std::rc::Rc;

use connection::buffer_bytes;
use engine::telemetry::OpKind;
use engine::{ByteOffset, OwnedBlocks, PREFETCHED_ENTRIES_MAX};
use nbd_protocol::{Command, Errno, ProtocolError, Request, Step, command};
use seam::{BLOCK_BYTES, BufferedReader, Piece, Seam, StreamReader};

use super::Connection;
use super::request_guard::RequestGuard;
use super::tasks::LargeWrite;
use crate::options::{
    DIRECT_WRITE_BYTES_MIN, READ_PIECE_BYTES, REQUEST_BYTES_MAX, REQUEST_COST, WHOLE_READ_BYTES_MAX, WRITE_PIECE_BYTES,
};

/// Regular end of the reading half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client disconnects.
    Disconnect,
    /// The connection is handed over at a request boundary.
    HandOver,
}

/// Error that ended the reading half.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Malformed request.
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
}

/// Maximum bytes received at once during a handover.
const HANDOVER_RECEIVE_BYTES_MAX: usize = 16 << 10;

impl<S: Seam> Connection<S> {
    /// Reads requests until the connection ends.
    pub(super) async fn read_requests<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
    ) -> Result<Ending, ReadError> {
        let mut pieces = Vec::new();
        // A write received directly into blocks is likely followed by another, so only the next header is received.
        let mut header_only = false;
        loop {
            self.duplex.wait_while(|| self.is_full()).await;
            let Step::Got(request, used) = Request::decode(incoming.bytes())? else {
                self.duplex.wait_until_sent().await;
                if self.is_handing_over() && incoming.bytes().is_empty() {
                    return Ok(Ending::HandOver);
                }
                if header_only || self.is_handing_over() {
                    ignore_interrupt(incoming.receive_at_most(Request::BYTES - incoming.bytes().len()).await)?;
                } else {
                    ignore_interrupt(incoming.receive_more().await)?;
                    self.prefetch_index_entries(incoming.bytes());
                }
                continue;
            };
            self.seam.spend(REQUEST_COST);
            header_only = false;
            match request.command {
                Command::Disconnect => return Ok(Ending::Disconnect),
                Command::Write => header_only = self.write(incoming, &request).await?,
                _ => {
                    incoming.consume(used);
                    self.serve(&request, &mut pieces);
                }
            }
        }
    }

    /// Prefetches the index entries of all received requests into the processor cache. Served one by one, each look-up
    /// would wait for memory.
    fn prefetch_index_entries(&self, mut bytes: &[u8]) {
        if bytes.len() < 2 * Request::BYTES {
            return;
        }
        let (mut offsets, mut count) = ([ByteOffset::ZERO; PREFETCHED_ENTRIES_MAX], 0);
        while count < PREFETCHED_ENTRIES_MAX
            && let Ok(Step::Got(request, used)) = Request::decode(bytes)
        {
            offsets[count] = ByteOffset(request.offset);
            count += 1;
            let payload = if request.command.has_payload() { request.len as usize } else { 0 };
            match bytes.get(used + payload..) {
                Some(rest) => bytes = rest,
                None => break,
            }
        }
        self.volume.prefetch_index_entries(&offsets[..count]);
    }

    /// Serves a request without data.
    fn serve(self: &Rc<Self>, request: &Request, pieces: &mut Vec<Piece<S::Block>>) {
        if request.flags & !request.command.flags_allowed() != 0 {
            return self.queue_reply(request, Some(Errno::Inval));
        }
        let len = request.len as usize;
        if request.command == Command::Read && len <= READ_PIECE_BYTES {
            let lent_bytes = buffer_bytes(request.offset, len);
            if self.duplex.buffer_account().borrow_now(lent_bytes) {
                if self.volume.try_read_bytes(ByteOffset(request.offset), len, pieces) {
                    self.volume.record_request(OpKind::Read, ByteOffset(request.offset), len as u64);
                    return self.queue_data(request, request.offset, true, pieces, lent_bytes);
                }
                self.duplex.buffer_account().release(lent_bytes);
            }
        }
        if request.command == Command::Flush {
            self.volume.record_request(OpKind::Flush, ByteOffset::ZERO, 0);
            if self.unreported_loss.take() {
                return self.queue_reply(request, Some(Errno::Io));
            }
            return self.spawn_flush(request);
        }
        if let Err(error) = self.check(request) {
            return self.queue_reply(request, Some(error));
        }
        let record = |op| self.volume.record_request(op, ByteOffset(request.offset), request.len.into());
        match request.command {
            Command::Read => {
                record(OpKind::Read);
                self.spawn_read(request);
            }
            Command::Trim => {
                record(OpKind::Zero);
                self.spawn_trim(request);
            }
            Command::WriteZeroes => {
                record(OpKind::Zero);
                self.spawn_zero(request);
            }
            Command::Cache => self.spawn_prefetch(request),
            Command::BlockStatus => self.spawn_block_status(request),
            Command::Write | Command::Flush | Command::Disconnect | Command::Unknown(_) => {
                self.queue_reply(request, Some(Errno::Inval));
            }
        }
    }

    /// Serves a write whose header has been received; returns true if its data was received directly into blocks.
    async fn write<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
        request: &Request,
    ) -> io::Result<bool> {
        let len = request.len as usize;
        if let Err(error) = self.check(request) {
            incoming.consume(Request::BYTES);
            self.skip(incoming, len).await?;
            self.queue_reply(request, Some(error));
            return Ok(false);
        }
        self.volume.record_request(OpKind::Write, ByteOffset(request.offset), len as u64);
        if len > WRITE_PIECE_BYTES {
            incoming.consume(Request::BYTES);
            self.write_in_pieces(incoming, request).await?;
            return Ok(false);
        }
        if let Some((blocks, guard)) = self.buffers_for(request) {
            incoming.consume(Request::BYTES);
            self.write_into_blocks(incoming, request, blocks, guard).await?;
            return Ok(true);
        }
        let total_len = Request::BYTES + len;
        while incoming.bytes().len() < total_len {
            self.receive_more(incoming, total_len - incoming.bytes().len()).await?;
        }
        let payload = &incoming.bytes()[Request::BYTES..total_len];
        if request.flags == 0 && self.volume.try_write(ByteOffset(request.offset), len, &mut &payload[..]) {
            self.queue_reply(request, None);
        } else {
            self.spawn_write(request, payload);
        }
        incoming.consume(total_len);
        Ok(false)
    }

    /// Buffers for a long write of whole blocks. They count towards the connection's quota, because a client may take
    /// long to fill them.
    fn buffers_for(self: &Rc<Self>, request: &Request) -> Option<(Vec<S::BlockMut>, RequestGuard<S>)> {
        let (len, block) = (request.len as usize, BLOCK_BYTES as u64);
        let is_aligned = len.is_multiple_of(BLOCK_BYTES) && request.offset.is_multiple_of(block);
        if len < DIRECT_WRITE_BYTES_MIN
            || !is_aligned
            || request.flags != 0
            || !self.duplex.buffer_account().borrow_within_quota(len)
        {
            return None;
        }
        let guard = RequestGuard::new(self, len, 0).with_loan(len);
        self.volume.try_alloc_buffers(len / BLOCK_BYTES).map(|blocks| (blocks, guard))
    }

    /// Serves a write whose data is received directly into the blocks that keep it.
    async fn write_into_blocks<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
        request: &Request,
        mut blocks: Vec<S::BlockMut>,
        guard: RequestGuard<S>,
    ) -> io::Result<()> {
        self.duplex.wait_until_sent().await;
        incoming.read_blocks(&mut blocks).await?;
        let mut source = OwnedBlocks::new(blocks);
        if self.volume.try_write(ByteOffset(request.offset), request.len as usize, &mut source) {
            self.queue_reply(request, None);
        } else {
            self.spawn_write_of_blocks(request, source, guard);
        }
        Ok(())
    }

    /// Serves a write that is too long to be held whole.
    async fn write_in_pieces<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
        request: &Request,
    ) -> io::Result<()> {
        let write = LargeWrite::new(self, request);
        let end = request.offset + u64::from(request.len);
        let mut at = request.offset;
        while at < end {
            let piece_len = WRITE_PIECE_BYTES - (at % WRITE_PIECE_BYTES as u64) as usize;
            let len = piece_len.min((end - at) as usize);
            while incoming.bytes().len() < len {
                self.receive_more(incoming, len - incoming.bytes().len()).await?;
            }
            self.duplex.wait_while(|| self.is_full_of_payload()).await;
            let payload = &incoming.bytes()[..len];
            if write.has_failed() {
                // The rest of a failed write is skipped.
            } else if request.flags != 0 || !self.volume.try_write(ByteOffset(at), len, &mut &payload[..]) {
                write.spawn_piece(ByteOffset(at), payload);
            }
            incoming.consume(len);
            at += len as u64;
        }
        write.finish_piece();
        Ok(())
    }

    /// Checks a request before the engine gets it.
    fn check(&self, request: &Request) -> Result<(), Errno> {
        let len = u64::from(request.len);
        let changes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        let transfers_data = matches!(request.command, Command::Write | Command::Read);
        if matches!(request.command, Command::Unknown(_)) || request.flags & !request.command.flags_allowed() != 0 {
            return Err(Errno::Inval);
        }
        if changes && self.is_read_only {
            return Err(Errno::Perm);
        }
        if len == 0 || transfers_data && request.len > REQUEST_BYTES_MAX {
            return Err(Errno::Inval);
        }
        if request.offset.checked_add(len).is_none_or(|end| end > self.volume.size_bytes()) {
            let extends_volume = matches!(request.command, Command::Write | Command::WriteZeroes);
            return Err(if extends_volume { Errno::NoSpace } else { Errno::Inval });
        }
        if request.flags & command::DF != 0 && request.len > WHOLE_READ_BYTES_MAX {
            return Err(Errno::Overflow);
        }
        if request.command == Command::BlockStatus && !self.allocation {
            return Err(Errno::Inval);
        }
        // The loss is reported last, by a request that would otherwise succeed.
        if changes && request.flags & command::FUA != 0 && self.unreported_loss.take() {
            return Err(Errno::Io);
        }
        Ok(())
    }

    /// Sends the queued replies, then waits for more data from the client; may return without data. During a handover
    /// at most `len` bytes are received.
    async fn receive_more<R: StreamReader<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        len: usize,
    ) -> io::Result<()> {
        self.duplex.wait_until_sent().await;
        ignore_interrupt(match self.is_handing_over() {
            true => incoming.receive_at_most(len.min(HANDOVER_RECEIVE_BYTES_MAX)).await,
            false => incoming.receive_more().await,
        })
    }

    async fn skip<R: StreamReader<S>>(&self, incoming: &mut BufferedReader<S, R>, mut len: usize) -> io::Result<()> {
        while len > 0 {
            if incoming.bytes().is_empty() {
                self.receive_more(incoming, len).await?;
            }
            let count = incoming.bytes().len().min(len);
            incoming.consume(count);
            len -= count;
        }
        Ok(())
    }
}

/// Ignores an interrupted wait: the caller checks its conditions again.
fn ignore_interrupt(arrived: io::Result<()>) -> io::Result<()> {
    match arrived {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        arrived => arrived,
    }
}
