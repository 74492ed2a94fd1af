//! The two halves of a TLS stream, as implementations of the seam's stream traits.

use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::marker::PhantomData;
use std::rc::Rc;

use rustls::ServerConnection;
use seam::{Block, BlockMut, Gather, Part, PieceMut, Seam, StreamReader, StreamWriter};

/// Bytes of ciphertext received at once: two records of maximum length.
const RECEIVE_BYTES: usize = 2 * (16 << 10) + 1024;
/// Bytes of plaintext that are encrypted before a send.
const SEND_BYTES: usize = 128 << 10;

/// Decrypting half of a stream.
pub(crate) struct TlsReader<S: Seam, R: StreamReader<S>> {
    inner: R,
    session: Rc<RefCell<ServerConnection>>,
    /// Received ciphertext; the session consumes it record by record, once all plaintext is taken.
    ciphertext: Vec<u8>,
    /// Bytes of `ciphertext` that the session has consumed.
    consumed: usize,
    seam: PhantomData<S>,
}

impl<S: Seam, R: StreamReader<S>> TlsReader<S, R> {
    pub(super) fn new(inner: R, session: Rc<RefCell<ServerConnection>>) -> Self {
        TlsReader { inner, session, ciphertext: Vec::with_capacity(RECEIVE_BYTES), consumed: 0, seam: PhantomData }
    }

    /// Decrypts received ciphertext, waiting for more if there is none. All plaintext has been taken before.
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        if self.consumed == self.ciphertext.len() {
            self.ciphertext.clear();
            self.consumed = 0;
            let (result, ciphertext) = self.inner.read(std::mem::take(&mut self.ciphertext)).await;
            self.ciphertext = ciphertext;
            if result? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut session = self.session.borrow_mut();
        self.consumed += session.read_tls(&mut &self.ciphertext[self.consumed..])?;
        session.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(())
    }

    /// Appends available plaintext, at most `len_max` bytes; returns `None` if there is none yet, 0 at the end.
    fn take(&self, buffer: &mut Vec<u8>, len_max: usize) -> io::Result<Option<usize>> {
        let mut session = self.session.borrow_mut();
        let mut reader = session.reader();
        match reader.fill_buf() {
            Ok(plain) => {
                let len = plain.len().min(len_max);
                buffer.extend_from_slice(&plain[..len]);
                reader.consume(len);
                Ok(Some(len))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn read_some(&mut self, buffer: &mut Vec<u8>, len_max: usize) -> io::Result<usize> {
        loop {
            if let Some(len) = self.take(buffer, len_max)? {
                return Ok(len);
            }
            self.receive().await?;
        }
    }
}

impl<S: Seam, R: StreamReader<S>> StreamReader<S> for TlsReader<S, R> {
    async fn read(&mut self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let len_max = buffer.capacity() - buffer.len();
        let result = self.read_some(&mut buffer, len_max).await;
        (result, buffer)
    }

    fn interrupter(&self) -> Box<dyn Fn()> {
        self.inner.interrupter()
    }

    async fn read_pieces(
        &mut self,
        mut pieces: Vec<PieceMut<S::BlockMut>>,
    ) -> (io::Result<()>, Vec<PieceMut<S::BlockMut>>) {
        let mut plain = Vec::new();
        for piece in &mut pieces {
            plain.clear();
            while plain.len() < piece.len() {
                let len_max = piece.len() - plain.len();
                match self.read_some(&mut plain, len_max).await {
                    Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), pieces),
                    Ok(_) => (),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                    Err(error) => return (Err(error), pieces),
                }
            }
            piece.block.write_bytes(piece.start.into(), &plain);
        }
        (Ok(()), pieces)
    }
}

/// Encrypting half of a stream.
pub(crate) struct TlsWriter<S: Seam, W: StreamWriter<S>> {
    inner: W,
    session: Rc<RefCell<ServerConnection>>,
    /// Reused for its capacity.
    ciphertext: Vec<u8>,
    /// Reused for its capacity; `None` while it is sent.
    out: Option<Gather<S>>,
}

impl<S: Seam, W: StreamWriter<S>> TlsWriter<S, W> {
    pub(super) fn new(inner: W, session: Rc<RefCell<ServerConnection>>) -> Self {
        TlsWriter { inner, session, ciphertext: Vec::new(), out: None }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.session.borrow().is_handshaking()
    }

    /// Sends pending ciphertext.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.ciphertext.clear();
        while self.session.borrow().wants_write() {
            self.session.borrow_mut().write_tls(&mut self.ciphertext)?;
        }
        if self.ciphertext.is_empty() {
            return Ok(());
        }
        let mut out = self.out.take().unwrap_or_default();
        out.push_bytes(&self.ciphertext);
        let (result, mut out) = self.inner.send(out).await;
        out.clear();
        self.out = Some(out);
        result
    }

    async fn encrypt(&mut self, gather: &Gather<S>) -> io::Result<()> {
        let (mut unsent_bytes, mut block) = (0, Vec::new());
        for part in gather.parts() {
            let plain = match part {
                Part::Bytes(range) => &gather.bytes()[range.clone()],
                Part::Piece(piece) => {
                    block.resize(piece.len(), 0);
                    piece.block.read_bytes(piece.start(), &mut block);
                    &block[..]
                }
            };
            self.session.borrow_mut().writer().write_all(plain)?;
            unsent_bytes += plain.len();
            if unsent_bytes >= SEND_BYTES {
                self.flush().await?;
                unsent_bytes = 0;
            }
        }
        self.flush().await
    }
}

impl<S: Seam, W: StreamWriter<S>> StreamWriter<S> for TlsWriter<S, W> {
    async fn send(&mut self, gather: Gather<S>) -> (io::Result<()>, Gather<S>) {
        let result = self.encrypt(&gather).await;
        (result, gather)
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}
