//! Throw-away certificates: self-signed, so that a client trusts one and no other.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// A certificate for the loopback addresses.
pub struct Certificate {
    /// Certificate and key in PEM form.
    pub pem: (String, String),
    der: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Certificate {
    /// Creates a certificate with the common name `name`.
    pub fn new(name: &str) -> Certificate {
        Certificate::build(name, |_| ())
    }

    /// Creates a certificate that ends within the given time, or ended that long ago.
    pub fn expiring(name: &str, within: Duration, has_expired: bool) -> Certificate {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set");
        let since_1970 = if has_expired { now - within } else { now + within };
        Certificate::build(name, |params| params.not_after = date_time_ymd(1970, 1, 1) + since_1970)
    }

    fn build(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let key = KeyPair::generate().expect("a new key");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("plain names");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.self_signed(&key).expect("a valid key");
        let pem = (certificate.pem(), key.serialize_pem());
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        Certificate { pem, der: (certificate.der().clone(), key) }
    }

    /// Writes certificate and key as `server.crt` and `server.key`.
    pub fn write(&self, folder: &Path) -> [PathBuf; 2] {
        let files = [folder.join("server.crt"), folder.join("server.key")];
        fs::write(&files[0], &self.pem.0).expect("the folder can be written");
        fs::write(&files[1], &self.pem.1).expect("the folder can be written");
        files
    }

    /// A client configuration that trusts only this certificate.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.0.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("TLS 1.2 and 1.3").with_root_certificates(roots);
        Arc::new(builder.with_no_client_auth())
    }

    /// The server side of a TLS connection with this certificate.
    pub fn tls_server(&self) -> impl Fn(TcpStream) -> StreamOwned<ServerConnection, TcpStream> + Send + use<> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("TLS 1.2 and 1.3").with_no_client_auth();
        let (certificate, key) = (self.der.0.clone(), self.der.1.clone_key());
        let config =
            Arc::new(builder.with_single_cert(vec![certificate], key).expect("the key matches the certificate"));
        move |stream| StreamOwned::new(ServerConnection::new(config.clone()).expect("a valid configuration"), stream)
    }
}
