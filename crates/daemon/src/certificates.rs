//! The daemon's TLS certificates for HTTP, NBD and the link between hosts: report of file and expiry, and renewal at a
//! reload.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;

use messages::report::CertificateReport;
use tls::{Files, Identity, ServerConfig, TlsError};

/// Reads files, makes a listener present their certificate, and returns its chain.
type Renewal = dyn Fn(&Files) -> Result<Vec<tls::Certificate>, TlsError>;

/// The certificate of one listener. New connections use the certificate that was read last.
pub struct ListenerCertificate {
    file: RefCell<PathBuf>,
    chain: RefCell<Vec<tls::Certificate>>,
    renew: Box<Renewal>,
}

impl ListenerCertificate {
    /// A listener that presents `chain`, read from `files`; `renew` makes it present another certificate.
    pub fn new(
        files: &Files,
        chain: Vec<tls::Certificate>,
        renew: impl Fn(ServerConfig) + 'static,
    ) -> ListenerCertificate {
        ListenerCertificate::with_renewal(files, chain, move |files| {
            let Identity { config, chain } = files.read()?;
            renew(config);
            Ok(chain)
        })
    }

    /// As [`ListenerCertificate::new`], for a listener that reads the files itself: `renew` returns the new chain.
    pub fn with_renewal(
        files: &Files,
        chain: Vec<tls::Certificate>,
        renew: impl Fn(&Files) -> Result<Vec<tls::Certificate>, TlsError> + 'static,
    ) -> ListenerCertificate {
        ListenerCertificate { file: files.certificate.clone().into(), chain: chain.into(), renew: Box::new(renew) }
    }

    /// Replaces the certificate; true if the chain has changed.
    fn replace(&self, files: &Files) -> Result<bool, TlsError> {
        let chain = (self.renew)(files)?;
        self.file.replace(files.certificate.clone());
        let before = self.chain.replace(chain);
        Ok(before != *self.chain.borrow())
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
    /// Certificate of the link between hosts.
    fleet: OnceCell<ListenerCertificate>,
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

    /// Sets the certificate of the link between hosts, which listens once.
    pub fn set_fleet(&self, certificate: ListenerCertificate) {
        assert!(self.fleet.set(certificate).is_ok(), "the link sets its certificate once");
    }

    /// True when the HTTP interface uses TLS.
    pub fn has_api(&self) -> bool {
        self.api.get().is_some()
    }

    fn all(&self) -> [(&'static str, &OnceCell<ListenerCertificate>); 3] {
        [("api", &self.api), ("nbd", &self.nbd), ("fleet", &self.fleet)]
    }

    /// Reports of the certificates in use.
    pub fn reports(&self) -> Vec<CertificateReport> {
        self.all().into_iter().filter_map(|(table, certificate)| Some(certificate.get()?.report(table))).collect()
    }

    /// Makes the listener of `table` present the certificate in `files`; returns a message about the change or the
    /// failure, if any.
    pub fn reload(&self, table: &str, files: &Files) -> Option<String> {
        let (_, cell) = self.all().into_iter().find(|(name, _)| *name == table)?;
        let Some(certificate) = cell.get() else {
            // The listener is not up yet; its own retry reads the files again.
            return files.read().err().map(|error| format!("[{table}] TLS: {error}"));
        };
        match certificate.replace(files) {
            Ok(has_changed) => {
                has_changed.then(|| format!("[{table}] certificate {} loaded", files.certificate.display()))
            }
            Err(error) => Some(format!("[{table}] keeps its previous certificate: {error}")),
        }
    }
}
