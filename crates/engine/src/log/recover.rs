//! After a restart: what the log holds of a volume rests there, before anybody asks for the volume. Nothing but the log's headers has been
//! read for that; a block that turns out to have no good copy fails who asks for it.

use flash::{Owner, Recovered, RecoveredContent};
use seam::{DiskError, Seam};

use crate::RequestError;
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Takes `records` over, the newest of each block.
    pub fn recover(self: &ShardRef<S>, records: impl Iterator<Item = Recovered>) -> Result<(), RequestError> {
        let blocks = self.blocks();
        self.with(|state, _| {
            for record in records {
                let Owner { block, .. } = record.owner;
                if record.content != RecoveredContent::Data {
                    let text =
                        format!("the flash log holds a zero-range at block {block}, which this version never writes");
                    return Err(DiskError::Io(text));
                }
                if block < blocks {
                    state.adopt(block, record.position);
                } else {
                    // Past an end that has moved since. The next flush buries it.
                    state.ledger.adopt(block, record.position, false);
                    state.ledger.change(block);
                }
            }
            Ok(())
        })?;
        self.core.keep_ticking();
        self.work.notify();
        Ok(())
    }
}
