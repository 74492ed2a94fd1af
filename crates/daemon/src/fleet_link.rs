//! The link to the other hosts of the fleet: its listener, its certificate, and requests to them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use config::LinkConfig;
use control::{Handler, ProgressSender};
use fleet_link::{LinkError, Peer, Refusal, Tunnels};
use futures_util::future::join_all;
use messages::{Answer, ErrorKind, Failure, Request};
use seam::Address;
use tls::{ClientConfig, HostIdentity};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::certificates::{Certificates, ListenerCertificate};
use super::port_holder::explain_in_use;
use super::settings::Settings;
use logging::{self as log, FLEET};
use units::show_host_port;

/// Pause before an unavailable address or certificate is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Transfers of cached data that this host receives at a time: one thread decrypts them all.
const TRANSFERS_MAX: usize = 2;

/// The link of this host.
pub struct FleetLink {
    settings: Rc<Settings>,
    certificates: Rc<Certificates>,
    /// Its certificate and the authority; `None` until they could be read.
    identity: Rc<RefCell<Option<HostIdentity>>>,
    /// The reason why it does not listen, while the start is retried.
    unavailable: RefCell<Option<String>>,
    /// Turns of the transfers of cached data to this host.
    transfers: Semaphore,
}

impl FleetLink {
    /// A link that does not listen yet.
    pub fn new(settings: Rc<Settings>, certificates: Rc<Certificates>) -> FleetLink {
        FleetLink {
            settings,
            certificates,
            identity: Rc::default(),
            unavailable: RefCell::default(),
            transfers: Semaphore::new(TRANSFERS_MAX),
        }
    }

    /// Listens for the other hosts, if the link is configured; `handler` answers them. It ends when `stop` turns true.
    /// While the address or the certificate is unavailable, volumes are served without the link, and the start is
    /// retried.
    pub fn start<H: Handler + Tunnels>(self: Rc<Self>, handler: Rc<H>, stop: watch::Receiver<bool>) {
        let config = self.settings.current();
        let Some(link) = config.fleet.link.clone() else { return };
        tokio::task::spawn_local(async move {
            let own = config.fleet.host.as_str();
            let listener = self.listen(own, &link).await;
            let hosts = link.hosts.keys().filter(|host| *host != own).cloned().collect();
            let tls = || {
                let identity = self.identity.borrow();
                Arc::clone(&identity.as_ref().expect("it is read before the listener is open").server)
            };
            let on_refusal = |address, refusal: Refusal| {
                log::warn!(target: FLEET, "[fleet] a connection from {address} is refused: {refusal}");
            };
            fleet_link::serve(listener, hosts, tls, handler, on_refusal, stop).await;
        });
    }

    /// The problem of a link that is configured and does not listen, for the status.
    pub fn problem(&self) -> Option<String> {
        let reason = self.unavailable.borrow().clone()?;
        let seconds = RETRY_PAUSE.as_secs();
        Some(format!("this host has no link to the others: {reason}; the daemon retries every {seconds} s"))
    }

    /// The address of this host; empty without a link.
    pub fn address(&self) -> String {
        let config = self.settings.current();
        let own = config.fleet.link.as_ref().and_then(|link| link.hosts.get(&config.fleet.host));
        own.map_or(String::new(), |(host, port)| show_host_port(host, *port))
    }

    /// The other hosts.
    pub fn peers(&self) -> Vec<Peer> {
        let config = self.settings.current();
        let others =
            config.fleet.link.iter().flat_map(|link| &link.hosts).filter(|(host, _)| **host != config.fleet.host);
        others.map(|(host, address)| Peer { host: host.clone(), address: address.clone() }).collect()
    }

    /// Another host of this name; an error names the remedy.
    pub fn peer(&self, host: &str) -> Result<Peer, Failure> {
        self.peers().into_iter().find(|peer| peer.host == host).ok_or_else(|| {
            let text = format!("host {host} is not among hosts in [fleet] of this host; run the command there");
            Failure::new(ErrorKind::Conflict, text)
        })
    }

