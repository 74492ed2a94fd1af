//! Flushes of clients.

use seam::Seam;

use crate::shard::{Shard, ShardRef};
use crate::{RequestError, WritePolicy};

impl<S: Seam> Shard<S> {
    /// Serves a client's flush.
    pub async fn flush(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.counters.add(&self.counters.flushes, 1);
        // A change to this policy may still fail, and its flushes would have been acknowledged without their data.
        if self.policy.get() == WritePolicy::WriteBackVolatile && !self.is_changing.get() {
            return Ok(());
        }
        if self.flush_involves_log() { self.flush_log().await } else { self.flush_all().await }
    }
}
