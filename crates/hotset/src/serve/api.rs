//! The HTTP interface, as the daemon starts it, and what its connections are encrypted with.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tls::{Identity, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::daemon::Daemon;
use crate::config::ApiConfig;
use crate::log;

/// Pause before an address or a certificate that cannot be had is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// What connections are encrypted with: those to come with what was read last.
pub struct Encryption {
    chain: RefCell<Vec<tls::Certificate>>,
    config: watch::Sender<Arc<ServerConfig>>,
}

impl Encryption {
    fn new(identity: Identity) -> Encryption {
        let (config, _) = watch::channel(api::encrypted(identity.config));
        Encryption { chain: RefCell::new(identity.chain), config }
    }

    /// True when that was another certificate than before.
    fn take_over(&self, identity: Identity) -> bool {
        let before = self.chain.replace(identity.chain);
        self.config.send_replace(api::encrypted(identity.config));
        before != *self.chain.borrow()
    }
}

impl Daemon {
    /// Listens where the configuration says, if it does, until `stop` says true. Where that cannot be, volumes are served all the same, and
    /// it is tried again.
    pub fn start_api(self: &Rc<Self>, stop: watch::Receiver<bool>) {
        self.know_tokens();
        let Some(address) = self.config.borrow().api.listen else { return };
        let listener = self.listen_api(address);
        let daemon = self.clone();
        tokio::task::spawn_local(async move {
            let listener = match listener {
                Ok(listener) => listener,
                Err(why) => daemon.listen_later(address, why).await,
            };
            let config = daemon.config.borrow().api.clone();
            let options = api::Options {
                names: config.names,
                metrics_volumes: config.metrics_volumes as usize,
                tls: daemon.tls.get().map(|tls| tls.config.subscribe()),
                log: |line| log::info(line),
            };
            let access = daemon.access.clone();
            let samples = daemon.samples.subscribe();
            api::serve(listener, daemon, access, options, samples, stop).await;
        });
    }

    /// Listens, or says why it cannot.
    fn listen_api(&self, address: SocketAddr) -> Result<TcpListener, String> {
        // Never in the clear because a file is not right.
        let identity = self.config.borrow().api.tls.as_ref().map(tls::Files::read).transpose();
        let identity = identity.map_err(|error| format!("[api] TLS: {error}"))?;
        let listening = api::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = listening.map_err(|error| format!("[api] cannot listen on {address}: {error}"))?;
        match identity {
            Some(identity) => {
                log::info(format!("HTTPS on {address}"));
                assert!(self.tls.set(Encryption::new(identity)).is_ok(), "it listens once");
            }
            None => {
                log::info(format!("HTTP on {address}"));
                if !address.ip().is_loopback() {
                    log::warn(format!(
                        "[api] listen {address} is no loopback address, and tokens go over it unencrypted; give it tls_certificate and tls_key, or put a TLS proxy in front of it"
                    ));
                }
            }
        }
        self.api.set(Some(address));
        Ok(listener)
    }

    async fn listen_later(&self, address: SocketAddr, mut why: String) -> TcpListener {
        log::error(format!("{why}; trying again, volumes are served without it"));
        loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            match self.listen_api(address) {
                Ok(listener) => return listener,
                // Said once, as long as it is the same.
                Err(again) if again == why => {}
                Err(other) => {
                    log::error(format!("{other}; trying again, volumes are served without it"));
                    why = other;
                }
            }
        }
    }

    /// Takes over what the files of `fresh` hold now: what was done, or why it was not.
    pub(super) fn reload_certificate(&self, fresh: &ApiConfig) -> Option<String> {
        let files = fresh.tls.as_ref()?;
        let identity = files.read();
        match (self.tls.get(), identity) {
            (Some(tls), Ok(identity)) => tls
                .take_over(identity)
                .then(|| format!("[api] the certificate in {} was taken over", files.certificate.display())),
            (Some(_), Err(error)) => Some(format!("[api] the certificate stays the one before: {error}")),
            // It does not listen yet, and tries again by itself.
            (None, Ok(_)) => None,
            (None, Err(error)) => Some(format!("[api] TLS: {error}")),
        }
    }
}
