//! A self-signed certificate for the test servers of the channels.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use tempfile::TempDir;

/// A self-signed certificate, in a folder that is removed with it.
pub struct Certificate {
    /// The folder; tests may put files of their own there.
    pub folder: TempDir,
}

impl Certificate {
    /// A certificate of the host `name`.
    pub fn new(name: &str) -> Certificate {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let key = KeyPair::generate().expect("random");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a plain name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a valid key").pem();
        fs::write(folder.path().join("server.crt"), certificate).expect("the folder can be written");
        fs::write(folder.path().join("server.key"), key.serialize_pem()).expect("the folder can be written");
        Certificate { folder }
    }

    /// Path of the certificate.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    /// Configuration of a server that presents the certificate.
    pub fn config(&self) -> Arc<ServerConfig> {
        let key = self.folder.path().join("server.key");
        let files = tls::Files { certificate: self.path(), key, client_ca: None };
        Arc::new(files.read().expect("certificate and key match").config)
    }
}
