//! Encryption on request (`STARTTLS`): the configuration, and the TLS handshake over a stream.

mod stream;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::{ServerConfig, ServerConnection};
use seam::{Seam, StreamReader, StreamWriter};

pub(crate) use stream::{TlsReader, TlsWriter};

/// How clients are encrypted. Clones share it, so that one is renewed for all cores.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<Mutex<Arc<ServerConfig>>>,
    required: bool,
}

impl Tls {
    /// TLS as `config` has it. If `required`, clients without TLS see nothing.
    pub fn new(config: ServerConfig, required: bool) -> Self {
        Tls { config: Arc::new(Mutex::new(Arc::new(config))), required }
    }

    /// Connections to come are encrypted as `config` has it; those that are open go on.
    pub fn renew(&self, config: ServerConfig) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Held for as long as it takes to copy a pointer, here and where it is renewed: no core waits for another.
    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// The TLS handshake as server, and the two encrypted halves.
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
            // An alert about what is wrong leaves before the connection ends over it.
            writer.flush().await?;
            received?;
        }
        Ok((reader, writer))
    }
}
