//! Connected sockets, Unix and TCP.
//!
//! Sends and receives first try the system call without waiting (a *direct call*): if the peer keeps up, a request
//! costs only the socket's two system calls. A call that would block goes to io_uring. So do the next few receives
//! after it, because a client with one request at a time has not yet sent the next one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use compio::BufResult;
use compio::runtime::Runtime;

use super::op::{Action, IOV_MAX, Operation, submit};
use super::path_call::{PATH_TIMEOUT, PathCall};
use super::self_connection::connects_to_self;
use super::{RealBlockMut, RealSeam};
use crate::{Address, ByteStream, Gather, Part, PieceMut, StreamReader, StreamWriter};

/// Maximum number of receives that skip the direct call after one has found no data.
const DIRECT_SKIPS_MAX: u32 = 3;
/// Number of consecutive direct calls that succeed, after which the other tasks of the core run.
const DIRECT_CALLS_MAX: u32 = 16;

/// A connected socket.
pub struct RealStream {
    socket: OwnedFd,
    connects_to_self: bool,
}

impl RealStream {
    /// A connected stream socket, in blocking mode, as a stream of this core. Requests on TCP are sent without delay
    /// (TCP_NODELAY).
    pub fn from_fd(socket: OwnedFd) -> RealStream {
        let yes: libc::c_int = 1;
        // SAFETY: the option's value is an int that outlives the call. A Unix socket refuses the option, which is
        // harmless.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY,
                (&raw const yes).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        RealStream { socket, connects_to_self: false }
    }

    /// The socket itself, for a protocol that passes descriptors.
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }
}

impl ByteStream<RealSeam> for RealStream {
    type Reader = RealReader;
    type Writer = RealWriter;

    fn local_address(&self) -> Option<Address> {
        let copy = self.socket.try_clone().ok()?;
        let address = std::net::TcpStream::from(copy).local_addr().ok()?;
        Some(Address::Tcp(address.ip().to_canonical().to_string(), address.port()))
    }

    fn connects_to_self(&self) -> bool {
        self.connects_to_self
    }

    fn split(self) -> (RealReader, RealWriter) {
        let socket = Rc::new(self.socket);
        let reader =
            RealReader { socket: socket.clone(), iov: Vec::new(), direct_calls: 0, skips_left: 0, last_skips: 0 };
        (reader, RealWriter { socket, iov: Vec::new(), direct_calls: 0, is_rejoined: false })
    }

    fn join(reader: RealReader, mut writer: RealWriter) -> io::Result<RealStream> {
        assert!(Rc::ptr_eq(&reader.socket, &writer.socket), "two directions of one stream");
        let socket = writer.socket.try_clone()?;
        writer.is_rejoined = true;
        Ok(RealStream { socket, connects_to_self: false })
    }
}

/// Connects on a helper thread, because name resolution, a full backlog and the path of a socket block.
pub(super) async fn connect(to: &Address) -> io::Result<RealStream> {
    let connected = |socket: OwnedFd| {
        let connects_to_self = connects_to_self(&socket);
        (socket, connects_to_self)
    };
    let (socket, connects_to_self) = match to.clone() {
        Address::Unix(path) => {
            let call = PathCall::start(&path.clone(), move |_| {
                std::os::unix::net::UnixStream::connect(path).map(|socket| connected(socket.into()))
            });
            call.answer(PATH_TIMEOUT, compio::runtime::time::sleep).await??
        }
        Address::Tcp(host, port) => {
            let connecting = compio::runtime::spawn_blocking(move || {
                std::net::TcpStream::connect((host.as_str(), port)).map(|socket| connected(socket.into()))
            });
            connecting.await??
        }
    };
    Ok(RealStream { connects_to_self, ..RealStream::from_fd(socket) })
}

/// Converts the result of a system call to a count.
fn count(result: isize) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// Repeats `call` while it is interrupted; `None` if it would block.
fn direct(mut call: impl FnMut() -> isize) -> Option<io::Result<usize>> {
    loop {
        match count(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            other => return Some(other),
        }
    }
}

/// Maps the cancellation by an interrupter to `Interrupted`; a cancelled operation has transferred no bytes.
fn map_cancelled(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Err(io::ErrorKind::Interrupted.into()),
        other => other,
    }
}

