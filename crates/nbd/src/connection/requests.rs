//! The reading half: decodes requests, serves what can be served at once, hands the others to tasks.

use std::io;
use std::rc::Rc;

use engine::pages::slow::Asked;
use engine::{GivenBlocks, HINTS_MAX};
use front::buffer_bytes;
use nbd_protocol::{Broken, Command, Errno, Request, Step, command};
use seam::{BLOCK_BYTES, Incoming, Piece, Seam, StreamReader};

use super::Connection;
use super::slow::{LargeWrite, UnderWay};
use crate::options::{
    READ_PIECE_BYTES, REQUEST_BYTES_MAX, REQUEST_COST, STRAIGHT_BYTES_MIN, WHOLE_READ_BYTES_MAX, WRITE_PIECE_BYTES,
};

/// What came last, when nothing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// The client's good-bye.
    GoodBye,
    /// A whole request, of a connection that is to be handed over.
    Whole,
}

/// Why the reading half ended before that.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client does not speak the protocol.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Most bytes that a connection which is to be handed over takes at once.
const LEAVING_BYTES: usize = 16 << 10;

impl<S: Seam> Connection<S> {
    /// Serves requests until there are no more.
    pub(super) async fn read_requests<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
    ) -> Result<Last, Ended> {
        let mut pieces = Vec::new();
        // After a write that went straight to blocks another such is likely, so nothing but its head is taken.
        let mut head_alone = false;
        loop {
            self.wait_while(Self::is_full).await;
            let Step::Got(request, used) = Request::decode(incoming.bytes())? else {
                self.let_replies_go().await;
                if self.is_leaving() && incoming.bytes().is_empty() {
                    return Ok(Last::Whole);
                }
                if head_alone || self.is_leaving() {
                    uninterrupted(incoming.more_of(Request::BYTES - incoming.bytes().len()).await)?;
                } else {
                    uninterrupted(incoming.more().await)?;
                    self.hint(incoming.bytes());
                }
                continue;
            };
            self.seam.spend(REQUEST_COST);
            head_alone = false;
            match request.command {
                Command::Disconnect => return Ok(Last::GoodBye),
                Command::Write => head_alone = self.write(incoming, &request).await?,
                _ => {
                    incoming.consume(used);
                    self.serve(&request, &mut pieces);
                }
            }
        }
    }

    /// Brings near what the requests that have just arrived will touch. One after the other, with a reply made in between, each
    /// look-up would wait for memory anew.
    fn hint(&self, mut bytes: &[u8]) {
        if bytes.len() < 2 * Request::BYTES {
            return;
        }
        let (mut offsets, mut count) = ([0; HINTS_MAX], 0);
        while count < HINTS_MAX
            && let Ok(Step::Got(request, used)) = Request::decode(bytes)
        {
            offsets[count] = request.offset;
            count += 1;
            let payload = if request.command.has_payload() { request.len as usize } else { 0 };
            match bytes.get(used + payload..) {
                Some(rest) => bytes = rest,
                None => break,
            }
        }
        self.volume.hint(&offsets[..count]);
    }

    /// Serves a request that no data follows.
    fn serve(self: &Rc<Self>, request: &Request, pieces: &mut Vec<Piece<S::Block>>) {
        if request.flags & !request.command.flags_allowed() != 0 {
            return self.answer(request, Some(Errno::Inval));
        }
        let len = request.len as usize;
        if request.command == Command::Read && len <= READ_PIECE_BYTES {
            let lent_bytes = buffer_bytes(request.offset, len);
            if self.account.borrow_now(lent_bytes) {
                if self.volume.read_bytes_now(request.offset, len, pieces) {
                    self.volume.asked(Asked::Read, request.offset, len as u64);
                    return self.answer_data(request, request.offset, true, pieces, lent_bytes);
                }
                self.account.give_back(lent_bytes);
            }
        }
        if request.command == Command::Flush {
            self.volume.asked(Asked::Flush, 0, 0);
            if self.untold_loss.take() {
                return self.answer(request, Some(Errno::Io));
            }
            return self.flush_later(request);
        }
        if let Err(error) = self.check(request) {
            return self.answer(request, Some(error));
        }
        let asked = |asked| self.volume.asked(asked, request.offset, request.len.into());
        match request.command {
            Command::Read => {
                asked(Asked::Read);
                self.read_later(request);
            }
            Command::Trim => {
                asked(Asked::Zero);
                self.trim_later(request);
            }
            Command::WriteZeroes => {
                asked(Asked::Zero);
                self.zero_later(request);
            }
            Command::Cache => self.prefetch_later(request),
            Command::BlockStatus => self.status_later(request),
            Command::Write | Command::Flush | Command::Disconnect | Command::Unknown(_) => {
                self.answer(request, Some(Errno::Inval));
            }
        }
    }

    /// Serves a write, whose head is the first of what has arrived; true if its data went straight to blocks.
    async fn write<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
        request: &Request,
    ) -> io::Result<bool> {
        let len = request.len as usize;
        if let Err(error) = self.check(request) {
            incoming.consume(Request::BYTES);
            self.skip(incoming, len).await?;
            self.answer(request, Some(error));
            return Ok(false);
        }
        self.volume.asked(Asked::Write, request.offset, len as u64);
        if len > WRITE_PIECE_BYTES {
            incoming.consume(Request::BYTES);
            self.write_in_pieces(incoming, request).await?;
            return Ok(false);
        }
        if let Some((blocks, under_way)) = self.buffers_for(request) {
            incoming.consume(Request::BYTES);
            self.write_straight(incoming, request, blocks, under_way).await?;
            return Ok(true);
        }
        let whole = Request::BYTES + len;
        while incoming.bytes().len() < whole {
            self.more(incoming, whole - incoming.bytes().len()).await?;
        }
        let payload = &incoming.bytes()[Request::BYTES..whole];
        if request.flags == 0 && self.volume.write_now(request.offset, len, &mut &payload[..]) {
            self.answer(request, None);
        } else {
            self.write_later(request, payload);
        }
        incoming.consume(whole);
        Ok(false)
    }

    /// Buffers for a long write of whole blocks, if the connection's share of the pool has room for them: a client may take its
    /// time to fill them.
    fn buffers_for(self: &Rc<Self>, request: &Request) -> Option<(Vec<S::BlockMut>, UnderWay<S>)> {
        let (len, block) = (request.len as usize, BLOCK_BYTES as u64);
        let whole = len.is_multiple_of(BLOCK_BYTES) && request.offset.is_multiple_of(block);
        if len < STRAIGHT_BYTES_MIN || !whole || request.flags != 0 || !self.account.borrow_of_share(len) {
            return None;
        }
        let under_way = UnderWay::new(self, len, 0).with_loan(len);
        self.volume.buffers(len / BLOCK_BYTES).map(|blocks| (blocks, under_way))
    }

    /// Serves a write whose data is taken from the socket into the blocks that keep it.
    async fn write_straight<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
        request: &Request,
        mut blocks: Vec<S::BlockMut>,
        under_way: UnderWay<S>,
    ) -> io::Result<()> {
        self.let_replies_go().await;
        incoming.read_blocks(&mut blocks).await?;
        let mut source = GivenBlocks::new(blocks);
        if self.volume.write_now(request.offset, request.len as usize, &mut source) {
            self.answer(request, None);
        } else {
            self.write_given_later(request, source, under_way);
        }
        Ok(())
    }

    /// Serves a write that is too long to be held whole.
    async fn write_in_pieces<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
        request: &Request,
    ) -> io::Result<()> {
        let write = LargeWrite::new(self, request);
        let end = request.offset + u64::from(request.len);
        let mut at = request.offset;
        while at < end {
            let piece = WRITE_PIECE_BYTES - (at % WRITE_PIECE_BYTES as u64) as usize;
            let len = piece.min((end - at) as usize);
            while incoming.bytes().len() < len {
                self.more(incoming, len - incoming.bytes().len()).await?;
            }
            self.wait_while(Self::is_full_of_payload).await;
            let payload = &incoming.bytes()[..len];
            if write.has_failed() {
                // Nothing is gained by writing the rest.
            } else if request.flags != 0 || !self.volume.write_now(at, len, &mut &payload[..]) {
                write.piece_later(at, payload);
            }
            incoming.consume(len);
            at += len as u64;
        }
        write.taken();
        Ok(())
    }

    /// What is wrong with a request on a range, before the engine sees it.
    fn check(&self, request: &Request) -> Result<(), Errno> {
        let len = u64::from(request.len);
        let changes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        let moves_data = matches!(request.command, Command::Write | Command::Read);
        if matches!(request.command, Command::Unknown(_)) || request.flags & !request.command.flags_allowed() != 0 {
            return Err(Errno::Inval);
        }
        if changes && self.volume.spec().read_only {
            return Err(Errno::Perm);
        }
        if len == 0 || moves_data && request.len > REQUEST_BYTES_MAX {
            return Err(Errno::Inval);
        }
        if request.offset.checked_add(len).is_none_or(|end| end > self.volume.size_bytes()) {
            let grows = matches!(request.command, Command::Write | Command::WriteZeroes);
            return Err(if grows { Errno::NoSpace } else { Errno::Inval });
        }
        if request.flags & command::DF != 0 && request.len > WHOLE_READ_BYTES_MAX {
            return Err(Errno::Overflow);
        }
        if request.command == Command::BlockStatus && !self.allocation {
            return Err(Errno::Inval);
        }
        // Last, so that only a request that would be done tells it.
        if changes && request.flags & command::FUA != 0 && self.untold_loss.take() {
            return Err(Errno::Io);
        }
        Ok(())
    }

    /// Waits for more of the client's bytes, after the replies so far are on their way, or comes back for nothing. Who leaves takes no more
    /// than `wanted`.
    async fn more<R: StreamReader<S>>(&self, incoming: &mut Incoming<S, R>, wanted: usize) -> io::Result<()> {
        self.let_replies_go().await;
        uninterrupted(match self.is_leaving() {
            true => incoming.more_of(wanted.min(LEAVING_BYTES)).await,
            false => incoming.more().await,
        })
    }

    async fn skip<R: StreamReader<S>>(&self, incoming: &mut Incoming<S, R>, mut len: usize) -> io::Result<()> {
        while len > 0 {
            if incoming.bytes().is_empty() {
                self.more(incoming, len).await?;
            }
            let part = incoming.bytes().len().min(len);
            incoming.consume(part);
            len -= part;
        }
        Ok(())
    }
}

/// Whoever waited looks again.
fn uninterrupted(arrived: io::Result<()>) -> io::Result<()> {
    match arrived {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        arrived => arrived,
    }
}
