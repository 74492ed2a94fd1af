//! The HTTP interface, as the daemon starts it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::daemon::Daemon;
use crate::log;

/// Pause before an address that cannot be had is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

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
                Some(listener) => listener,
                None => daemon.listen_later(address).await,
            };
            let config = daemon.config.borrow().api.clone();
            let metrics_volumes = config.metrics_volumes as usize;
            let options = api::Options { names: config.names, metrics_volumes, log: |line| log::info(line) };
            let access = daemon.access.clone();
            let samples = daemon.samples.subscribe();
            api::serve(listener, daemon, access, options, samples, stop).await;
        });
    }

    fn listen_api(&self, address: SocketAddr) -> Option<TcpListener> {
        let listening = api::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match listening {
            Ok((address, listener)) => {
                log::info(format!("HTTP on {address}"));
                if !address.ip().is_loopback() {
                    log::warn(format!(
                        "[api] listen {address} is no loopback address, and tokens go over it unencrypted; put a TLS proxy in front of it"
                    ));
                }
                self.api.set(Some(address));
                Some(listener)
            }
            Err(error) => {
                log::error(format!(
                    "[api] cannot listen on {address}: {error}; trying again, volumes are served without it"
                ));
                None
            }
        }
    }

    async fn listen_later(&self, address: SocketAddr) -> TcpListener {
        loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            if let Some(listener) = self.listen_api(address) {
                return listener;
            }
        }
    }
}