/// Yields to other tasks after [`DIRECT_CALLS_MAX`] calls without waiting.
async fn yield_after_calls(direct_calls: &mut u32) {
    *direct_calls += 1;
    if *direct_calls >= DIRECT_CALLS_MAX {
        *direct_calls = 0;
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return std::task::Poll::Ready(());
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }
}

/// A message header over `iov`.
fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a zeroed `msghdr` is valid and empty.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len().min(IOV_MAX) as _;
    message
}

/// Removes `sent` bytes from the front of `iov`.
pub(super) fn advance(iov: &mut Vec<libc::iovec>, mut sent: usize) {
    let sent_buffers = iov.iter().take_while(|buffer| {
        let whole = buffer.iov_len <= sent;
        sent -= if whole { buffer.iov_len } else { 0 };
        whole
    });
    let sent_count = sent_buffers.count();
    iov.drain(..sent_count);
    if sent > 0 {
        let first = &mut iov[0];
        // SAFETY: `sent` is less than the buffer's length.
        first.iov_base = unsafe { first.iov_base.cast::<u8>().add(sent) }.cast();
        first.iov_len -= sent;
    }
}

/// Incoming direction of a socket.
pub struct RealReader {
    socket: Rc<OwnedFd>,
    /// Reused for its capacity.
    iov: Vec<libc::iovec>,
    direct_calls: u32,
    /// Receives that skip the direct call.
    skips_left: u32,
    /// Value of `skips_left` after the last direct receive without data.
    last_skips: u32,
}

impl RealReader {
    /// Tries a receive without waiting; `None` if no data has arrived or the try is skipped.
    fn try_direct(&mut self, call: impl FnMut() -> isize) -> Option<io::Result<usize>> {
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return None;
        }
        let result = direct(call);
        self.last_skips = if result.is_some() { 0 } else { (self.last_skips * 2 + 1).min(DIRECT_SKIPS_MAX) };
        self.skips_left = self.last_skips;
        result
    }
}

impl StreamReader<RealSeam> for RealReader {
    async fn read(&mut self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let fd = self.socket.as_raw_fd();
        let start = buffer.len();
        let room = buffer.spare_capacity_mut();
        assert!(!room.is_empty(), "a read needs room in its buffer");
        let (data, len) = (room.as_mut_ptr().cast::<libc::c_void>(), room.len());
        // SAFETY: `data` has room for `len` bytes, and no other code accesses it during the call.
        if let Some(result) = self.try_direct(|| unsafe { libc::recv(fd, data, len, libc::MSG_DONTWAIT) }) {
            if let Ok(got) = result {
                // SAFETY: the kernel has initialised `got` bytes from `start` on.
                unsafe { buffer.set_len(start + got) };
                yield_after_calls(&mut self.direct_calls).await;
            }
            return (result, buffer);
        }
        self.direct_calls = 0;
        let mut iov = std::mem::take(&mut self.iov);
        iov.clear();
        iov.push(libc::iovec { iov_base: data, iov_len: len });
        // SAFETY: the socket is open while its Rc lives. The buffer's memory is on the heap, does not move with the
        // Vec, and belongs to the operation.
        let operation = unsafe { Operation::new(Action::Receive, fd, self.socket.clone(), iov, buffer) };
        let BufResult(result, operation) = submit(operation).await;
        let (iov, mut buffer, _) = operation.into_parts();
        self.iov = iov;
        if let Ok(got) = result {
            // SAFETY: as above.
            unsafe { buffer.set_len(start + got) };
        }
        (map_cancelled(result), buffer)
    }

    fn interrupter(&self) -> Box<dyn Fn()> {
        let socket = self.socket.clone();
        Box::new(move || {
            let (fd, socket) = (socket.as_raw_fd(), socket.clone());
            let cancel = async move {
                // SAFETY: the socket is open while its Rc lives; no buffers are involved.
                let operation = unsafe { Operation::new(Action::Cancel, fd, socket, Vec::new(), ()) };
                // An error means that no operation was pending.
                let BufResult(Ok(_) | Err(_), _) = submit(operation).await;
            };
            Runtime::with_current(|runtime| runtime.spawn(cancel)).detach();
        })
    }

