//! What is to be sent: header bytes and frozen blocks in one list, so that a batch of replies leaves in one system call
//! and a block is never copied on its way out.

use std::ops::Range;

use crate::{Piece, Seam};

/// One part of a [`Gather`].
pub enum Part<S: Seam> {
    /// A range of [`Gather::bytes`].
    Bytes(Range<usize>),
    /// A frozen block's range.
    Piece(Piece<S::Block>),
}

/// A list of bytes and blocks to be sent in order.
pub struct Gather<S: Seam> {
    bytes: Vec<u8>,
    parts: Vec<Part<S>>,
    len: usize,
}

impl<S: Seam> Default for Gather<S> {
    fn default() -> Self {
        Gather { bytes: Vec::new(), parts: Vec::new(), len: 0 }
    }
}

impl<S: Seam> Gather<S> {
    /// Appends bytes; neighbouring ones become one part.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Bytes(range)) if range.end == start => range.end = self.bytes.len(),
            _ => self.parts.push(Part::Bytes(start..self.bytes.len())),
        }
    }

    /// Appends a frozen block's range; it is held until the gather is cleared.
    pub fn push_piece(&mut self, piece: Piece<S::Block>) {
        self.len += piece.len();
        self.parts.push(Part::Piece(piece));
    }

    /// The bytes that [`Part::Bytes`] speaks of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What to send, in order.
    pub fn parts(&self) -> &[Part<S>] {
        &self.parts
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.len = 0;
    }
}
