//! The handshake with the daemon's NBD server. The kernel continues on the same socket, so not a byte beyond the
//! handshake is read.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nbd_protocol::greeting::{GREETING_BYTES, client_flags, decode_greeting};
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::option::push_option;
use nbd_protocol::{Decoded, OptionKind, OptionReplyHeader, OptionReplyKind, ProtocolError, Step};

/// Time-out of each step; the daemon is on this machine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of replies to one option.
const REPLIES_MAX: usize = 64;
/// Smallest request if the server states none, as in the protocol.
const SECTOR_BYTES: u32 = 512;

/// A connection after its handshake, with the negotiated properties.
pub struct Connection {
    socket: Socket,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Transmission flags, as on the wire.
    pub flags: u16,
    /// Size of the smallest request.
    pub block_bytes: u32,
}

impl Connection {
    /// The connection, for the kernel.
    pub fn socket(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The best of the daemon's listening addresses: a Unix socket is preferred.
pub fn best_address(listen: &[String]) -> Option<&str> {
    let address_of = |scheme: &str| listen.iter().find(|address| address.starts_with(scheme));
    address_of("unix:").or_else(|| address_of("tcp:")).map(String::as_str)
}

/// Connects to `address` (`unix:PATH`, `tcp:HOST:PORT`) and selects `export`.
pub fn connect_to_export(address: &str, export: &str) -> io::Result<Connection> {
    let mut socket = connect(address)?;
    let properties = negotiate(socket.stream(), export, OptionKind::Go)?;
    socket.clear_timeouts()?;
    Ok(Connection {
        socket,
        size_bytes: properties.size_bytes,
        flags: properties.flags,
        block_bytes: properties.block_bytes,
    })
}

/// Queries the current size of `export`.
pub fn query_size_bytes(address: &str, export: &str) -> io::Result<u64> {
    let mut socket = connect(address)?;
    let stream = socket.stream();
    let properties = negotiate(stream, export, OptionKind::Info)?;
    let mut abort = Vec::new();
    push_option(&mut abort, OptionKind::Abort, &[]);
    // The size is known; the server's reaction to the abort does not matter.
    let _ = stream.write_all(&abort);
    Ok(properties.size_bytes)
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Socket {
    fn stream(&mut self) -> &mut dyn Stream {
        match self {
            Socket::Unix(stream) => stream,
            Socket::Tcp(stream) => stream,
        }
    }

    /// Removes the time-outs: the kernel waits without a limit.
    fn clear_timeouts(&self) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None)),
            Socket::Tcp(stream) => stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None)),
        }
    }
}

fn connect(address: &str) -> io::Result<Socket> {
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(Path::new(path))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        return Ok(Socket::Unix(stream));
    }
    let host_and_port = address.strip_prefix("tcp:").ok_or(io::ErrorKind::Unsupported)?;
    let stream = TcpStream::connect(host_and_port)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(Socket::Tcp(stream))
}

struct ExportProperties {
    size_bytes: u64,
    flags: u16,
    block_bytes: u32,
}

/// Runs the handshake up to the answer to `option`, which is `Go` or `Info`.
fn negotiate(stream: &mut dyn Stream, export: &str, option: OptionKind) -> io::Result<ExportProperties> {
    let greeting = read_array::<GREETING_BYTES>(stream)?;
    let mut request = client_flags(complete(decode_greeting(&greeting))?).map_err(protocol_error)?.to_vec();
    let info_request =
        InfoRequest { name: export, wants_block_size: true, wants_name: false, wants_description: false };
    push_option(&mut request, option, &info_request.encode());
    stream.write_all(&request)?;
    let mut export_info = None;
    let mut block_bytes = SECTOR_BYTES;
    for _ in 0..REPLIES_MAX {
        let header = read_array::<{ OptionReplyHeader::BYTES }>(stream)?;
        let header = complete(OptionReplyHeader::decode(&header))?;
        let mut payload = vec![0; header.len as usize];
        stream.read_exact(&mut payload)?;
        match header.kind {
            OptionReplyKind::Info => match Info::parse(&payload).map_err(protocol_error)? {
                Info::Export { size_bytes, flags } => export_info = Some((size_bytes, flags)),
                Info::BlockSize { min, .. } => block_bytes = min.max(SECTOR_BYTES),
                _ => (),
            },
            OptionReplyKind::Ack => {
                let (size_bytes, flags) = export_info.ok_or_else(|| io::Error::other("the daemon reports no size"))?;
                return Ok(ExportProperties { size_bytes, flags, block_bytes });
            }
            OptionReplyKind::ErrTlsRequired => {
                let text = "the daemon requires TLS of NBD clients, which the kernel does not support; set [nbd] tls = \
                     \"allowed\"";
                return Err(io::Error::other(text));
            }
            _ => return Err(io::Error::other(String::from_utf8_lossy(&payload).into_owned())),
        }
    }
    Err(io::Error::other("the daemon sends an endless reply"))
}

