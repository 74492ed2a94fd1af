//! Encryption on request (`STARTTLS`): the configuration, and the TLS handshake over a stream.

mod stream;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use seam::{Seam, StreamReader, StreamWriter};

pub(crate) use stream::{TlsReader, TlsWriter};

/// Why TLS cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// No certificate is where one should be.
    #[error("the {0} file holds no certificate in PEM form")]
    NoCertificate(&'static str),
    /// A file cannot be read as what it should be.
    #[error("the {file} file is no valid PEM: {cause}")]
    Pem {
        /// Which file.
        file: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// Certificate and key do not fit together, or are not usable.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(String),
}

/// How clients are encrypted.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    required: bool,
}

impl Tls {
    /// TLS with the certificate chain and key in these PEM files' contents. With `client_ca`, only clients with a certificate
    /// that it has signed are let in. If `required`, clients without TLS see nothing.
    pub fn new(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>, required: bool) -> Result<Self, TlsError> {
        let chain = certificates("certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem { file: "key", cause: error.to_string() })?;
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(bytes) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("client CA", bytes)? {
                    roots.add(certificate).map_err(|error| unusable(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(&error))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
        Ok(Tls { config: Arc::new(config), required })
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
        let mut session = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
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

fn certificates(file: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let parsed = parsed.map_err(|error| TlsError::Pem { file, cause: error.to_string() })?;
    if parsed.is_empty() { Err(TlsError::NoCertificate(file)) } else { Ok(parsed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_certificate_is_named() {
        assert_eq!(Tls::new(b"", b"", None, false).unwrap_err(), TlsError::NoCertificate("certificate"));
    }
}
