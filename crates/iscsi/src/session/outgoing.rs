//! Replies on their way: how they are numbered and queued, and the half of the session that sends them.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use iscsi_protocol::response::{DataIn, Residual};
use iscsi_protocol::{Header, NO_TAG, Response, ResponseBody};
use seam::block::pieces_len;
use seam::{BLOCK_BYTES, Block, Gather, Piece, Seam, StreamWriter};

use super::Session;

/// Where the next data of a read go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataAt {
    /// In the command's data.
    pub(super) offset: u32,
    /// Number of the next PDU.
    pub(super) data_sn: u32,
}

impl<S: Seam> Session<S> {
    /// Sends what is queued, until the session has nothing left to answer or its socket fails.
    pub(super) async fn send_replies<W: StreamWriter<S>>(self: &Rc<Self>, mut writer: W) {
        let mut gather = Gather::default();
        loop {
            let ready = |_: &mut std::task::Context<'_>| match () {
                () if !self.out.borrow().is_empty() => Poll::Ready(true),
                () if self.draining.get() && self.tasks.borrow().is_empty() => Poll::Ready(false),
                () => Poll::Pending,
            };
            if !poll_fn(ready).await {
                return;
            }
            std::mem::swap(&mut *self.out.borrow_mut(), &mut gather);
            self.sending.set(gather.len());
            self.control().sends(true);
            let lent_bytes = self.account.queued_bytes();
            let (result, sent) = writer.send(gather).await;
            gather = sent;
            gather.clear();
            self.sending.set(0);
            self.sent.set(self.spec.shared.seam.now());
            self.control().sends(false);
            self.account.sent(lent_bytes, result.is_ok());
            if result.is_err() {
                return;
            }
        }
    }

    /// Queues a PDU with a little data, or none; drops it when nothing is sent any more.
    pub(super) fn queue(&self, task_tag: u32, body: ResponseBody, data: &[u8]) {
        if self.account.has_ended() {
            return;
        }
        let header = self.header(task_tag, body);
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        self.framing.push(&mut scratch, header, data);
        self.out.borrow_mut().push_bytes(&scratch);
    }

    /// Lets the initiator know that more commands may come, if the last that it was told is that none may and nothing else tells it.
    pub(super) fn tell_window(&self) {
        let window = self.open_window();
        let was_closed = self.told_max.get().wrapping_add(1) == window.expected();
        if was_closed && window.room() > 0 && !self.draining.get() {
            self.queue(NO_TAG, ResponseBody::NopIn { lun: [0; 8], target_tag: NO_TAG }, &[]);
        }
    }

    /// As many more commands as there is room for. None while the session holds more of writes than its share.
    fn open_window(&self) -> iscsi_protocol::Window {
        let mut window = self.window.get();
        let max = self.spec.shared.options.commands_max;
        let room = match self.writes.held_bytes() < self.spec.shared.payload_share() {
            true => max.saturating_sub(self.running.get() as u32),
            false => 0,
        };
        window.open(room);
        self.window.set(window);
        window
    }

    fn header(&self, task_tag: u32, body: ResponseBody) -> Header {
        let window = self.open_window();
        self.told_max.set(window.max());
        let stat_sn = self.stat_sn.get();
        let counts = match &body {
            ResponseBody::DataIn(data) => data.status.is_some(),
            ResponseBody::ReadyToTransfer { .. } => false,
            ResponseBody::NopIn { .. } => task_tag != NO_TAG,
            _ => true,
        };
        if counts {
            self.stat_sn.set(stat_sn.wrapping_add(1));
        }
        Response { task_tag, stat_sn, exp_cmd_sn: window.expected(), max_cmd_sn: window.max(), body }.encode()
    }

    /// Queues data of a read in as many PDUs as they need; with a status the last of them ends the command. Their buffers were
    /// borrowed, `lent_bytes` of them.
    pub(super) fn queue_pieces(
        &self,
        task_tag: u32,
        at: &mut DataAt,
        pieces: &mut Vec<Piece<S::Block>>,
        status: Option<Residual>,
        lent_bytes: usize,
    ) {
        if self.account.has_ended() {
            pieces.clear();
            return self.account.give_back(lent_bytes);
        }
        let mut left = pieces_len(pieces);
        let mut drained = pieces.drain(..);
        let mut current = drained.next();
        let mut parts = self.parts();
        let mut scratch = self.scratch.borrow_mut();
        let mut out = self.out.borrow_mut();
        while let Some((len, ends_sequence)) = parts.next(left) {
            left -= len;
            let status = if left == 0 { status } else { None };
            let header = self.data_header(task_tag, at, ends_sequence || left == 0, status, len);
            scratch.clear();
            self.framing.push_header(&mut scratch, header, len);
            out.push_bytes(&scratch);
            let (mut wanted, mut crc) = (len, 0);
            while wanted > 0 {
                let Some(piece) = current.take() else { unreachable!("the pieces are as long as was counted") };
                let (piece, rest) = split(piece, wanted);
                wanted -= piece.len();
                if self.framing.data_digest {
                    crc = checksum::<S>(crc, &piece);
                }
                out.push_piece(piece);
                current = rest.or_else(|| drained.next());
            }
            scratch.clear();
            self.framing.push_trailer(&mut scratch, len, crc);
            out.push_bytes(&scratch);
        }
        drop(out);
        self.account.queue(lent_bytes);
    }

    /// As [`Session::queue_pieces`], for bytes.
    pub(super) fn queue_bytes(&self, task_tag: u32, at: &mut DataAt, bytes: &[u8], status: Option<Residual>) {
        if self.account.has_ended() {
            return;
        }
        let (mut parts, mut rest) = (self.parts(), bytes);
        let mut scratch = self.scratch.borrow_mut();
        let mut out = self.out.borrow_mut();
        while let Some((len, ends_sequence)) = parts.next(rest.len()) {
            let (part, after) = rest.split_at(len);
            rest = after;
            let status = if rest.is_empty() { status } else { None };
            let header = self.data_header(task_tag, at, ends_sequence || rest.is_empty(), status, len);
            scratch.clear();
            self.framing.push(&mut scratch, header, part);
            out.push_bytes(&scratch);
        }
    }

    fn data_header(
        &self,
        task_tag: u32,
        at: &mut DataAt,
        is_final: bool,
        status: Option<Residual>,
        len: usize,
    ) -> Header {
        let body = ResponseBody::DataIn(DataIn { is_final, status, data_sn: at.data_sn, offset: at.offset });
        at.offset += len as u32;
        at.data_sn += 1;
        let read_bytes = &self.counters.read_bytes;
        read_bytes.set(read_bytes.get() + len as u64);
        self.header(task_tag, body)
    }

    fn parts(&self) -> Parts {
        let burst = self.spec.agreed.parameters.burst_bytes as usize;
        Parts { pdu_bytes_max: self.framing.data_bytes_max as usize, burst_bytes: burst, left_in_burst: burst }
    }
}

