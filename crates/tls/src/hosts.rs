//! TLS between the hosts of a fleet: one authority signs a certificate for each host, with the host's name.

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ServerConfig};

use crate::{Certificate, Files, Identity, TlsError, provider, read_key, read_roots, unusable};

/// Content of the files.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    /// For connections of other hosts, which need a certificate of the authority.
    pub server: Arc<ServerConfig>,
    /// For connections to other hosts.
    pub client: Arc<ClientConfig>,
    /// The certificates sent to other hosts.
    pub chain: Vec<Certificate>,
}

impl Files {
    /// Reads the files of a host, whose certificate has to be valid for the name `host`. The CA for client certificates
    /// is the authority of all hosts.
    pub fn read_host(&self, host: &str) -> Result<HostIdentity, TlsError> {
        let authority = self.client_ca.as_ref().expect("hosts prove their names to each other");
        let Identity { config, chain } = self.read()?;
        if !is_of_host(&chain[0], host) {
            return Err(TlsError::OtherHost { path: self.certificate.clone(), host: host.to_owned() });
        }
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has ciphers for both versions")
            .with_root_certificates(read_roots(authority)?)
            .with_client_auth_cert(chain.clone(), read_key(&self.key)?)
            .map_err(|error| unusable(&self.key, error))?;
        Ok(HostIdentity { server: Arc::new(config), client: Arc::new(client), chain })
    }
}

/// The name of a host as a certificate has it; `None` if none can have it.
pub fn name_in_certificate(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).ok()
}

/// True if the certificate is valid for the name `host`.
pub fn is_of_host(certificate: &Certificate, host: &str) -> bool {
    let (Ok(certificate), Some(name)) = (ParsedCertificate::try_from(certificate), name_in_certificate(host)) else {
        return false;
    };
    verify_server_name(&certificate, &name).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    /// Files of a host whose certificate has `name`.
    fn files_of(folder: &tempfile::TempDir, name: &str) -> Files {
        let key = || KeyPair::generate().expect("a new key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, key()).expect("a certificate of its own");
        let (params, own_key) = (CertificateParams::new([name.to_owned()]).expect("a plain name"), key());
        let certificate = params.signed_by(&own_key, &authority).expect("a certificate of the authority");
        let write = |name: &str, content: String| {
            let path = folder.path().join(name);
            fs::write(&path, content).expect("the folder is writable");
            path
        };
        Files {
            certificate: write("host.crt", certificate.pem()),
            key: write("host.key", own_key.serialize_pem()),
            client_ca: Some(write("ca.crt", authority.pem())),
        }
    }

    #[test]
    fn certificate_of_another_host_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = files_of(&folder, "alpha");
        let identity = files.read_host("alpha").expect("its own certificate");
        assert!(is_of_host(&identity.chain[0], "alpha") && !is_of_host(&identity.chain[0], "beta"));
        let text = files.read_host("beta").map(|_| ()).map_err(|error| error.to_string());
        assert!(text.as_ref().is_err_and(|text| text.contains("is not for host beta; ")), "{text:?}");
        let without_ca = Files { client_ca: Some(folder.path().join("none.crt")), ..files };
        assert!(without_ca.read_host("alpha").is_err());
    }
}
