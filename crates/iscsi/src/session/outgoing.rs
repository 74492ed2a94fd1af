//! Numbering and queueing of replies.

use iscsi_protocol::response::{DataIn, Residual};
use iscsi_protocol::{Header, NO_TAG, Response, ResponseBody};
use seam::block::pieces_len;
use seam::{BLOCK_BYTES, Block, Piece, Seam};

use super::Session;

/// Position in the data of a read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataPosition {
    /// Offset in the command's data.
    pub(super) offset: u32,
    /// DataSN of the next PDU.
    pub(super) data_sn: u32,
}

impl<S: Seam> Session<S> {
    /// Queues a PDU with a short data segment or none; drops the PDU once the session has ended.
    pub(super) fn queue(&self, task_tag: u32, body: ResponseBody, data: &[u8]) {
        let Some(mut out) = self.duplex.queue(0) else { return };
        let header = self.header(task_tag, body);
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        self.framing.push(&mut scratch, header, data);
        out.push_bytes(&scratch);
    }

    /// Sends the command window in a NOP-In if the last one was closed and is open now.
    pub(super) fn announce_window(&self) {
        let window = self.open_window();
        let was_closed = self.announced_max_cmd_sn.get().wrapping_add(1) == window.expected();
        if was_closed && window.free_commands() > 0 && !self.duplex.is_draining() {
            self.queue(NO_TAG, ResponseBody::NopIn { lun: [0; 8], target_tag: NO_TAG }, &[]);
        }
    }

    /// The command window for the free command slots; closed while write data exceeds the session's quota.
    fn open_window(&self) -> iscsi_protocol::Window {
        let mut window = self.window.get();
        let max = self.spec.shared.options.commands_max;
        let free_slots = match self.writes.reserved_bytes() < self.spec.shared.payload_quota_bytes() {
            true => max.saturating_sub(self.commands_in_flight.get() as u32),
            false => 0,
        };
        window.open(free_slots);
        self.window.set(window);
        window
    }

    /// Encodes the header of a PDU with its sequence numbers.
    fn header(&self, task_tag: u32, body: ResponseBody) -> Header {
        let window = self.open_window();
        self.announced_max_cmd_sn.set(window.max());
        let stat_sn = self.stat_sn.get();
        let advances_stat_sn = match &body {
            ResponseBody::DataIn(data) => data.status.is_some(),
            ResponseBody::ReadyToTransfer { .. } => false,
            ResponseBody::NopIn { .. } => task_tag != NO_TAG,
            _ => true,
        };
        if advances_stat_sn {
            self.stat_sn.set(stat_sn.wrapping_add(1));
        }
        Response { task_tag, stat_sn, exp_cmd_sn: window.expected(), max_cmd_sn: window.max(), body }.encode()
    }

    /// Queues the data of a read in as many PDUs as needed. With `status` the last PDU ends the command.
    /// `lent_bytes` is the size of the borrowed buffers in `pieces`; the connection returns them once they are sent.
    pub(super) fn queue_pieces(
        &self,
        task_tag: u32,
        position: &mut DataPosition,
        pieces: &mut Vec<Piece<S::Block>>,
        status: Option<Residual>,
        lent_bytes: usize,
    ) {
        let Some(mut out) = self.duplex.queue(lent_bytes) else { return pieces.clear() };
        let mut remaining = pieces_len(pieces);
        let mut drained = pieces.drain(..);
        let mut current = drained.next();
        let mut splitter = self.pdu_splitter();
        let mut scratch = self.scratch.borrow_mut();
        while let Some((len, ends_sequence)) = splitter.next(remaining) {
            remaining -= len;
            let status = if remaining == 0 { status } else { None };
            let header = self.data_header(task_tag, position, ends_sequence || remaining == 0, status, len);
            scratch.clear();
            self.framing.push_header(&mut scratch, header, len);
            out.push_bytes(&scratch);
            let (mut unsent, mut crc) = (len, 0);
            while unsent > 0 {
                let Some(piece) = current.take() else { unreachable!("the pieces hold `remaining` bytes") };
                let (piece, tail) = split(piece, unsent);
                unsent -= piece.len();
                if self.framing.data_digest {
                    crc = checksum::<S>(crc, &piece);
                }
                out.push_piece(piece);
                current = tail.or_else(|| drained.next());
            }
            scratch.clear();
            self.framing.push_trailer(&mut scratch, len, crc);
            out.push_bytes(&scratch);
        }
    }

    /// Like [`Session::queue_pieces`], for bytes.
    pub(super) fn queue_bytes(
        &self,
        task_tag: u32,
        position: &mut DataPosition,
        bytes: &[u8],
        status: Option<Residual>,
    ) {
        let Some(mut out) = self.duplex.queue(0) else { return };
        let (mut splitter, mut remaining) = (self.pdu_splitter(), bytes);
        let mut scratch = self.scratch.borrow_mut();
        while let Some((len, ends_sequence)) = splitter.next(remaining.len()) {
            let (part, after) = remaining.split_at(len);
            remaining = after;
            let status = if remaining.is_empty() { status } else { None };
            let header = self.data_header(task_tag, position, ends_sequence || remaining.is_empty(), status, len);
            scratch.clear();
            self.framing.push(&mut scratch, header, part);
            out.push_bytes(&scratch);
        }
    }

    /// Encodes the header of a Data-In PDU of `len` bytes and advances `position`.
    fn data_header(
        &self,
        task_tag: u32,
        position: &mut DataPosition,
        is_final: bool,
        status: Option<Residual>,
        len: usize,
    ) -> Header {
        let body =
            ResponseBody::DataIn(DataIn { is_final, status, data_sn: position.data_sn, offset: position.offset });
        position.offset += len as u32;
        position.data_sn += 1;
        let read_bytes = &self.counters.read_bytes;
        read_bytes.set(read_bytes.get() + len as u64);
        self.header(task_tag, body)
    }

    fn pdu_splitter(&self) -> PduSplitter {
        let burst = self.spec.negotiated.parameters.max_burst_bytes as usize;
        PduSplitter { pdu_bytes_max: self.framing.data_bytes_max as usize, burst_bytes: burst, burst_bytes_left: burst }
    }
}

/// Splits the data of a read into PDUs, and these into sequences of at most `burst_bytes`.
struct PduSplitter {
    pdu_bytes_max: usize,
    burst_bytes: usize,
    burst_bytes_left: usize,
}

impl PduSplitter {
    /// Length of the next PDU of `remaining` bytes, and whether it ends a sequence.
    fn next(&mut self, remaining: usize) -> Option<(usize, bool)> {
        if remaining == 0 {
            return None;
        }
        let len = remaining.min(self.pdu_bytes_max).min(self.burst_bytes_left);
        self.burst_bytes_left -= len;
        let ends_sequence = self.burst_bytes_left == 0;
        if ends_sequence {
            self.burst_bytes_left = self.burst_bytes;
        }
        Some((len, ends_sequence))
    }
}

/// Splits a piece after `len` bytes.
fn split<B: Clone>(piece: Piece<B>, len: usize) -> (Piece<B>, Option<Piece<B>>) {
    if piece.len() <= len {
        return (piece, None);
    }
    let tail = Piece::new(piece.block.clone(), piece.start() + len, piece.len() - len);
    let start = piece.start();
    (Piece::new(piece.block, start, len), Some(tail))
}

/// Continues a CRC32C with a piece's bytes.
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
