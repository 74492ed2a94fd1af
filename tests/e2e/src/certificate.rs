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
    /// The certificate in PEM form.
    pub certificate_pem: String,
    /// Its key in PEM form.
    pub key_pem: String,
    certificate_der: CertificateDer<'static>,
    key_der: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Creates a certificate with the common name `name`.
    pub fn new(name: &str) -> Certificate {
        Certificate::build(name, |_| ())
    }

    /// Creates a certificate that ends after this time.
    pub fn expiring_in(name: &str, time: Duration) -> Certificate {
        Certificate::ending(name, now_since_1970() + time)
    }

    /// Creates a certificate that ended this time ago.
    pub fn expired_since(name: &str, time: Duration) -> Certificate {
        Certificate::ending(name, now_since_1970() - time)
    }

    fn ending(name: &str, since_1970: Duration) -> Certificate {
        Certificate::build(name, |params| params.not_after = date_time_ymd(1970, 1, 1) + since_1970)
    }

    fn build(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let key = KeyPair::generate().expect("a new key");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("plain names");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.self_signed(&key).expect("a valid key");
        Certificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            certificate_der: certificate.der().clone(),
            key_der: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        }
    }

    /// Writes certificate and key as `server.crt` and `server.key`.
    pub fn write(&self, folder: &Path) -> [PathBuf; 2] {
        let files = [folder.join("server.crt"), folder.join("server.key")];
        fs::write(&files[0], &self.certificate_pem).expect("the folder can be written");
        fs::write(&files[1], &self.key_pem).expect("the folder can be written");
        files
    }

    /// A client configuration that trusts only this certificate.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate_der.clone()).expect("a certificate");
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
        let (certificate, key) = (self.certificate_der.clone(), self.key_der.clone_key());
        let config =
            Arc::new(builder.with_single_cert(vec![certificate], key).expect("the key matches the certificate"));
        move |stream| StreamOwned::new(ServerConnection::new(config.clone()).expect("a valid configuration"), stream)
    }
}

fn now_since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set")
}
