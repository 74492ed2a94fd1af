//! Outgoing data: header bytes and frozen blocks in one list. A batch of replies leaves in one system call, and no
//! block is copied on its way out.

use std::ops::Range;

use crate::{Piece, Seam};

/// One part of a [`Gather`].
pub enum Part<S: Seam> {
    /// A range of [`Gather::bytes`].
    Bytes(Range<usize>),
    /// A frozen block's range.
    Piece(Piece<S::Block>),
}

/// A list of bytes and blocks to send in order.
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
    /// Appends bytes; adjacent bytes become one part.
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

    /// Appends a range of a frozen block; the block is held until the gather is cleared.
    pub fn push_piece(&mut self, piece: Piece<S::Block>) {
        self.len += piece.len();
        self.parts.push(Part::Piece(piece));
    }

    /// The bytes to which [`Part::Bytes`] refers.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All parts in order.
    pub fn parts(&self) -> &[Part<S>] {
        &self.parts
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all parts and keeps the capacity.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.len = 0;
    }
}
