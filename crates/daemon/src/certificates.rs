//! Certificates that the daemon shows itself with, over HTTP and NBD: which they are, when they end, and others in their place at a reload.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;

use control::report::CertificateReport;
use tls::{Files, Identity, ServerConfig};

use super::daemon::Daemon;

/// What is shown by one of them: on connections to come, what was read last.
pub struct Shown {
    file: RefCell<PathBuf>,
    chain: RefCell<Vec<tls::Certificate>>,
    renew: Box<dyn Fn(ServerConfig)>,
}

impl Shown {
    /// `chain` is shown, from `files`; `renew` has something else shown.
    pub fn new(files: &Files, chain: Vec<tls::Certificate>, renew: impl Fn(ServerConfig) + 'static) -> Shown {
        Shown { file: files.certificate.clone().into(), chain: chain.into(), renew: Box::new(renew) }
    }

    /// True when that was another certificate than before.
    fn take_over(&self, files: &Files, identity: Identity) -> bool {
        self.file.replace(files.certificate.clone());
        let before = self.chain.replace(identity.chain);
        (self.renew)(identity.config);
        before != *self.chain.borrow()
    }

    fn report(&self, table: &str) -> CertificateReport {
        let file = self.file.borrow().display().to_string();
        CertificateReport { table: table.to_owned(), file, ends_unix_seconds: tls::ends(&self.chain.borrow()) }
    }
}

/// All of them; each is there once it is in use.
#[derive(Default)]
pub struct Certificates {
    /// The HTTP interface's.
    pub api: OnceCell<Shown>,
    /// That of the NBD listeners.
    pub nbd: OnceCell<Shown>,
}

impl Certificates {
    fn all(&self) -> [(&'static str, &OnceCell<Shown>); 2] {
        [("api", &self.api), ("nbd", &self.nbd)]
    }

    /// How they stand.
    pub fn reports(&self) -> Vec<CertificateReport> {
        let shown = self.all().into_iter().filter_map(|(table, shown)| Some(shown.get()?.report(table)));
        shown.collect()
    }
}

impl Daemon {
    /// Takes over for `table` what `files` hold now: what was done, or why it was not.
    pub(super) fn reload_certificate(&self, table: &str, files: &Files) -> Option<String> {
        let (_, shown) = self.certificates.all().into_iter().find(|(name, _)| *name == table)?;
        let identity = files.read();
        match (shown.get(), identity) {
            (Some(shown), Ok(identity)) => shown
                .take_over(files, identity)
                .then(|| format!("[{table}] the certificate in {} was taken over", files.certificate.display())),
            (Some(_), Err(error)) => Some(format!("[{table}] the certificate stays the one before: {error}")),
            // It does not listen yet, and tries again by itself.
            (None, Ok(_)) => None,
            (None, Err(error)) => Some(format!("[{table}] TLS: {error}")),
        }
    }
}
