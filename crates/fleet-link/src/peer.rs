//! Requests to another host.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use control::{ExchangeError, exchange};
use messages::{Answer, Failure, Progress, Request};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;

use crate::{HANDSHAKE_TIMEOUT, REQUESTS, TUNNEL, prepare};

/// Time-out of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Another host, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, for which its certificate has to be valid.
    pub host: String,
    /// Its network name or address, and the port.
    pub address: (String, u16),
}

/// Reason why another host has not answered.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection.
    #[error("host {host} cannot be reached at {address}: {cause}; check that its daemon runs, and its entry in hosts")]
    Unreachable {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The error.
        cause: io::Error,
    },
    /// The two hosts do not trust each other's certificate.
    #[error(
        "host {host} at {address} and this host have no TLS connection: {cause}; check certificate and tls_ca of both"
    )]
    Untrusted {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The error.
        cause: io::Error,
    },
    /// The connection broke before the answer; whether the request was carried out is unknown.
    #[error("the connection to host {host} at {address} broke: {cause}; look at its log")]
    Broken {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The error.
        cause: io::Error,
    },
    /// The host refused or failed.
    #[error("host {host}: {failure}")]
    Failed {
        /// The host.
        host: String,
        /// Its reason.
        failure: Failure,
    },
}

impl Peer {
    /// Its address as in the configuration.
    pub fn show_address(&self) -> String {
        units::show_host_port(&self.address.0, self.address.1)
    }

    /// Sends a request and waits for its result.
    pub async fn ask(
        &self,
        tls: Arc<ClientConfig>,
        request: &Request,
        on_progress: impl FnMut(Progress),
    ) -> Result<Answer, LinkError> {
        let mut stream = self.connect(tls, REQUESTS).await?;
        exchange(&mut stream, request, on_progress).await.map_err(|error| self.exchange_error(error))
    }

    /// Opens a tunnel to the server that the request names. The result comes first, then that server's bytes.
    pub async fn open_tunnel(
        &self,
        tls: Arc<ClientConfig>,
        request: &Request,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, LinkError> {
        let mut stream = self.connect(tls, TUNNEL).await?;
        exchange(&mut stream, request, |_| ()).await.map_err(|error| self.exchange_error(error))?;
        Ok(stream)
    }

    async fn connect(
        &self,
        tls: Arc<ClientConfig>,
        protocol: &[u8],
    ) -> Result<BufReader<TlsStream<TcpStream>>, LinkError> {
        let (host, address, (name, port)) = (self.host.clone(), self.show_address(), &self.address);
        let connected = match timeout(CONNECT_TIMEOUT, TcpStream::connect((name.as_str(), *port))).await {
            Ok(connected) => connected.and_then(|stream| prepare(&stream).map(|()| stream)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let stream = match connected {
            Ok(stream) => stream,
            Err(cause) => return Err(LinkError::Unreachable { host, address, cause }),
        };
        let mut config = (*tls).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let handshaken = match tls::name_in_certificate(&host) {
            Some(name) => match timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream)).await {
                Ok(handshaken) => handshaken,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
            None => Err(io::Error::other("no certificate can have the name of the host")),
        };
        handshaken.map(BufReader::new).map_err(|cause| LinkError::Untrusted { host, address, cause })
    }

    fn exchange_error(&self, error: ExchangeError) -> LinkError {
        let (host, address) = (self.host.clone(), self.show_address());
        match error {
            // Under TLS 1.3 a host refuses the certificate of a client after the handshake.
            ExchangeError::Broken(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                LinkError::Untrusted { host, address, cause }
            }
            ExchangeError::Broken(cause) => LinkError::Broken { host, address, cause },
            ExchangeError::Failed(failure) => LinkError::Failed { host, failure },
        }
    }
}
