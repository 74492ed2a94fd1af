//! Another server's NBD export as a disk: many requests in flight on one connection, which comes back when it breaks.
//!
//! When the connection is lost, [`seam::Disk::incarnation`] changes at once, before any answer of a later connection can be
//! seen: what was written and not flushed may be gone. Requests without an answer are repeated on the next connection, all
//! but flushes: a flush that was under way fails, since it cannot speak for what the server has forgotten.
//!
//! The protocol has no way to take back what was sent on a lost connection. A server may carry out an old write after its
//! repetition was answered and a newer write of the same block came; so writes are repeated only after the server had
//! [`NbdOptions::settle`] to finish what it holds of the lost connection.

mod coverage;
mod disk;
mod link;
mod negotiate;
mod reconnect;
mod replies;
mod table;
mod target;

pub use disk::NbdDisk;
pub use target::{NbdTarget, NbdTargetError};

use seam::Nanos;

/// How a client bears with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Never write, whatever the server allows.
    pub read_only: bool,
    /// An export of this very process is refused: a volume with such a backing would wait for itself. A load generator beside the daemon takes it.
    pub refuses_own: bool,
    /// Time without a connection after which requests fail with [`seam::DiskError::Gone`]; attempts go on.
    pub patience: Nanos,
    /// Time that one attempt to connect may take.
    pub attempt_timeout: Nanos,
    /// First pause between attempts; it doubles.
    pub pause_min: Nanos,
    /// Longest pause between attempts.
    pub pause_max: Nanos,
    /// Time given to the server to finish with a lost connection before writes are repeated on the next one.
    pub settle: Nanos,
    /// A server that owes answers and sends nothing at all for this long (and up to twice as long) counts as lost; where a flush
    /// or a zero-range is among them, ten times as long.
    pub silence_max: Nanos,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            read_only: false,
            refuses_own: true,
            patience: Nanos::from_secs(60),
            attempt_timeout: Nanos::from_secs(5),
            pause_min: Nanos::from_millis(20),
            pause_max: Nanos::from_secs(2),
            settle: Nanos::from_millis(200),
            silence_max: Nanos::from_secs(30),
        }
    }
}
