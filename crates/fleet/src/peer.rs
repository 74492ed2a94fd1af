//! Messages between nodes. They are hints: any of them may be lost, late or repeated.

use crate::ids::Epoch;

/// A message about one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// The sender has a client that wants to write.
    HandOverRequest {
        /// The epoch of the owner that is asked: a late request has no effect.
        epoch: Epoch,
        /// The client's connection has never lost an ownership by a hand-over: its first write moves the volume. A
        /// request without it succeeds only if no client of the owner has written.
        is_first_write: bool,
    },
    /// The sender has no clients of the volume any more.
    ClientsGone,
    /// The sender has released the volume.
    Released(Epoch),
}
