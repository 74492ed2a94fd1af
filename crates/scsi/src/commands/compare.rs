//! COMPARE AND WRITE and ORWRITE: reads and writes the same blocks under one exclusive range lock.

use std::rc::Rc;

use engine::telemetry::OpKind;
use seam::{Block, Piece, Seam};

use super::write::{TAKEN_AT_ONCE_BYTES_MAX, write_flags};
use super::{Extent, Task, blocks_at, read_failed, write_failed};
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::sense::{Asc, Sense, SenseKey};
use crate::status::Status;
use crate::unit::Unit;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn compare_and_write(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let extent = Extent { first: cdb.u64(2), count: cdb.u8(13).into() };
        unit.check_writable()?;
        extent.check(unit)?;
        // The one-byte length cannot express 256 blocks: data with a length of zero is an error.
        if extent.count == 0 && self.expected.out_bytes > 0 {
            return Err(invalid_field(13, None));
        }
        let len = extent.len_bytes() as usize;
        self.require_exact_data(2 * extent.len_bytes())?;
        if len == 0 {
            return Ok(Status::Good);
        }
        let mut data = Vec::new();
        self.take(2 * len, &mut data).await?;
        let (expected, new) = data.split_at(len);
        unit.volume().record_request(OpKind::Read, extent.offset(), len as u64);
        let _guard = unit.locks.lock_exclusive(extent.blocks()).await;
        self.check_cancelled()?;
        let mut pieces = Vec::new();
        let at = extent.offset();
        unit.volume().read(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
        if let Some(difference) = first_difference(&pieces, expected) {
            return Err(miscompare(difference as u64));
        }
        drop(pieces);
        unit.volume().record_request(OpKind::Write, at, len as u64);
        let flags = write_flags(unit, &cdb);
        unit.volume().write(at, len, flags, &mut &new[..]).await.map_err(|error| write_failed(&error, at))?;
        Ok(Status::Good)
    }

    pub(super) async fn or_write(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let extent = Extent::of(&cdb);
        unit.check_writable()?;
        extent.check(unit)?;
        extent.check_length()?;
        self.require_data(extent.len_bytes())?;
        let flags = write_flags(unit, &cdb);
        let (mut data, mut old, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
        for (at, len) in extent.parts(TAKEN_AT_ONCE_BYTES_MAX) {
            data.clear();
            self.take(len, &mut data).await?;
            unit.volume().record_request(OpKind::Write, at, len as u64);
            let _guard = unit.locks.lock_exclusive(blocks_at(at, len)).await;
            self.check_cancelled()?;
            unit.volume().read(at, len, &mut pieces).await.map_err(|error| read_failed(&error, at))?;
            copy_pieces(&pieces, &mut old);
            pieces.clear();
            for (new, old) in data.iter_mut().zip(&old) {
                *new |= old;
            }
            unit.volume().write(at, len, flags, &mut &data[..]).await.map_err(|error| write_failed(&error, at))?;
        }
        Ok(Status::Good)
    }
}

/// MISCOMPARE sense data with the byte offset of the first difference.
pub fn miscompare(offset_bytes: u64) -> Failure {
    Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(offset_bytes).into()
}

/// Offset of the first byte at which `pieces` and `bytes` differ.
pub fn first_difference<B: Block>(pieces: &[Piece<B>], bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut copy = Vec::new();
    for piece in pieces {
        let expected = &bytes[at..at + piece.len()];
        let range = piece.start()..piece.start() + piece.len();
        let content = match piece.block.as_bytes() {
            Some(content) => &content[range],
            None => {
                copy.resize(piece.len(), 0);
                piece.block.read_bytes(piece.start(), &mut copy);
                &copy[..]
            }
        };
        if content != expected {
            let position = content.iter().zip(expected).position(|(one, other)| one != other);
            return Some(at + position.expect("the contents differ"));
        }
        at += piece.len();
    }
    None
}

/// Copies the content of `pieces` to `into`.
fn copy_pieces<B: Block>(pieces: &[Piece<B>], into: &mut Vec<u8>) {
    into.clear();
    for piece in pieces {
        let at = into.len();
        into.resize(at + piece.len(), 0);
        piece.block.read_bytes(piece.start(), &mut into[at..]);
    }
}
