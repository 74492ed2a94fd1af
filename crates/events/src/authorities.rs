//! CAs that are trusted for a receiver of alerts, and the texts of failed TLS handshakes with it.

use std::path::Path;

use rustls::{CertificateError, Error};

/// The certificates of `file`, or without a file those that this machine trusts; at least one. `key` is the key of
/// `[alerts]` that names the file.
pub fn trusted_authorities(file: Option<&Path>, key: &str) -> Result<Vec<tls::Certificate>, String> {
    let certificates = match file {
        Some(path) => tls::read_certificates(path).map_err(|error| format!("[alerts] {key}: {error}"))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    if certificates.is_empty() {
        return Err(format!(
            "this machine has no trusted CAs; install ca-certificates, or specify the CA certificates of the receiver \
             in [alerts] {key}"
        ));
    }
    Ok(certificates)
}

/// The cause and the remedy of a failed handshake, if they are known. `no_tls` is the remedy for a receiver that does
/// not speak TLS.
pub fn tls_error_text(error: &Error, key: &str, no_tls: &str) -> Option<String> {
    match error {
        // `BadSignature`: an authority with the name of a trusted one, and another key.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some(format!("its certificate was signed by a CA that is not trusted here; specify it in [alerts] {key}"))
        }
        Error::InvalidCertificate(error) => Some(format!("its certificate is refused: {error}")),
        Error::InvalidMessage(_) => Some(format!("it does not speak TLS; {no_tls}")),
        _ => None,
    }
}
