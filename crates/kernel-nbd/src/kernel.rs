//! The kernel's NBD client, controlled by generic netlink: it turns connected sockets into block devices.
//!
//! The numbers are from the kernel's `include/uapi/linux/nbd-netlink.h` and `genetlink.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};

use super::netlink::{Attributes, Message, Reply, replies};

/// Time after which requests without a connection fail; a restart that replays a full flash log takes far less.
pub const DEAD_CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// Slow requests never time out: the daemon's disks may be slow, and a request that is sent twice may take effect
/// twice.
const NO_TIMEOUT: u64 = 0;
/// Longest datagram of the kernel; a family with all its groups is far shorter.
const DATAGRAM_BYTES_MAX: usize = 16 << 10;

const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const FAMILY_GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;

const FAMILY: &str = "nbd";
const GROUP: &str = "nbd_mc_group";
const VERSION: u8 = 1;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const LINK_DEAD: u8 = 4;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// Relevant `errno` numbers.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENOBUFS: i32 = 105;

/// Reason why a kernel operation failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The module is not loaded.
    #[error("this kernel has no NBD client; load it with `modprobe nbd`")]
    NoModule,
    /// The process lacks root privileges.
    #[error("only root can create block devices: run the command as root")]
    NotAllowed,
    /// Any other error.
    #[error("the kernel refuses to {operation}: {error}; `dmesg` may show the reason")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

/// The export behind a device: its connection and its properties.
pub struct Export<'a> {
    /// The connection, after its handshake.
    pub socket: BorrowedFd<'a>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of the smallest request.
    pub block_bytes: u32,
    /// Transmission flags of the export, as on the wire.
    pub flags: u16,
    /// Identifier by which the device is found.
    pub identifier: &'a str,
}

/// A netlink connection to the kernel's NBD client.
pub struct NbdNetlink {
    socket: Socket,
    family: u16,
    group: u32,
    sequence: u32,
}

impl NbdNetlink {
    /// Finds the kernel's NBD client.
    pub fn open() -> Result<NbdNetlink, KernelError> {
        let socket =
            open_socket().map_err(|error| KernelError::Refused { operation: "open a netlink socket", error })?;
        let mut kernel = NbdNetlink { socket, family: CONTROLLER, group: 0, sequence: 0 };
        let request = kernel.message(GET_FAMILY).text(FAMILY_NAME, FAMILY);
        let (mut family, mut group) = (None, None);
        let result = kernel.request("report its NBD client", request, |attributes| {
            family = family.or(attributes.u16(FAMILY_ID));
            let groups = attributes.nested(FAMILY_GROUPS).into_iter().map(|(_, inside)| Attributes::of(inside));
            let events = groups.into_iter().find(|group| group.find(GROUP_NAME) == Some(&terminated(GROUP)[..]));
            group = group.or(events.and_then(|events| events.u32(GROUP_ID)));
        });
        match (result, family, group) {
            (Ok(()), Some(family), Some(group)) => Ok(NbdNetlink { family, group, ..kernel }),
            (Ok(()), _, _) => Err(KernelError::NoModule),
            (Err(KernelError::Refused { error, .. }), _, _) if error.raw_os_error() == Some(ENOENT) => {
                Err(KernelError::NoModule)
            }
            (Err(error), _, _) => Err(error),
        }
    }

    /// Creates a device and returns its number.
    pub fn connect(&mut self, export: &Export<'_>) -> Result<u32, KernelError> {
        let request = connect_request(self.message(CONNECT), export);
        let mut index = None;
        self.request("create a device", request, |attributes| index = index.or(attributes.u32(INDEX)))?;
        index.ok_or_else(|| KernelError::Refused {
            operation: "report the number of the new device",
            error: io::ErrorKind::InvalidData.into(),
        })
    }

    /// Gives a new connection to a device that has lost its own. A device whose connection is alive keeps it, and the
    /// new one is dropped.
    pub fn reconnect(&mut self, index: u32, export: &Export<'_>) -> Result<(), KernelError> {
        let request = self.message(RECONFIGURE).u32(INDEX, index);
        let request = with_socket(request.text(BACKEND_IDENTIFIER, export.identifier), export.socket);
        self.request("accept a new connection", request, |_| ())
    }

    /// Changes the size of a device.
    pub fn resize(&mut self, index: u32, identifier: &str, size_bytes: u64) -> Result<(), KernelError> {
        let request = self.message(RECONFIGURE).u32(INDEX, index);
        let request = request.text(BACKEND_IDENTIFIER, identifier).u64(SIZE_BYTES, size_bytes);
        self.request("accept the new size", request, |_| ())
    }

    /// Disconnects a device.
    pub fn disconnect(&mut self, index: u32) -> Result<(), KernelError> {
        let request = self.message(DISCONNECT).u32(INDEX, index);
        self.request("disconnect the device", request, |_| ())
    }

