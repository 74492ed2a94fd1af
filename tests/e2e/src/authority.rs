//! An authority of a fleet, and the certificates of its hosts.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore};

/// An authority with a key of its own.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Default for Authority {
    fn default() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a new key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate of its own"))
    }
}

impl Authority {
    /// Writes `fleet.crt` and `fleet.key` for the host, and the authority's certificate as `fleet-ca.crt`.
    pub fn write_host(&self, host: &str, folder: &Path) {
        let key = KeyPair::generate().expect("a new key");
        let certificate = params_of(host).signed_by(&key, &self.0).expect("a certificate of the authority");
        let files =
            [("fleet.crt", certificate.pem()), ("fleet.key", key.serialize_pem()), ("fleet-ca.crt", self.0.pem())];
        for (name, content) in files {
            fs::write(folder.join(name), content).expect("the folder can be written");
        }
    }

    /// The configuration of a client that is the host.
    pub fn client_config(&self, host: &str) -> Arc<ClientConfig> {
        let key = KeyPair::generate().expect("a new key");
        let certificate = params_of(host).signed_by(&key, &self.0).expect("a certificate of the authority");
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("TLS 1.2 and 1.3").with_root_certificates(roots);
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        Arc::new(builder.with_client_auth_cert(vec![certificate.der().clone()], key).expect("the key matches"))
    }
}

fn params_of(host: &str) -> CertificateParams {
    CertificateParams::new([host.to_owned()]).expect("a plain name")
}
