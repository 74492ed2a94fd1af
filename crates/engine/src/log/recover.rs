//! After a restart: what the log holds of a volume is dirty in memory again before anybody asks for the volume.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{Owner, Recovered, RecoveredContent};
use seam::{BLOCK_BYTES, Block, BlockMut, Seam};

use crate::RequestError;
use crate::memory::BlockNo;
use crate::request::GivenBlocks;
use crate::shard::write::How;
use crate::shard::{Shard, ShardRef, Span};
use crate::wait::Signal;

/// Records that are read at once.
const AT_ONCE: usize = 32;

/// Records of one volume that are being read.
#[derive(Default)]
struct Reading {
    left: Cell<usize>,
    failure: RefCell<Option<RequestError>>,
    done: Signal,
}

impl<S: Seam> Shard<S> {
    /// Takes `records`, the newest of each block, into memory as dirty. What does not fit waits for destage.
    pub async fn recover(self: &ShardRef<S>, records: Vec<Recovered>) -> Result<(), RequestError> {
        // From here on a record that is let go without its block being durable elsewhere would be a loss, so they are known first.
        self.state.borrow_mut().ledger.found();
        for chunk in records.chunks(AT_ONCE) {
            let reading = Rc::new(Reading::default());
            reading.left.set(chunk.len());
            for record in chunk.iter().copied() {
                let (shard, reading) = (Rc::clone(self), Rc::clone(&reading));
                self.seam().spawn(async move {
                    if let Err(error) = shard.recover_one(record).await {
                        reading.failure.borrow_mut().get_or_insert(error);
                    }
                    reading.left.set(reading.left.get() - 1);
                    reading.done.notify();
                });
            }
            reading.done.wait_for(|| (reading.left.get() == 0).then_some(())).await;
            if let Some(error) = reading.failure.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn recover_one(self: &ShardRef<S>, record: Recovered) -> Result<(), RequestError> {
        let Owner { block, .. } = record.owner;
        if record.content != RecoveredContent::Data {
            let text = format!("the flash log holds a zero-range at block {block}, which this version never writes");
            return Err(seam::DiskError::Io(text).into());
        }
        if block >= self.blocks() {
            // Past an end that has moved since. The next flush buries it.
            self.with(|state, _| {
                state.ledger.adopt(block, record.position);
                state.ledger.change(block);
            });
            return Ok(());
        }
        self.make_room(block..block + 1).await;
        let buffer = self.core.alloc().await;
        let store = self.core.log().expect("records come from a log");
        let data = store.read(record.owner, record.position, buffer).await;
        let data = data.map_err(|error| seam::DiskError::Io(error.to_string()))?;
        let data = match data.thaw() {
            Ok(data) => data,
            // A bad copy on the other mirror is being replaced by it (R1).
            Err(shared) => {
                let mut data = self.core.alloc().await;
                data.copy_from(0, &shared, 0, BLOCK_BYTES);
                data
            }
        };
        let now = self.seam().now();
        let span = Span { block: BlockNo(block), from: 0, start: 0, len: BLOCK_BYTES };
        let how = How { keep: self.keeps_writes(), owed: true, now };
        self.with(|state, memory| {
            let absorbed = self.absorb(state, memory, &span, &mut GivenBlocks::new([data]), how);
            absorbed.expect("a block that is given needs no buffer");
            state.ledger.adopt(block, record.position);
        });
        self.note_dirty(now);
        Ok(())
    }
}