    async fn read_pieces(
        &mut self,
        mut pieces: Vec<PieceMut<RealBlockMut>>,
    ) -> (io::Result<()>, Vec<PieceMut<RealBlockMut>>) {
        let fd = self.socket.as_raw_fd();
        let mut iov = std::mem::take(&mut self.iov);
        iov.clear();
        iov.extend(pieces.iter().map(|piece| libc::iovec {
            // SAFETY: a piece lies inside its block.
            iov_base: unsafe { piece.block.data().add(piece.start()) }.cast(),
            iov_len: piece.len(),
        }));
        let result = loop {
            if iov.is_empty() {
                break Ok(());
            }
            let mut header = message(&mut iov);
            // SAFETY: the header names blocks that `pieces` owns alone.
            let result = match self.try_direct(|| unsafe { libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT) }) {
                Some(result) => {
                    yield_after_calls(&mut self.direct_calls).await;
                    result
                }
                None => {
                    self.direct_calls = 0;
                    let remaining_iov = iov.split_off(iov.len().min(IOV_MAX));
                    // SAFETY: the socket is open while its Rc lives; the operation owns `pieces` and thereby their
                    // blocks.
                    let operation = unsafe { Operation::new(Action::Receive, fd, self.socket.clone(), iov, pieces) };
                    let BufResult(result, operation) = submit(operation).await;
                    (iov, pieces, _) = operation.into_parts();
                    iov.extend(remaining_iov);
                    map_cancelled(result)
                }
            };
            match result {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => advance(&mut iov, got),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.iov = iov;
        (result, pieces)
    }
}

/// Outgoing direction of a socket.
pub struct RealWriter {
    socket: Rc<OwnedFd>,
    /// Reused for its capacity.
    iov: Vec<libc::iovec>,
    direct_calls: u32,
    /// The directions were joined again, so the stream continues.
    is_rejoined: bool,
}

impl StreamWriter<RealSeam> for RealWriter {
    async fn send(&mut self, mut gather: Gather<RealSeam>) -> (io::Result<()>, Gather<RealSeam>) {
        let fd = self.socket.as_raw_fd();
        let mut iov = std::mem::take(&mut self.iov);
        iov.clear();
        let bytes = gather.bytes().as_ptr();
        iov.extend(gather.parts().iter().map(|part| match part {
            Part::Bytes(range) => libc::iovec {
                // SAFETY: the range lies inside the gather's bytes.
                iov_base: unsafe { bytes.add(range.start) }.cast_mut().cast(),
                iov_len: range.len(),
            },
            Part::Piece(piece) => libc::iovec {
                // SAFETY: a piece lies inside its block.
                iov_base: unsafe { piece.block.data().add(piece.start()) }.cast(),
                iov_len: piece.len(),
            },
        }));
        let result = loop {
            if iov.is_empty() {
                break Ok(());
            }
            let header = message(&mut iov);
            // SAFETY: the header names bytes and frozen blocks that `gather` holds.
            let sent = direct(|| unsafe { libc::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) });
            let result = match sent {
                Some(result) => {
                    yield_after_calls(&mut self.direct_calls).await;
                    result
                }
                None => {
                    self.direct_calls = 0;
                    let remaining_iov = iov.split_off(iov.len().min(IOV_MAX));
                    // SAFETY: the socket is open while its Rc lives; the operation owns `gather` and thereby its bytes
                    // (on the heap) and blocks.
                    let operation = unsafe { Operation::new(Action::Send, fd, self.socket.clone(), iov, gather) };
                    let BufResult(result, operation) = submit(operation).await;
                    (iov, gather, _) = operation.into_parts();
                    iov.extend(remaining_iov);
                    map_cancelled(result)
                }
            };
            match result {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => advance(&mut iov, sent),
                // The interrupt was meant for a read.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.iov = iov;
        (result, gather)
    }

    fn shutdown(&mut self) {
        // SAFETY: a system call on an open descriptor.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Drop for RealWriter {
    fn drop(&mut self) {
        if !self.is_rejoined {
            // SAFETY: as above.
            unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
        }
    }
}
