//! The data of a read. The last data is held back until the command ends, so that it carries the status.

use std::rc::Rc;

use connection::buffer_bytes;
use iscsi_protocol::ResponseBody;
use iscsi_protocol::response::Residual;
use scsi::{Cancelled, Outcome, Status};
use seam::block::pieces_len;
use seam::{BLOCK_BYTES, Piece, Seam};

use super::Session;
use super::outgoing::DataPosition;
use super::task::Task;

/// Transport of the data that a command sends to its initiator.
pub(super) struct Reply<S: Seam> {
    session: Rc<Session<S>>,
    task: Rc<Task>,
    /// Bytes that the initiator expects.
    expected: u64,
    position: DataPosition,
    /// Data held back, as blocks.
    pieces: Vec<Piece<S::Block>>,
    /// Data held back, as bytes.
    bytes: Vec<u8>,
    /// Buffers borrowed for the next data, in bytes.
    lent_bytes: usize,
    /// Buffers of `pieces`, in bytes.
    held_bytes: usize,
}

/// Maximum bytes of buffers that `len` bytes occupy.
pub(super) fn borrowed_bytes(len: usize) -> usize {
    // The offset in the first block is unknown.
    buffer_bytes(BLOCK_BYTES as u64 - 1, len)
}

impl<S: Seam> Reply<S> {
    pub(super) fn new(session: &Rc<Session<S>>, task: &Rc<Task>, expected: u64) -> Self {
        let (session, task) = (Rc::clone(session), Rc::clone(task));
        Reply {
            session,
            task,
            expected,
            position: Default::default(),
            pieces: Default::default(),
            bytes: Default::default(),
            lent_bytes: Default::default(),
            held_bytes: Default::default(),
        }
    }

    fn check_cancelled(&self) -> Result<(), Cancelled> {
        let is_cancelled = self.task.cancel.is_cancelled() || self.session.duplex.buffer_account().has_ended();
        if is_cancelled { Err(Cancelled) } else { Ok(()) }
    }

    /// Queues the data held back.
    fn queue_held_data(&mut self, status: Option<Residual>) {
        let tag = self.task.tag;
        if !self.pieces.is_empty() {
            let held_bytes = std::mem::take(&mut self.held_bytes);
            self.session.queue_pieces(tag, &mut self.position, &mut self.pieces, status, held_bytes);
        }
        if !self.bytes.is_empty() {
            self.session.queue_bytes(tag, &mut self.position, &self.bytes, status);
            self.bytes.clear();
        }
        self.session.control().wake();
    }

    /// Queues the end of the command.
    pub(super) fn finish(mut self, outcome: &Outcome, expected: u64) {
        let residual = residual(expected, outcome.transfer_bytes);
        let carries_status = outcome.status == Status::Good && !(self.pieces.is_empty() && self.bytes.is_empty());
        self.queue_held_data(carries_status.then_some(residual));
        if !carries_status {
            let exp_data_sn = self.position.data_sn + self.task.data.borrow().r2ts();
            self.session.queue_status(
                self.task.tag,
                outcome.status.code(),
                outcome.status.sense(),
                residual,
                exp_data_sn,
            );
        }
    }
}

impl<S: Seam> Drop for Reply<S> {
    fn drop(&mut self) {
        self.session.duplex.buffer_account().release(self.lent_bytes + self.held_bytes);
    }
}

impl<S: Seam> scsi::DataIn<S> for Reply<S> {
    async fn reserve_buffers(&mut self, len: usize) -> Result<(), Cancelled> {
        let bytes = borrowed_bytes(len);
        if self.lent_bytes >= bytes {
            return self.check_cancelled();
        }
        // Data held back would occupy the buffers that this call waits for.
        self.queue_held_data(None);
        let (session, task) = (Rc::clone(&self.session), Rc::clone(&self.task));
        let is_wanted = || !task.cancel.is_cancelled();
        let missing_bytes = bytes - self.lent_bytes;
        let loan = session
            .duplex
            .buffer_account()
            .borrow(&session.spec.shared.seam, missing_bytes, is_wanted)
            .await
            .ok_or(Cancelled)?;
        self.lent_bytes += loan.into_bytes();
        Ok(())
    }

    async fn send(&mut self, pieces: &mut Vec<Piece<S::Block>>) -> Result<(), Cancelled> {
        if let Err(cancelled) = self.check_cancelled() {
            pieces.clear();
            return Err(cancelled);
        }
        self.queue_held_data(None);
        self.held_bytes = std::mem::take(&mut self.lent_bytes);
        self.pieces.append(pieces);
        let end = u64::from(self.position.offset) + pieces_len(&self.pieces) as u64;
        if end < self.expected {
            self.queue_held_data(None);
        }
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Cancelled> {
        self.check_cancelled()?;
        self.queue_held_data(None);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// Difference between the expected and the full transfer length.
pub(super) fn residual(expected: u64, full: u64) -> Residual {
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    if full < expected {
        Residual::Underflow(count(expected - full))
    } else if full > expected {
        Residual::Overflow(count(full - expected))
    } else {
        Residual::None
    }
}

impl<S: Seam> Session<S> {
    /// Queues a SCSI response.
    pub(super) fn queue_status(&self, task_tag: u32, status: u8, sense: &[u8], residual: Residual, exp_data_sn: u32) {
        let read_residual = Residual::None;
        let body = ResponseBody::Command { response: 0, status, exp_data_sn, residual, read_residual };
        if sense.is_empty() {
            return self.queue(task_tag, body, &[]);
        }
        let len = u16::try_from(sense.len()).expect("sense data has at most 252 bytes");
        self.queue(task_tag, body, &[&len.to_be_bytes(), sense].concat());
    }
}
