//! TLS configuration of servers, and of the link between hosts: certificates and keys from files, with errors that name
//! the remedy.
//!
//! This crate has neither connections nor an executor: each server runs the handshake on its own streams.

mod expiry;
mod hosts;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use expiry::earliest_expiry;
pub use hosts::{HostIdentity, is_of_host, name_in_certificate};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
pub use rustls::{ClientConfig, ServerConfig};
use rustls::{Error, InconsistentKeys, RootCertStore};

/// A certificate in DER form.
pub type Certificate = CertificateDer<'static>;

/// Longest accepted file, in bytes: four times the size of the largest CA bundles.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Error of a certificate or key file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}; specify an existing file that the daemon may read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        cause: String,
    },
    /// A file is too long.
    #[error(
        "{} is longer than {FILE_BYTES_MAX} bytes, so it is not a certificate or key; specify a file in PEM form",
        .0.display()
    )]
    TooLong(PathBuf),
    /// A file is not valid PEM.
    #[error("{} is not valid PEM ({cause}); recreate it from its source", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        cause: String,
    },
    /// A file has no certificate.
    #[error("{} holds no certificate in PEM form; it must have a section -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// A file has no usable private key.
    #[error(
        "{} holds no private key in PEM form, or one that needs a password; specify a file with a key without a \
         password, readable for the daemon only",
        .0.display()
    )]
    NoKey(PathBuf),
    /// Certificate and key do not match.
    #[error(
        "the key in {} does not belong to the first certificate in {}; specify a matching pair, with the server's own \
         certificate before the others",
        .key.display(),
        .certificate.display()
    )]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A host's certificate has another name.
    #[error(
        "the certificate in {} is not for host {host}; issue one with that name as a DNS name (subjectAltName), or set \
         host in [fleet]",
        .path.display()
    )]
    OtherHost {
        /// The file.
        path: PathBuf,
        /// Name of the host.
        host: String,
    },
    /// A file is not usable for another reason.
    #[error("{} cannot be used: {cause}; issue it again", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: String,
    },
}

/// Certificate and key files of a server, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// CA certificates for client certificates; without them clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Content of the files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// TLS configuration of connections.
    pub config: ServerConfig,
    /// Certificates sent to clients.
    pub chain: Vec<Certificate>,
}

impl Files {
    /// Reads the files.
    pub fn read(&self) -> Result<Identity, TlsError> {
        let chain = read_certificates(&self.certificate)?;
        let key = read_key(&self.key)?;
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has ciphers for both versions");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(read_roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error))?)
            }
        };
        let config = builder.with_single_cert(chain.clone(), key).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { certificate: self.certificate.clone(), key: self.key.clone() }
            }
            Error::InvalidCertificate(error) => unusable(&self.certificate, error),
            error => unusable(&self.key, error),
        })?;
        Ok(Identity { config, chain })
    }
}

/// The cryptographic provider of all TLS in this project.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads the certificates of a file in PEM form; at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<Certificate>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_file(path)?).collect();
    let parsed = parsed.map_err(|error| TlsError::Pem { path: path.to_owned(), cause: error.to_string() })?;
    if parsed.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(parsed) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey(path.to_owned()),
        error => TlsError::Pem { path: path.to_owned(), cause: error.to_string() },
    })
}

fn read_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error: io::Error| TlsError::Read { path: path.to_owned(), cause: error.to_string() };
    // Opening a FIFO or a device could block for ever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX { Err(TlsError::TooLong(path.to_owned())) } else { Ok(content) }
}

fn unusable(path: &Path, cause: impl std::fmt::Display) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    /// A new certificate and its key in PEM form.
    fn generate_pair() -> (String, String) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a plain name");
        (cert.pem(), signing_key.serialize_pem())
    }

    fn read_from(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Identity, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).expect("the folder is writable");
            path
        };
        let (certificate, key) = (write("server.crt", certificate), write("server.key", key));
        let files = Files { certificate, key, client_ca: client_ca.map(|content| write("clients.crt", content)) };
        files.read().map_err(|error| error.to_string())
    }

    /// Certificate, key, client CAs, and expected error.
    type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>, &'a str);

    #[test]
    fn certificate_chain_with_matching_key_is_accepted() {
        let ((certificate, key), (other, _)) = (generate_pair(), generate_pair());
        let identity = read_from((certificate.clone() + &other).as_bytes(), key.as_bytes(), Some(other.as_bytes()));
        assert_eq!(identity.map(|identity| identity.chain.len()), Ok(2));
    }

    #[test]
    fn path_that_is_not_a_regular_file_is_refused_at_once() {
        let (_, key) = generate_pair();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server.key");
        fs::write(&path, key).expect("the folder is writable");
        let files = Files { certificate: folder.path().to_owned(), key: path, client_ca: None };
        let text = files.read().map(|_| ()).map_err(|error| error.to_string());
        assert!(text.as_ref().is_err_and(|text| text.contains("it is not a regular file")), "{text:?}");
    }

    #[test]
    fn missing_file_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let certificate = folder.path().join("none.crt");
        let files = Files { certificate, key: folder.path().join("none.key"), client_ca: None };
        let text = files.read().map(|_| ()).map_err(|error| error.to_string());
        assert!(text.as_ref().is_err_and(|text| text.contains("none.crt cannot be read: No such file")), "{text:?}");
    }

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let ((certificate, key), (_, other)) = (generate_pair(), generate_pair());
        let (certificate, key, other) = (certificate.as_bytes(), key.as_bytes(), other.as_bytes());
        let invalid_base64 = b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        let invalid_der = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let encrypted_key = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let long = vec![b'\n'; FILE_BYTES_MAX as usize + 1];
        let cases: [Case<'_>; 8] = [
            (b"", key, None, "server.crt holds no certificate"),
            (key, key, None, "server.crt holds no certificate"),
            (invalid_base64, key, None, "server.crt is not valid PEM"),
            (&long, key, None, "server.crt is longer than"),
            (invalid_der, key, None, "server.crt cannot be used"),
            (certificate, encrypted_key, None, "server.key holds no private key"),
            (certificate, other, None, "server.key does not belong to the first certificate in"),
            (certificate, key, Some(invalid_der), "clients.crt cannot be used"),
        ];
        for (certificate, key, client_ca, expected) in cases {
            let text = read_from(certificate, key, client_ca).map(|_| ());
            assert!(text.as_ref().is_err_and(|text| text.contains(expected) && text.contains("; ")), "{text:?}");
        }
    }
}
