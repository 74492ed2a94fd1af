//! Requests of other hosts.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Actor, Connections, Handler, Limits};
use seam::real::count_accept_error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::{HANDSHAKE_TIMEOUT, prepare};

/// Maximum number of connections; further ones wait until one ends.
const CONNECTIONS_MAX: usize = 128;
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reason why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No TLS connection: too slow, another protocol, or a certificate that is not trusted.
    #[error("no TLS connection: {0}")]
    Handshake(io::Error),
    /// A trusted certificate that has the name of no other host.
    #[error("its certificate is for none of the other hosts in [fleet] hosts")]
    UnknownHost,
}

/// Serves requests of the hosts named `hosts` until `stop` becomes true; `handler` carries them out for
/// [`Actor::Host`]. `tls` is the configuration of new connections. Runs inside a `LocalSet` of a current-thread
/// runtime.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    hosts: Vec<String>,
    tls: impl Fn() -> Arc<ServerConfig>,
    handler: Rc<H>,
    on_refusal: fn(SocketAddr, Refusal),
    mut stop: watch::Receiver<bool>,
) {
    let (permits, hosts) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Rc::new(hosts));
    let connections = Rc::new(Connections::new(handler, Limits::default()));
    loop {
        let accept = async {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            listener.accept().await.map(|(stream, address)| (permit, stream, address))
        };
        let accepted = tokio::select! {
            accepted = accept => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match accepted {
            Ok((permit, stream, address)) => {
                let (hosts, tls, connections) = (hosts.clone(), tls(), connections.clone());
                tokio::task::spawn_local(async move {
                    match accept_host(stream, tls, &hosts).await {
                        // An error means that the other host disconnected.
                        Ok((stream, host)) => drop(connections.serve(stream, Actor::Host(host)).await),
                        Err(refusal) => on_refusal(address, refusal),
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                count_accept_error(&error);
                // File descriptors may become free meanwhile.
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Performs the handshake; returns the name of the host at the other end.
async fn accept_host(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    hosts: &[String],
) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, String), Refusal> {
    prepare(&stream).map_err(Refusal::Handshake)?;
    let handshaken = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await;
    let stream = handshaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Refusal::Handshake)?;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(<[_]>::first).ok_or(Refusal::UnknownHost)?;
    let host = hosts.iter().find(|host| tls::is_of_host(certificate, host)).ok_or(Refusal::UnknownHost)?;
    let host = host.clone();
    Ok((stream, host))
}
