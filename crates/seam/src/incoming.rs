//! A receive buffer over a stream's incoming direction: what has arrived and is not yet used.

use std::io;

use crate::{BLOCK_BYTES, BlockMut, Piece, SECTOR_BYTES, Seam, StreamReader};

/// A reader with its buffer.
pub struct Incoming<S: Seam, R: StreamReader<S>> {
    reader: R,
    buffer: Vec<u8>,
    used: usize,
    /// Room for a little that is to arrive alone.
    little: Vec<u8>,
    /// Kept for its room.
    pieces: Vec<Piece<S::BlockMut>>,
}

impl<S: Seam, R: StreamReader<S>> Incoming<S, R> {
    /// An empty buffer with room for `capacity` bytes, at least 1.
    pub fn new(reader: R, capacity: usize) -> Self {
        let buffer = Vec::with_capacity(capacity);
        Incoming { reader, buffer, used: 0, little: Vec::new(), pieces: Vec::new() }
    }

    /// Makes room for `capacity` bytes in all; what has arrived stays.
    pub fn grow(&mut self, capacity: usize) {
        self.buffer.reserve_exact(capacity.saturating_sub(self.buffer.len()));
    }

    /// What has arrived and is not yet used.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.used..]
    }

    /// Marks the first `len` of [`Incoming::bytes`] as used.
    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.used += len;
        assert!(self.used <= self.buffer.len(), "more used than has arrived");
    }

    /// What interrupts one that waits for more ([`StreamReader::interrupter`]).
    pub fn interrupter(&self) -> Box<dyn Fn()> {
        self.reader.interrupter()
    }

    /// Waits for more. [`io::ErrorKind::UnexpectedEof`] when the peer has closed. The caller never waits for more than there is
    /// room for.
    pub async fn more(&mut self) -> io::Result<()> {
        self.drop_used();
        let buffer = std::mem::take(&mut self.buffer);
        assert!(buffer.len() < buffer.capacity(), "no room for what is waited for");
        let (result, buffer) = self.reader.read(buffer).await;
        self.buffer = buffer;
        arrived(result)
    }

    /// Waits for more, and takes hardly more than `len` bytes of it, for which there is room.
    pub async fn more_of(&mut self, len: usize) -> io::Result<()> {
        self.drop_used();
        let mut little = std::mem::take(&mut self.little);
        if little.capacity() != len {
            little = Vec::with_capacity(len);
        }
        assert!(self.buffer.len() + little.capacity() <= self.buffer.capacity(), "no room for what is waited for");
        let (result, mut little) = self.reader.read(little).await;
        self.buffer.append(&mut little);
        self.little = little;
        arrived(result)
    }

    fn drop_used(&mut self) {
        self.buffer.drain(..self.used);
        self.used = 0;
    }

    /// Fills `blocks` whole, with what has arrived and with what comes next, which goes straight there. They come back in any
    /// case.
    pub async fn read_blocks(&mut self, blocks: &mut Vec<S::BlockMut>) -> io::Result<()> {
        let len = blocks.len() * BLOCK_BYTES;
        // Cut at sectors, the finest that a block is written in.
        while self.bytes().len() < len && !self.bytes().len().is_multiple_of(SECTOR_BYTES) {
            let odd = self.bytes().len() % SECTOR_BYTES;
            match self.more_of(SECTOR_BYTES - odd).await {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                arrived => arrived?,
            }
        }
        let here = self.bytes().len().min(len);
        for (block, part) in blocks.iter_mut().zip(self.bytes()[..here].chunks(BLOCK_BYTES)) {
            block.write_bytes(0, part);
        }
        self.consume(here);
        let mut start = here % BLOCK_BYTES;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.extend(blocks.drain(here / BLOCK_BYTES..).map(|block| {
            let start = std::mem::take(&mut start);
            Piece::new(block, start, BLOCK_BYTES - start)
        }));
        let mut result = Ok(());
        if !pieces.is_empty() {
            (result, pieces) = self.reader.read_pieces(pieces).await;
        }
        blocks.extend(pieces.drain(..).map(|piece| piece.block));
        self.pieces = pieces;
        result
    }

    /// The bare reader, if nothing has arrived that was not used.
    pub fn into_reader(self) -> Option<R> {
        self.bytes().is_empty().then_some(self.reader)
    }
}

/// Nothing arrives any more once the peer has closed.
fn arrived(result: io::Result<usize>) -> io::Result<()> {
    match result? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
