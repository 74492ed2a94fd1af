//! Another server's NBD export as a disk: many requests in flight on one connection, which is re-established after a
//! loss.
//!
//! On a connection loss [`seam::Disk::connection_epoch`] changes at once, before any answer of a later connection is
//! visible: unflushed writes may be lost. Unanswered requests are repeated on the next connection, except flushes. A
//! flush in flight fails, because it cannot cover writes that the server has lost.
//!
//! The protocol cannot cancel requests sent on a lost connection. A server may carry out an old write after it has
//! answered the repetition and a newer write of the same block. So writes are repeated only after the server had
//! [`NbdOptions::settle`] to finish the requests of the lost connection.

mod coverage;
mod dedicated;
mod disk;
mod export_info;
mod link;
mod negotiate;
mod reconnect;
mod replies;
mod request_table;
mod shared;
mod target;

pub use dedicated::{Change, DedicatedServer};
pub use disk::NbdDisk;
pub use target::{NbdTarget, NbdTargetError};

use seam::Nanos;

/// Options of a client of another server's export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Never write, even if the server allows it.
    pub read_only: bool,
    /// Refuse an export of this very process: a volume with such a backing would wait for itself. A load generator
    /// inside the daemon accepts it.
    pub refuses_own_exports: bool,
    /// Time without a connection after which requests fail with [`seam::DiskError::Gone`]; connection attempts
    /// continue.
    pub reconnect_timeout: Nanos,
    /// Time limit of one connection attempt.
    pub attempt_timeout: Nanos,
    /// First pause between attempts; it doubles.
    pub pause_min: Nanos,
    /// Longest pause between attempts.
    pub pause_max: Nanos,
    /// Time for the server to finish the requests of a lost connection before writes are repeated on the next one.
    pub settle_time: Nanos,
    /// Time after which a server with open requests that sends nothing counts as lost (detected after up to twice this
    /// time). While a flush or a zero request is open, ten times as long. `None` for a server that hangs like a disk.
    pub silence_max: Option<Nanos>,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            read_only: false,
            refuses_own_exports: true,
            reconnect_timeout: Nanos::from_secs(60),
            attempt_timeout: Nanos::from_secs(5),
            pause_min: Nanos::from_millis(20),
            pause_max: Nanos::from_secs(2),
            settle_time: Nanos::from_millis(200),
            silence_max: Some(Nanos::from_secs(30)),
        }
    }
}
