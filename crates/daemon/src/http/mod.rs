//! The HTTP interface: its start, and its tokens ([`tokens`]).

mod tokens;

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::Handler;
use messages::StatusSample;
use seam::Address;
use tls::{Identity, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::certificates::{Certificates, ListenerCertificate};
use super::port_holder::explain_in_use;
use super::records::Records;
use super::settings::Settings;
use logging::{self as log, API};

/// Pause before an unavailable address or certificate is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Number of attempts on a port in use after which its holder is looked up again: ten minutes.
const HOLDER_NAMED_EVERY: u32 = 120;

/// A listening socket, and the TLS configuration of its connections, if any.
type HttpListener = (TcpListener, Option<watch::Receiver<Arc<ServerConfig>>>);

/// The HTTP interface: its listener, its tokens and its sessions.
pub struct HttpInterface {
    settings: Rc<Settings>,
    records: Rc<Records>,
    certificates: Rc<Certificates>,
    /// Tokens and sessions.
    access: Arc<api::Access>,
    /// The address, once it listens.
    address: Cell<Option<SocketAddr>>,
    /// The reason why it does not listen, while the start is retried.
    unavailable: RefCell<Option<String>>,
}

impl HttpInterface {
    /// An interface that does not listen yet.
    pub fn new(settings: Rc<Settings>, records: Rc<Records>, certificates: Rc<Certificates>) -> HttpInterface {
        HttpInterface {
            settings,
            records,
            certificates,
            access: Arc::default(),
            address: Cell::default(),
            unavailable: RefCell::default(),
        }
    }

    /// The address, once it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get()
    }

    /// The problem of an interface that is configured and does not listen, for the status.
    pub fn problem(&self) -> Option<String> {
        let reason = self.unavailable.borrow().clone()?;
        let seconds = RETRY_PAUSE.as_secs();
        Some(format!("web console and API are not reachable: {reason}; the daemon retries every {seconds} s"))
    }

    /// Starts the HTTP interface, if one is configured: `handler` answers its requests, `samples` feeds its stream. It
    /// ends when `stop` turns true. While the address or the certificate is unavailable, volumes are served without the
    /// interface, and the start is retried.
    pub fn start<H: Handler>(
        self: Rc<Self>,
        handler: Rc<H>,
        samples: watch::Receiver<Arc<StatusSample>>,
        stop: watch::Receiver<bool>,
    ) {
        self.update_tokens();
        let Some(address) = self.settings.current().api.listen else { return };
        let listener = self.listen(address);
        tokio::task::spawn_local(async move {
            let (listener, tls) = match listener {
                Ok(listening) => listening,
                Err(reason) => self.retry_listening(address, reason).await,
            };
            let config = self.settings.current().api.clone();
            let options = api::Options {
                names: config.names,
                metrics_volumes: config.metrics_volumes as usize,
                tls,
                log: |client, line| log::info!(target: API, %client, "{line}"),
            };
            api::serve(listener, handler, self.access.clone(), options, samples, stop).await;
        });
    }

    /// Binds the socket and reads the certificate; the error names the reason.
    fn listen(&self, address: SocketAddr) -> Result<HttpListener, String> {
        // An unreadable certificate or key is an error: the interface must not fall back to plain HTTP.
        let files = self.settings.current().api.tls.clone();
        let identity = files.map(|files| files.read().map(|identity| (files, identity))).transpose();
        let identity = identity.map_err(|error| format!("[api] TLS: {error}"))?;
        let listening = api::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = listening.map_err(|error| {
            let error = explain_in_use(error, &Address::Tcp(address.ip().to_string(), address.port()));
            format!("[api] cannot listen on {address}: {error}")
        })?;
        let tls = match identity {
            Some((files, Identity { config, chain })) => {
                log::info!(target: API, %address, "web console: https://{address}/");
                let (sender, receiver) = watch::channel(api::with_alpn(config));
                let renew = move |config| drop(sender.send_replace(api::with_alpn(config)));
                let certificate = ListenerCertificate::new(&files, chain, renew);
                self.certificates.set_api(certificate);
                Some(receiver)
            }
            None => {
                log::info!(target: API, %address, "web console: http://{address}/");
                if !address.ip().is_loopback() {
                    log::warn!(
                        target: API, %address,
                        "[api] listen {address} is not a loopback address, so tokens are sent unencrypted; set \
                         tls_certificate and tls_key, or put a TLS proxy in front"
                    );
                }
                None
            }
        };
        self.address.set(Some(address));
        Ok((listener, tls))
    }

    async fn retry_listening(&self, address: SocketAddr, mut reason: String) -> HttpListener {
        log::error!(target: API, "{reason}; retrying, volumes are served without the HTTP interface");
        self.unavailable.replace(Some(reason.clone()));
        let mut in_use_count = 0;
        loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            // Naming the holder of a port takes long, so it is done rarely.
            let is_in_use =
                std::net::TcpListener::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
            in_use_count = if is_in_use { in_use_count + 1 } else { 0 };
            if is_in_use && in_use_count % HOLDER_NAMED_EVERY != 1 {
                continue;
            }
            match self.listen(address) {
                Ok(listening) => {
                    self.unavailable.replace(None);
                    return listening;
                }
                // A repeated reason is logged once.
                Err(repeated) if repeated == reason => {}
                Err(other) => {
                    log::error!(target: API, "{other}; retrying, volumes are served without the HTTP interface");
                    reason = other;
                    self.unavailable.replace(Some(reason.clone()));
                }
            }
        }
    }
}
