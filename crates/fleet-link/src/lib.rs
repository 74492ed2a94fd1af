//! The link between the hosts of a fleet. Requests and answers are those of the control socket; the transport is TCP
//! with TLS, in which both sides prove the name of their host by a certificate of the fleet's authority.
//!
//! A connection carries the requests of one action, or it is a tunnel to the server of a volume. Idle hosts exchange
//! nothing.

mod peer;
mod server;

pub use peer::{LinkError, Peer};
pub use server::{Refusal, Tunnels, serve};

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// The protocol of a connection that carries requests, offered by ALPN.
const REQUESTS: &[u8] = b"hotset-request/1";
/// The protocol of a tunnel: a request and its result, then the bytes of both ends.
const TUNNEL: &[u8] = b"hotset-tunnel/1";
/// Time-out of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without data after which the kernel probes the other host.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Pause between two probes.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(2);
/// Number of probes without an answer after which the connection breaks: a host that died is noticed after 11 s.
const KEEPALIVE_PROBES: u32 = 3;
/// Time without an acknowledgement of sent data after which the connection breaks, in milliseconds.
const UNACKNOWLEDGED_MS_MAX: u32 = 11_000;

/// Prepares a connection for short messages, and for the death of the other host.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX)?)
}