    /// Waits for the turn of a transfer of cached data, which ends with the permit.
    pub async fn wait_for_transfer(&self) -> SemaphorePermit<'_> {
        self.transfers.acquire().await.expect("the semaphore is never closed")
    }

    /// Sends a request to another host and waits for its result.
    pub async fn ask(&self, peer: &Peer, request: &Request, progress: &ProgressSender) -> Result<Answer, Failure> {
        let forward = |reported: messages::Progress| progress.forward(reported);
        peer.ask(self.client()?, request, forward).await.map_err(|error| failure_of(&error))
    }

    /// The TLS configuration of connections to other hosts.
    fn client(&self) -> Result<Arc<ClientConfig>, Failure> {
        let client = self.identity.borrow().as_ref().map(|identity| Arc::clone(&identity.client));
        client.ok_or_else(|| {
            let text = self.problem().unwrap_or_else(|| "this host has no link to the others yet".to_owned());
            Failure::new(ErrorKind::Unavailable, text)
        })
    }

    /// Opens a tunnel to the server on another host that the request names.
    pub async fn open_tunnel(
        &self,
        peer: &Peer,
        request: &Request,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, Failure> {
        peer.open_tunnel(self.client()?, request).await.map_err(|error| failure_of(&error))
    }

    /// As [`FleetLink::ask`], without a client that watches the progress. Without an answer within `limit` the host has
    /// failed, and may carry the request out nevertheless.
    pub async fn ask_within(&self, limit: Duration, peer: &Peer, request: &Request) -> Result<Answer, Failure> {
        let (progress, _) = ProgressSender::new();
        tokio::time::timeout(limit, self.ask(peer, request, &progress)).await.unwrap_or_else(|_| {
            let text = format!("host {} has not answered within {} s", peer.host, limit.as_secs());
            Err(Failure::new(ErrorKind::Unavailable, text))
        })
    }

    /// As [`FleetLink::ask_within`], of all other hosts at once.
    pub async fn ask_all(&self, limit: Duration, request: &Request) -> Vec<(Peer, Result<Answer, Failure>)> {
        let ask = async |peer: Peer| {
            let answer = self.ask_within(limit, &peer, request).await;
            (peer, answer)
        };
        join_all(self.peers().into_iter().map(ask)).await
    }

    /// Reads the files and binds the socket, as often as necessary.
    async fn listen(&self, own: &str, link: &LinkConfig) -> TcpListener {
        loop {
            match self.try_listen(own, link).await {
                Ok(listener) => {
                    self.unavailable.replace(None);
                    return listener;
                }
                Err(reason) => {
                    let repeated = self.unavailable.replace(Some(reason.clone()));
                    if repeated.is_none_or(|repeated| repeated != reason) {
                        log::error!(target: FLEET, "{reason}; retrying, volumes are served without the link");
                    }
                }
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn try_listen(&self, own: &str, link: &LinkConfig) -> Result<TcpListener, String> {
        let identity = link.files.read_host(own).map_err(|error| format!("[fleet] TLS: {error}"))?;
        let chain = identity.chain.clone();
        self.identity.replace(Some(identity));
        let address = &link.hosts[own];
        let listener = TcpListener::bind((address.0.as_str(), address.1)).await.map_err(|error| {
            let error = explain_in_use(error, &Address::Tcp(address.0.clone(), address.1));
            format!("[fleet] cannot listen on {}: {error}", show_host_port(&address.0, address.1))
        })?;
        let (identity, host) = (self.identity.clone(), own.to_owned());
        self.certificates.set_fleet(ListenerCertificate::with_renewal(&link.files, chain, move |files| {
            let renewed = files.read_host(&host)?;
            let chain = renewed.chain.clone();
            identity.replace(Some(renewed));
            Ok(chain)
        }));
        let place = show_host_port(&address.0, address.1);
        log::info!(target: FLEET, "[fleet] host {own} listens on {place} for other hosts");
        Ok(listener)
    }
}

fn failure_of(error: &LinkError) -> Failure {
    let kind = match error {
        LinkError::Failed { failure, .. } => failure.kind,
        LinkError::Broken { .. } => ErrorKind::Failed,
        LinkError::Unreachable { .. } | LinkError::Untrusted { .. } => ErrorKind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}
