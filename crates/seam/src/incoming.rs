//! A receive buffer over a stream's incoming direction: what has arrived and is not yet used.

use std::io;
use std::marker::PhantomData;

use crate::{Seam, StreamReader};

/// A reader with its buffer.
pub struct Incoming<S: Seam, R: StreamReader<S>> {
    reader: R,
    buffer: Vec<u8>,
    used: usize,
    seam: PhantomData<S>,
}

impl<S: Seam, R: StreamReader<S>> Incoming<S, R> {
    /// An empty buffer with room for `capacity` bytes, at least 1.
    pub fn new(reader: R, capacity: usize) -> Self {
        Incoming { reader, buffer: Vec::with_capacity(capacity), used: 0, seam: PhantomData }
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

    /// Waits for more. [`io::ErrorKind::UnexpectedEof`] when the peer has closed. The caller never waits for more than there is
    /// room for.
    pub async fn more(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let buffer = std::mem::take(&mut self.buffer);
        assert!(buffer.len() < buffer.capacity(), "no room for what is waited for");
        let (result, buffer) = self.reader.read(buffer).await;
        self.buffer = buffer;
        match result? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The bare reader, if nothing has arrived that was not used.
    pub fn into_reader(self) -> Option<R> {
        self.bytes().is_empty().then_some(self.reader)
    }
}