fn read_array<const N: usize>(stream: &mut dyn Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The value decoded from a complete message.
fn complete<T>(decoded: Decoded<T>) -> io::Result<T> {
    match decoded.map_err(protocol_error)? {
        Step::Got(value, _) => Ok(value),
        Step::Incomplete(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn protocol_error(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd_protocol::flags::{HAS_FLAGS, READ_ONLY};
    use nbd_protocol::greeting::greeting;
    use nbd_protocol::option::push_option_reply;
    use std::os::unix::net::UnixListener;

    /// A server that sends these replies to the first option, followed by one byte that belongs to the kernel.
    fn server(replies: Vec<(OptionReplyKind, Vec<u8>)>) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        let path = folder.path().join("nbd.sock");
        let listener = UnixListener::bind(&path).expect("the socket is new");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client connects");
            let mut out = greeting().to_vec();
            for (kind, payload) in replies {
                push_option_reply(&mut out, OptionKind::Go, kind, &payload);
            }
            out.push(b'!');
            stream.write_all(&out).expect("the client reads");
            // Keeps the connection open until the client has closed it.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let address = format!("unix:{}", path.display());
        (folder, address)
    }

    #[test]
    fn handshake_leaves_the_next_byte_to_the_kernel() {
        let infos = [
            Info::Export { size_bytes: 1 << 30, flags: HAS_FLAGS | READ_ONLY },
            Info::Other(77),
            Info::BlockSize { min: 4096, preferred: 4096, max: 1 << 20 },
        ];
        let mut replies: Vec<_> = infos.iter().map(|info| (OptionReplyKind::Info, info.encode())).collect();
        replies.push((OptionReplyKind::Ack, Vec::new()));
        let (_folder, address) = server(replies);
        let mut connection = connect_to_export(&address, "v").expect("the export is offered");
        assert_eq!(
            (connection.size_bytes, connection.flags, connection.block_bytes),
            (1 << 30, HAS_FLAGS | READ_ONLY, 4096)
        );
        assert_eq!(read_array::<1>(connection.socket.stream()).expect("a byte follows"), *b"!");
    }

    #[test]
    fn refused_export_reports_the_reason() {
        let (_folder, address) = server(vec![(OptionReplyKind::ErrUnknown, b"no export is named \"v\"".to_vec())]);
        let Err(error) = connect_to_export(&address, "v") else { panic!("the export must be refused") };
        assert_eq!(error.to_string(), "no export is named \"v\"");
        let (_folder, address) = server(vec![(OptionReplyKind::ErrTlsRequired, Vec::new())]);
        let Err(error) = connect_to_export(&address, "v") else { panic!("the export must be refused") };
        assert!(error.to_string().contains("TLS"), "{error}");
    }

    #[test]
    fn server_with_endless_replies_is_abandoned() {
        let reply = (OptionReplyKind::Info, Info::Other(77).encode());
        let (_folder, address) = server(vec![reply; REPLIES_MAX + 1]);
        let Err(error) = connect_to_export(&address, "v") else { panic!("the handshake must fail") };
        assert!(error.to_string().contains("endless reply"), "{error}");
    }

    #[test]
    fn unix_socket_is_preferred_to_a_tcp_address() {
        let listen = ["iscsi:127.0.0.1:3260", "tcp:127.0.0.1:10809", "unix:/run/hotset/nbd.sock"].map(str::to_owned);
        assert_eq!(best_address(&listen), Some("unix:/run/hotset/nbd.sock"));
        assert_eq!(best_address(&listen[..2]), Some("tcp:127.0.0.1:10809"));
        assert_eq!(best_address(&listen[..1]), None);
    }
}
