//! Requests of other hosts.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Actor, Connections, Handler, Limits, receive_request, send_result};
use messages::{Answer, Failure, Request};
use seam::real::count_accept_error;
use tokio::io::{BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::{HANDSHAKE_TIMEOUT, REQUESTS, TUNNEL, prepare};

/// Maximum number of connections; further ones wait until one ends. Each volume on standby has a tunnel.
const CONNECTIONS_MAX: usize = 4096;
/// Time-out for the request of a tunnel and its result.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
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

/// Opens tunnels for other hosts.
pub trait Tunnels: 'static {
    /// Connects to the server that the request names; also returns the result of the request.
    fn open(self: Rc<Self>, request: Request) -> impl Future<Output = Result<(UnixStream, Answer), Failure>>;
}

/// Serves requests of the hosts named `hosts` until `stop` becomes true; `handler` carries them out for
/// [`Actor::Host`], and opens tunnels. `tls` is the configuration of new connections. Runs inside a `LocalSet` of a
/// current-thread runtime.
pub async fn serve<H: Handler + Tunnels>(
    listener: TcpListener,
    hosts: Vec<String>,
    tls: impl Fn() -> Arc<ServerConfig>,
    handler: Rc<H>,
    on_refusal: fn(SocketAddr, Refusal),
    mut stop: watch::Receiver<bool>,
) {
    let (permits, hosts) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Rc::new(hosts));
    let connections = Rc::new(Connections::new(handler.clone(), Limits::default()));
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
                let handler = handler.clone();
                tokio::task::spawn_local(async move {
                    match accept_host(stream, tls, &hosts).await {
                        // An error means that the other host disconnected.
                        Ok((stream, _)) if stream.get_ref().1.alpn_protocol() == Some(TUNNEL) => {
                            drop(serve_tunnel(stream, handler).await)
                        }
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

/// Serves a tunnel until one of its ends is closed.
async fn serve_tunnel<T: Tunnels>(
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    tunnels: Rc<T>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let opened = async {
        let request = receive_request(&mut stream).await?;
        let (server, result) = match tunnels.open(request).await {
            Ok((server, answer)) => (Some(server), Ok(answer)),
            Err(failure) => (None, Err(failure)),
        };
        send_result(&mut stream, result).await?;
        Ok::<_, io::Error>(server)
    };
    let opened = timeout(TUNNEL_TIMEOUT, opened).await;
    let Some(mut server) = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? else { return Ok(()) };
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

/// Performs the handshake; returns the name of the host at the other end.
async fn accept_host(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    hosts: &[String],
) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, String), Refusal> {
    prepare(&stream).map_err(Refusal::Handshake)?;
    let mut config = (*tls).clone();
    config.alpn_protocols = vec![REQUESTS.to_vec(), TUNNEL.to_vec()];
    let handshaken = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(Arc::new(config)).accept(stream)).await;
    let stream = handshaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Refusal::Handshake)?;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(<[_]>::first).ok_or(Refusal::UnknownHost)?;
    let host = hosts.iter().find(|host| tls::is_of_host(certificate, host)).ok_or(Refusal::UnknownHost)?;
    let host = host.clone();
    Ok((stream, host))
}
