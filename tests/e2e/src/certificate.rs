//! Throw-away certificates: each is its own authority, so that a client trusts one and no other.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// A certificate for this machine's loopback.
pub struct Certificate {
    /// It and its key, in PEM form.
    pub pem: (String, String),
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Makes one that calls itself `name`.
    pub fn new(name: &str) -> Certificate {
        let key = KeyPair::generate().expect("random");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("plain names");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a sound key");
        Certificate { pem: (certificate.pem(), key.serialize_pem()), der: certificate.der().clone() }
    }

    /// Writes it and its key as `server.crt` and `server.key`.
    pub fn write(&self, folder: &Path) -> [PathBuf; 2] {
        let files = [folder.join("server.crt"), folder.join("server.key")];
        fs::write(&files[0], &self.pem.0).expect("the folder can be written");
        fs::write(&files[1], &self.pem.1).expect("the folder can be written");
        files
    }

    /// A client that trusts it alone.
    pub fn trusted(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("both versions").with_root_certificates(roots);
        Arc::new(builder.with_no_client_auth())
    }
}
