//! What a transport hands in with a command, and the two ways its data go.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::Waker;

use seam::{Piece, Seam};

/// The most that a unit hands to [`DataIn::send`] in one go, in bytes: what a transport has to make room for.
pub const SENT_AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// The initiator, its session or its interest in the command is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the initiator is gone or has aborted the command")]
pub struct Gone;

/// Data on their way from the initiator.
pub trait DataOut {
    /// Appends the next `len` bytes of the command's data to `into`. A unit asks for what it needs, in order, and never for more than
    /// was expected; it may ask for less.
    fn take(&mut self, len: usize, into: &mut Vec<u8>) -> impl Future<Output = Result<(), Gone>>;
}

/// Data on their way to the initiator.
pub trait DataIn<S: Seam> {
    /// Waits until there is room for `len` bytes of blocks (at most [`SENT_AT_ONCE_BYTES_MAX`]): asked before they are read, so that
    /// what waits for a slow initiator holds no memory.
    fn room(&mut self, len: usize) -> impl Future<Output = Result<(), Gone>>;

    /// Sends the next bytes, and takes the pieces.
    fn send(&mut self, pieces: &mut Vec<Piece<S::Block>>) -> impl Future<Output = Result<(), Gone>>;

    /// Sends the next bytes of a small answer (at most 64 KiB).
    fn send_bytes(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), Gone>>;
}

/// What an initiator said that a command would move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Bytes from the initiator.
    pub out_bytes: u64,
    /// Bytes to the initiator.
    pub in_bytes: u64,
}

/// Says to a command under way that nobody wants it any more. It ends at its next step: what it has begun has no later effect after that.
///
/// A transport cancels what its initiator aborts; the target cancels what other initiators end, by a reset or by preempting. The outcome
/// is [`crate::Status::Aborted`] then.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Rc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    cancelled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Cancel {
    /// Ends the command.
    pub fn cancel(&self) {
        self.0.cancelled.set(true);
        if let Some(waker) = self.0.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// True when it is to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Wakes that one, too, when the command is to end: a transport that waits for its initiator need not wait any longer.
    pub fn wake_when_cancelled(&self, waker: &Waker) {
        self.0.waker.borrow_mut().replace(waker.clone());
    }
}

/// A command as it came.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The unit's address.
    pub lun: [u8; 8],
    /// The descriptor block; what is past its own length is ignored.
    pub cdb: &'a [u8],
    /// What the initiator expects to be moved.
    pub expected: Expected,
    /// How it is told to end.
    pub cancel: &'a Cancel,
}
