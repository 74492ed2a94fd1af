//! The daemon's TLS certificates for HTTP and NBD: report of file and expiry, and renewal at a reload.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;

use messages::report::CertificateReport;
use tls::{Files, Identity, ServerConfig};

/// The certificate of one listener. New connections use the certificate that was read last.
pub struct ListenerCertificate {
    file: RefCell<PathBuf>,
    chain: RefCell<Vec<tls::Certificate>>,
    renew: Box<dyn Fn(ServerConfig)>,
}

impl ListenerCertificate {
    /// A listener that presents `chain`, read from `files`; `renew` makes it present another certificate.
    pub fn new(
        files: &Files,
        chain: Vec<tls::Certificate>,
        renew: impl Fn(ServerConfig) + 'static,
    ) -> ListenerCertificate {
        ListenerCertificate { file: files.certificate.clone().into(), chain: chain.into(), renew: Box::new(renew) }
    }

    /// Replaces the certificate; true if the chain has changed.
    fn replace(&self, files: &Files, identity: Identity) -> bool {
        self.file.replace(files.certificate.clone());
        let before = self.chain.replace(identity.chain);
        (self.renew)(identity.config);
        before != *self.chain.borrow()
    }

    fn report(&self, table: &str) -> CertificateReport {
        let file = self.file.borrow().display().to_string();
        CertificateReport {
            table: table.to_owned(),
            file,
            ends_unix_seconds: tls::earliest_expiry(&self.chain.borrow()),
        }
    }
}

/// The certificates of all listeners; each cell is set once its listener uses TLS.
#[derive(Default)]
pub struct Certificates {
    /// Certificate of the HTTP interface.
    api: OnceCell<ListenerCertificate>,
    /// Certificate of the NBD listeners.
    nbd: OnceCell<ListenerCertificate>,
}

impl Certificates {
    /// Sets the certificate of the HTTP interface, which listens once.
    pub fn set_api(&self, certificate: ListenerCertificate) {
        assert!(self.api.set(certificate).is_ok(), "the HTTP interface sets its certificate once");
    }

    /// Sets the certificate of the NBD listeners.
    pub fn set_nbd(&self, certificate: ListenerCertificate) {
        assert!(self.nbd.set(certificate).is_ok(), "the NBD certificate is set once");
    }

    /// True when the HTTP interface uses TLS.
    pub fn has_api(&self) -> bool {
        self.api.get().is_some()
    }

    fn all(&self) -> [(&'static str, &OnceCell<ListenerCertificate>); 2] {
        [("api", &self.api), ("nbd", &self.nbd)]
    }

    /// Reports of the certificates in use.
    pub fn reports(&self) -> Vec<CertificateReport> {
        self.all().into_iter().filter_map(|(table, certificate)| Some(certificate.get()?.report(table))).collect()
    }

    /// Makes the listener of `table` present the certificate in `files`; returns a message about the change or the
    /// failure, if any.
    pub fn reload(&self, table: &str, files: &Files) -> Option<String> {
        let (_, cell) = self.all().into_iter().find(|(name, _)| *name == table)?;
        let identity = files.read();
        match (cell.get(), identity) {
            (Some(certificate), Ok(identity)) => certificate
                .replace(files, identity)
                .then(|| format!("[{table}] certificate {} loaded", files.certificate.display())),
            (Some(_), Err(error)) => Some(format!("[{table}] keeps its previous certificate: {error}")),
            // The listener is not up yet; its own retry reads the files again.
            (None, Ok(_)) => None,
            (None, Err(error)) => Some(format!("[{table}] TLS: {error}")),
        }
    }
}
