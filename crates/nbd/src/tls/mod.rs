//! TLS (`STARTTLS`): the configuration, and the TLS handshake over a stream.

mod stream;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::{ServerConfig, ServerConnection};
use seam::{Seam, StreamReader, StreamWriter};

pub(crate) use stream::{TlsReader, TlsWriter};

/// TLS configuration. Clones share it, so that a renewal applies to all cores.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<Mutex<Arc<ServerConfig>>>,
    required: bool,
}

impl Tls {
    /// TLS with `config`. If `required`, clients without TLS are refused.
    pub fn new(config: ServerConfig, required: bool) -> Self {
        Tls { config: Arc::new(Mutex::new(Arc::new(config))), required }
    }

    /// Replaces the configuration of future connections; open connections keep theirs.
    pub fn renew(&self, config: ServerConfig) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The lock is held only to copy or replace a pointer, so cores do not wait for each other.
    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// Performs the TLS handshake as server; returns the two encrypted halves.
    pub(crate) async fn accept<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
        &self,
        reader: R,
        writer: W,
    ) -> io::Result<(TlsReader<S, R>, TlsWriter<S, W>)> {
        let mut session = ServerConnection::new(self.config()).map_err(io::Error::other)?;
        session.set_buffer_limit(None);
        let session = Rc::new(RefCell::new(session));
        let (mut reader, mut writer) = (TlsReader::new(reader, Rc::clone(&session)), TlsWriter::new(writer, session));
        while writer.is_handshaking() {
            let received = reader.receive().await;
            // An alert about the error is sent before the connection ends.
            writer.flush().await?;
            received?;
        }
        Ok((reader, writer))
    }
}
