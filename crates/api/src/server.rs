//! The HTTP server: accepts connections, and limits their number, the size of requests and the time of each step.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use control::Handler;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use messages::StatusSample;
use rustls::ServerConfig;
use seam::real::count_accept_error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::control_handle::{self, ControlHandle};
use crate::guard::Peer;
use crate::routes;
use crate::shared::{Options, Shared};
use crate::stream::Hub;

/// Maximum number of connections; further ones wait until one ends.
const CONNECTIONS_MAX: usize = 256;
/// Length of the kernel's queue of unaccepted connections.
const BACKLOG: u32 = 128;
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum size of a request's line and headers together.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 64;
/// Time-out of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The only protocol under TLS, offered by ALPN.
const ALPN_PROTOCOL: &[u8] = b"http/1.1";
/// Time-out for a request's headers, and for the next request on a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for a client that receives nothing of its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds the ALPN protocol to a TLS configuration made from a server's certificate and key.
pub fn with_alpn(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    Arc::new(config)
}

/// Listens at `address`.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a predecessor that are still closing must not prevent listening.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `stop` becomes true; `samples` feeds the stream. Runs inside a `LocalSet` of a current-thread runtime.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    handler: Rc<H>,
    access: Arc<Access>,
    options: Options,
    samples: watch::Receiver<Arc<StatusSample>>,
    mut stop: watch::Receiver<bool>,
) {
    let (control, queue) = ControlHandle::new();
    tokio::task::spawn_local(control_handle::handle_requests(queue, handler));
    let hub = Arc::new(Hub::new(samples));
    let sampling = tokio::task::spawn_local(hub.clone().sample());
    let tls = options.tls.clone();
    let router = routes::router(Arc::new(Shared { control, access, hub, options }));
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accept = async {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            listener.accept().await.map(|(stream, peer)| (permit, stream, peer))
        };
        let accepted = tokio::select! {
            accepted = accept => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((permit, stream, peer)) => {
                let (router, stop) = (router.clone(), stop.clone());
                let tls = tls.as_ref().map(|tls| tls.borrow().clone());
                tokio::task::spawn_local(async move {
                    serve_client(stream, peer, tls, router, stop).await;
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
    sampling.abort();
}

async fn serve_client(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    // Responses are written whole, so Nagle's algorithm only delays them.
    let _ = stream.set_nodelay(true);
    let stream = with_write_timeout(stream, WRITE_TIMEOUT);
    let Some(config) = tls else { return serve_http(stream, peer, router, stop).await };
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream));
    let handshaken = tokio::select! {
        handshaken = handshake => handshaken,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    // A client that was too slow, speaks no TLS or does not trust the certificate is dropped without a message.
    if let Ok(Ok(stream)) = handshaken {
        serve_http(stream, peer, router, stop).await;
    }
}

/// A connection whose writes fail when no byte could be sent for `timeout`. Without it, responses to a client that
/// reads nothing would be kept for ever.
fn with_write_timeout<S: AsyncRead + AsyncWrite>(stream: S, timeout: Duration) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeout));
    Box::pin(stream)
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error means that the client disconnected or broke the protocol. Its connection is closed without a message.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn writes_time_out_for_a_stalled_client_but_not_for_a_slow_one() {
        let timeout = Duration::from_millis(200);
        let (mut client, server) = tokio::io::duplex(16);
        let mut server = with_write_timeout(server, timeout);
        let slow = async {
            let mut received = [0; 8];
            for _ in 0..8 {
                tokio::time::sleep(timeout / 4).await;
                client.read_exact(&mut received).await.expect("the server sends");
            }
        };
        let (sent, ()) = tokio::join!(server.write_all(&[7; 64]), slow);
        sent.expect("each write makes progress");
        let failed = server.write_all(&[7; 64]).await.expect_err("the client reads nothing");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}