    /// Subscribes to events of devices.
    pub fn events(&self) -> Result<Events, KernelError> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_GENERIC)?;
            socket.socket_mut().bind_auto()?;
            socket.socket_ref().add_membership(self.group)?;
            Ok(socket)
        };
        let socket = open().map_err(|error| KernelError::Refused { operation: "report lost connections", error })?;
        Ok(Events { socket, family: self.family })
    }

    fn message(&mut self, command: u8) -> Message {
        self.sequence += 1;
        Message::new(self.family, command, VERSION, self.sequence)
    }

    /// Sends a request and reads replies until its end. The kernel has queued all replies when the send returns.
    fn request(
        &mut self,
        operation: &'static str,
        request: Message,
        mut on_message: impl FnMut(Attributes<'_>),
    ) -> Result<(), KernelError> {
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(EPERM) => KernelError::NotAllowed,
            _ => KernelError::Refused { operation, error },
        };
        self.socket.send(&request.finish(), 0).map_err(refused)?;
        loop {
            let mut bytes = Vec::with_capacity(DATAGRAM_BYTES_MAX);
            self.socket.recv(&mut bytes, 0).map_err(refused)?;
            for reply in replies(&bytes) {
                match reply {
                    Reply::Message { attributes, .. } => on_message(attributes),
                    Reply::End(0) => return Ok(()),
                    Reply::End(error) => return Err(refused(io::Error::from_raw_os_error(error))),
                }
            }
        }
    }
}

/// Events of devices that lose their connection.
pub struct Events {
    socket: TokioSocket,
    family: u16,
}

impl Events {
    /// Waits until the device may have lost its connection. An overflow of the event queue counts as a loss, because an
    /// event may be missing.
    pub async fn wait_for_link_dead(&self, index: u32) -> io::Result<()> {
        loop {
            let mut bytes = Vec::with_capacity(DATAGRAM_BYTES_MAX);
            match self.socket.recv(&mut bytes).await {
                Ok(_) if is_link_dead_event(&bytes, self.family, index) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => (),
            }
        }
    }
}

fn is_link_dead_event(bytes: &[u8], family: u16, index: u32) -> bool {
    let is_of_family = bytes.get(4..6) == Some(&family.to_ne_bytes());
    let is_link_dead = |reply: Reply<'_>| match reply {
        Reply::Message { command: LINK_DEAD, attributes } => attributes.u32(INDEX) == Some(index),
        _ => false,
    };
    is_of_family && replies(bytes).any(is_link_dead)
}

/// Opens a non-blocking socket: the kernel's replies are available as soon as the request is sent.
fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

fn connect_request(message: Message, export: &Export<'_>) -> Message {
    let message = message
        .u64(SIZE_BYTES, export.size_bytes)
        .u64(BLOCK_SIZE_BYTES, export.block_bytes.into())
        .u64(TIMEOUT, NO_TIMEOUT)
        .u64(SERVER_FLAGS, export.flags.into())
        .u64(CLIENT_FLAGS, 0)
        .u64(DEAD_CONN_TIMEOUT, DEAD_CONNECTION_TIMEOUT.as_secs())
        .text(BACKEND_IDENTIFIER, export.identifier);
    with_socket(message, export.socket)
}

fn with_socket(message: Message, socket: BorrowedFd<'_>) -> Message {
    let number = u32::try_from(socket.as_raw_fd()).expect("an open descriptor is not negative");
    message.nested(SOCKETS, |sockets| sockets.nested(SOCKET_ITEM, |item| item.u32(SOCKET_FD, number)))
}

/// Text as the kernel sends it, zero-terminated.
fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const NBD_FAMILY: u16 = 0x1d;

    /// The attributes that the kernel would read from a request.
    fn attributes(request: &[u8]) -> Attributes<'_> {
        match replies(request).next() {
            Some(Reply::Message { attributes, .. }) => attributes,
            other => panic!("no request: {other:?}"),
        }
    }

    fn number(value: Option<&[u8]>) -> Option<u64> {
        value?.try_into().ok().map(u64::from_ne_bytes)
    }

    #[test]
    fn connect_request_has_all_attributes_and_no_timeout() {
        let socket = std::fs::File::open("/dev/null").expect("/dev/null exists");
        let export = Export {
            socket: socket.as_fd(),
            size_bytes: 5 << 40,
            block_bytes: 512,
            flags: 0x56d,
            identifier: "hotset:00c0ffee00c0ffee/web01",
        };
        let request = connect_request(Message::new(NBD_FAMILY, CONNECT, VERSION, 1), &export).finish();
        let sent = attributes(&request);
        let numbers = [
            (SIZE_BYTES, 5 << 40),
            (BLOCK_SIZE_BYTES, 512),
            (TIMEOUT, 0),
            (SERVER_FLAGS, 0x56d),
            (CLIENT_FLAGS, 0),
            (DEAD_CONN_TIMEOUT, 600),
        ];
        for (kind, expected) in numbers {
            assert_eq!(number(sent.find(kind)), Some(expected), "attribute {kind}");
        }
        assert_eq!(sent.find(BACKEND_IDENTIFIER), Some(&b"hotset:00c0ffee00c0ffee/web01\0"[..]));
        let item = sent.nested(SOCKETS).nested(SOCKET_ITEM);
        assert_eq!(item.u32(SOCKET_FD), u32::try_from(socket.as_raw_fd()).ok());
        assert_eq!(sent.find(INDEX), None, "the kernel chooses the device number");
    }

    #[test]
    fn lost_connection_matches_its_device_and_family_only() {
        let event = |family, command, index| Message::new(family, command, VERSION, 0).u32(INDEX, index).finish();
        assert!(is_link_dead_event(&event(NBD_FAMILY, LINK_DEAD, 3), NBD_FAMILY, 3));
        for other in [
            event(NBD_FAMILY, LINK_DEAD, 4),
            event(NBD_FAMILY + 1, LINK_DEAD, 3),
            event(NBD_FAMILY, CONNECT, 3),
            Vec::new(),
        ] {
            assert!(!is_link_dead_event(&other, NBD_FAMILY, 3), "{other:?}");
        }
    }
}
