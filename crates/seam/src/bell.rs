//! Notifications between processes that share memory: a bell that one side rings and the other one hears.

use std::io;
use std::task::{Context, Poll};

/// A bell, from either side. Rung several times before anybody listens, it is heard once.
pub trait Bell {
    /// Ready once it was rung since it was last heard; an error when it never will be again.
    fn poll_rung(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Rings it; never waits for who listens.
    fn ring(&self);
}
