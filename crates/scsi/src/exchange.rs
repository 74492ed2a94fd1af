//! The interface to a transport: a command, its cancellation and its data in both directions.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::Waker;

use seam::{Piece, Seam};

/// Maximum bytes that a unit passes to [`DataIn::send`] at once, which a transport must be able to buffer.
pub const SENT_AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// The session of the initiator has ended, or the command was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the initiator disconnected or aborted the command")]
pub struct Cancelled;

/// Data from the initiator.
pub trait DataOut {
    /// Appends the next `len` bytes of the command's data to `into`. A unit reads in order and never beyond the
    /// expected length; it may read less.
    fn take(&mut self, len: usize, into: &mut Vec<u8>) -> impl Future<Output = Result<(), Cancelled>>;
}

/// Data to the initiator.
pub trait DataIn<S: Seam> {
    /// Waits until `len` bytes of blocks (at most [`SENT_AT_ONCE_BYTES_MAX`]) can be buffered. A unit waits here
    /// before it reads, so that a command of a slow initiator holds no memory.
    fn reserve_buffers(&mut self, len: usize) -> impl Future<Output = Result<(), Cancelled>>;

    /// Sends the next pieces and empties `pieces`.
    fn send(&mut self, pieces: &mut Vec<Piece<S::Block>>) -> impl Future<Output = Result<(), Cancelled>>;

    /// Sends the next bytes of a small answer (at most 64 KiB).
    fn send_bytes(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), Cancelled>>;
}

/// Data lengths that the initiator expects for a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedLengths {
    /// Bytes from the initiator.
    pub out_bytes: u64,
    /// Bytes to the initiator.
    pub in_bytes: u64,
}

/// Cancellation of a running command. The command ends at its next step and has no effect after that.
///
/// A transport cancels commands that its initiator aborts; the target cancels commands on a reset or a preemption by
/// another initiator. The outcome is [`crate::Status::Aborted`].
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Rc<CancelFlag>);

#[derive(Debug, Default)]
struct CancelFlag {
    cancelled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl CancelToken {
    /// Cancels the command.
    pub fn cancel(&self) {
        self.0.cancelled.set(true);
        if let Some(waker) = self.0.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// True once the command is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Registers a waker for cancellation: a transport stops waiting for its initiator then.
    pub fn wake_when_cancelled(&self, waker: &Waker) {
        self.0.waker.borrow_mut().replace(waker.clone());
    }
}

/// A command as received.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The unit's address.
    pub lun: [u8; 8],
    /// The descriptor block; bytes beyond the command's length are ignored.
    pub cdb: &'a [u8],
    /// Data lengths that the initiator expects.
    pub expected: ExpectedLengths,
    /// Cancellation of the command.
    pub cancel: &'a CancelToken,
}
