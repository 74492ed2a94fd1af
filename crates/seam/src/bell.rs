//! Notifications between processes that share memory: the role of a doorbell register, or of an eventfd.

use std::io;
use std::task::{Context, Poll};

/// One side of a bell. Several rings before a poll count as one.
pub trait Bell {
    /// Ready after a ring since the last poll; an error if the bell can never ring again.
    fn poll_rung(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Rings the bell without waiting for the other side.
    fn ring(&self);
}
