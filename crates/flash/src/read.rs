//! Reading what was appended (R11): every block is checked; a bad copy is replaced by its mirror's; nothing old is ever returned.

use std::rc::Rc;

use seam::{Block, BlockMut, Disk, Piece, Seam};

use crate::device::{Device, place};
use crate::error::StoreError;
use crate::format::batch::data_seed;
use crate::record::{Owner, Position};
use crate::slow;
use crate::store::{Inner, Sabotage};

/// Holds a segment while it is read, so that it is not written again.
pub struct Pin<S: Seam>(Rc<Inner<S>>, u32);

impl<S: Seam> Pin<S> {
    /// Pins it.
    pub fn new(inner: &Rc<Inner<S>>, segment: u32) -> Self {
        inner.state.borrow_mut().segments.get_mut(segment).pins += 1;
        Pin(Rc::clone(inner), segment)
    }
}

impl<S: Seam> Drop for Pin<S> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().segments.get_mut(self.1).pins -= 1;
    }
}

/// Reads one block.
pub async fn read<S: Seam>(
    inner: &Rc<Inner<S>>,
    owner: Owner,
    position: Position,
    mut buffer: S::BlockMut,
) -> Result<S::Block, StoreError> {
    let pin = Pin::new(inner, position.segment);
    let (seed, at) = {
        let state = inner.state.borrow();
        let segment = state.segments.get(position.segment);
        let at = place(state.superblock.segment_bytes, position.segment, position.index);
        (data_seed(owner.incarnation, owner.block, segment.boot, segment.first), at)
    };
    let mut devices = inner.log_devices();
    // Neighbouring blocks from the same device, so that both work and each sees runs.
    if position.segment % 2 == 1 {
        devices.reverse();
    }
    let mut bad = Vec::new();
    for device in devices {
        let read = device.disk.read(at, vec![Piece::whole(buffer)]);
        let (result, mut pieces) = slow::read(inner, device.member, read).await;
        let block = pieces.pop().expect("a read gives its pieces back").block.freeze();
        let trusted = inner.sabotage == Sabotage::SkipChecksum;
        if result.is_ok() && (trusted || block.checksum(seed) == position.checksum) {
            if !bad.is_empty() {
                inner.seam.spawn(repair(pin, bad, at, block.clone()));
            }
            return Ok(block);
        }
        bad.push(device);
        buffer = match block.thaw() {
            Ok(buffer) => buffer,
            Err(_) => unreachable!("nobody else has seen the block"),
        };
    }
    Err(StoreError::Lost { incarnation: owner.incarnation, block: owner.block })
}

/// Writes the good copy over the bad ones. In a task of its own and with the pin, so that it is over before the segment is written
/// again, whatever becomes of the reader. A device that does not take it is left for the write path to judge.
///
/// Without a flush: a device may say once that one failed, and that must be heard by the batch whose flush it is, which makes
/// the repair durable, too.
async fn repair<S: Seam>(pin: Pin<S>, bad: Vec<Device<S>>, at: u64, block: S::Block) {
    for device in bad {
        let _ = device.write_durably(at, vec![block.clone()], false).await;
    }
    drop(pin);
}