/// How data are cut into PDUs and sequences of them.
struct Parts {
    pdu_bytes_max: usize,
    burst_bytes: usize,
    left_in_burst: usize,
}

impl Parts {
    /// Length of the next PDU of `left` bytes, and whether it ends a sequence.
    fn next(&mut self, left: usize) -> Option<(usize, bool)> {
        if left == 0 {
            return None;
        }
        let len = left.min(self.pdu_bytes_max).min(self.left_in_burst);
        self.left_in_burst -= len;
        let ends = self.left_in_burst == 0;
        if ends {
            self.left_in_burst = self.burst_bytes;
        }
        Some((len, ends))
    }
}

/// The first `len` bytes of a piece, or all of it, and the rest.
fn split<B: Clone>(piece: Piece<B>, len: usize) -> (Piece<B>, Option<Piece<B>>) {
    if piece.len() <= len {
        return (piece, None);
    }
    let rest = Piece::new(piece.block.clone(), piece.start() + len, piece.len() - len);
    let start = piece.start();
    (Piece::new(piece.block, start, len), Some(rest))
}

/// CRC32C of a piece's bytes, continued.
fn checksum<S: Seam>(crc: u32, piece: &Piece<S::Block>) -> u32 {
    match piece.block.as_bytes() {
        Some(bytes) => crc32c::crc32c_append(crc, &bytes[piece.start()..][..piece.len()]),
        None => {
            let mut bytes = [0; BLOCK_BYTES];
            let bytes = &mut bytes[..piece.len()];
            piece.block.read_bytes(piece.start(), bytes);
            crc32c::crc32c_append(crc, bytes)
        }
    }
}
