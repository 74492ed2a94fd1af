//! A receive buffer over a stream's incoming direction: it holds bytes that have arrived and are not yet consumed.

use std::io;

use crate::{BLOCK_BYTES, BlockMut, Piece, SECTOR_BYTES, Seam, StreamReader};

/// A reader with its buffer.
pub struct BufferedReader<S: Seam, R: StreamReader<S>> {
    reader: R,
    buffer: Vec<u8>,
    consumed: usize,
    /// Reusable buffer for reads of a bounded number of bytes.
    bounded: Vec<u8>,
    /// Reused for its capacity.
    pieces: Vec<Piece<S::BlockMut>>,
}

impl<S: Seam, R: StreamReader<S>> BufferedReader<S, R> {
    /// An empty buffer with room for `capacity` bytes, at least 1.
    pub fn new(reader: R, capacity: usize) -> Self {
        let buffer = Vec::with_capacity(capacity);
        BufferedReader { reader, buffer, consumed: 0, bounded: Vec::new(), pieces: Vec::new() }
    }

    /// Grows the buffer to `capacity` bytes; arrived bytes stay.
    pub fn grow(&mut self, capacity: usize) {
        self.buffer.reserve_exact(capacity.saturating_sub(self.buffer.len()));
    }

    /// Arrived and unused bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Marks the first `len` of [`BufferedReader::bytes`] as used.
    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.consumed += len;
        assert!(self.consumed <= self.buffer.len(), "more bytes consumed than have arrived");
    }

    /// The interrupter of a pending read ([`StreamReader::interrupter`]).
    pub fn interrupter(&self) -> Box<dyn Fn()> {
        self.reader.interrupter()
    }

    /// Waits for more bytes. [`io::ErrorKind::UnexpectedEof`] after the peer has closed. The caller never waits for
    /// more bytes than fit into the buffer.
    pub async fn receive_more(&mut self) -> io::Result<()> {
        self.drop_consumed();
        let buffer = std::mem::take(&mut self.buffer);
        assert!(buffer.len() < buffer.capacity(), "no free capacity for the awaited bytes");
        let (result, buffer) = self.reader.read(buffer).await;
        self.buffer = buffer;
        check_for_end(result)
    }

    /// Waits for more bytes and takes about `len` of them at most; the buffer must have room for them.
    pub async fn receive_at_most(&mut self, len: usize) -> io::Result<()> {
        self.drop_consumed();
        let mut bounded = std::mem::take(&mut self.bounded);
        if bounded.capacity() != len {
            bounded = Vec::with_capacity(len);
        }
        assert!(
            self.buffer.len() + bounded.capacity() <= self.buffer.capacity(),
            "no free capacity for the awaited bytes"
        );
        let (result, mut bounded) = self.reader.read(bounded).await;
        self.buffer.append(&mut bounded);
        self.bounded = bounded;
        check_for_end(result)
    }

    fn drop_consumed(&mut self) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
    }

    /// Fills `blocks` completely: first with arrived bytes, then with bytes read directly into the blocks. The blocks
    /// come back even after an error.
    pub async fn read_blocks(&mut self, blocks: &mut Vec<S::BlockMut>) -> io::Result<()> {
        let len = blocks.len() * BLOCK_BYTES;
        // Arrived bytes are padded to a whole sector, the finest unit of a write to a block.
        while self.bytes().len() < len && !self.bytes().len().is_multiple_of(SECTOR_BYTES) {
            let partial_bytes = self.bytes().len() % SECTOR_BYTES;
            match self.receive_at_most(SECTOR_BYTES - partial_bytes).await {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                arrived => arrived?,
            }
        }
        let arrived_len = self.bytes().len().min(len);
        for (block, part) in blocks.iter_mut().zip(self.bytes()[..arrived_len].chunks(BLOCK_BYTES)) {
            block.write_bytes(0, part);
        }
        self.consume(arrived_len);
        let mut start = arrived_len % BLOCK_BYTES;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.extend(blocks.drain(arrived_len / BLOCK_BYTES..).map(|block| {
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

    /// The reader without its buffer; `None` if arrived bytes are unused.
    pub fn into_reader(self) -> Option<R> {
        self.bytes().is_empty().then_some(self.reader)
    }
}

/// A read of zero bytes means that the peer has closed.
fn check_for_end(result: io::Result<usize>) -> io::Result<()> {
    match result? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
