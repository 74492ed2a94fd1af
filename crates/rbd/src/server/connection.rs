//! A connection: its thread reads requests and starts them; threads of librbd send the replies.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use nbd_protocol::reply::{DONE, chunk, data_chunk, push_error_chunk, push_status_chunk};
use nbd_protocol::{ChunkKind, Command, Errno, Request, Step, command, flags};

use super::super::ffi::{Completion, Image, Operation};
use super::super::ownership::Ownership;
use super::handshake::{ALLOCATION_CONTEXT, REQUEST_BYTES_MAX, invalid, negotiate};
use super::in_flight::InFlight;

/// Bytes that are received in one call.
const RECEIVE_BYTES: usize = 256 << 10;
/// A comparison of allocation begins at a multiple of this, the largest size of an object: some versions of librbd
/// report an extent wrongly when it begins inside an object.
const OBJECT_BYTES_MAX: u64 = 32 << 20;
/// Extents in the reply to a status request.
const EXTENTS_MAX: usize = 65_536;

/// The part of a connection that its thread and its replies share.
pub struct Connection {
    stream: UnixStream,
    /// Held while a reply is sent.
    sending: Mutex<()>,
    in_flight: InFlight,
    image: Arc<Image>,
    ownership: Arc<Ownership>,
}

impl Connection {
    /// Serves a client until it disconnects and its requests have ended.
    pub fn serve(stream: UnixStream, image: Arc<Image>, ownership: Arc<Ownership>) {
        let in_flight = InFlight::default();
        let connection = Arc::new(Connection { stream, sending: Mutex::default(), in_flight, image, ownership });
        // The daemon notices the end of the connection; there is nobody else to tell the reason.
        let (Ok(()) | Err(_)) = connection.receive();
        connection.in_flight.wait_for_end();
        let (Ok(()) | Err(_)) = connection.stream.shutdown(std::net::Shutdown::Both);
    }

    fn receive(self: &Arc<Self>) -> io::Result<()> {
        let mut incoming = BufReader::with_capacity(RECEIVE_BYTES, &self.stream);
        if !negotiate(&mut incoming, &self.stream, || self.size_bytes())? {
            return Ok(());
        }
        loop {
            let mut header = [0; Request::BYTES];
            incoming.read_exact(&mut header)?;
            let Step::Got(request, _) = Request::decode(&header).map_err(invalid)? else {
                unreachable!("all bytes of the header are there")
            };
            let has_data = matches!(request.command, Command::Read | Command::Write);
            if has_data && request.len > REQUEST_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the request is too long"));
            }
            if request.command == Command::Disconnect {
                return Ok(());
            }
            let mut buffer = vec![0; if has_data { request.len as usize } else { 0 }];
            if request.command == Command::Write {
                incoming.read_exact(&mut buffer)?;
            }
            self.in_flight.begin(buffer.len());
            self.start(request, buffer);
        }
    }

    fn size_bytes(&self) -> io::Result<u64> {
        self.image.size_bytes().map_err(|error| io::Error::from_raw_os_error(error.errno))
    }

    fn start(self: &Arc<Self>, request: Request, buffer: Vec<u8>) {
        let Request { flags, command, offset: at, len, .. } = request;
        let bytes = buffer.len();
        if self.ownership.is_lost() {
            return self.fail(request, bytes, Errno::Io);
        }
        // librbd cuts a request at the end of the image without an error.
        let is_inside = self.size_bytes().is_ok_and(|size| at.checked_add(len.into()).is_some_and(|end| end <= size));
        if !is_inside {
            return self.fail(request, bytes, Errno::Inval);
        }
        let operation = match command {
            Command::Read => Operation::Read(at),
            Command::Write => Operation::Write(at),
            Command::Flush => Operation::Flush,
            Command::WriteZeroes => {
                let may_unmap = flags & command::NO_HOLE == 0;
                if !may_unmap && flags & command::FAST_ZERO != 0 {
                    return self.fail(request, bytes, Errno::NotSup);
                }
                Operation::Zero { at, len: len as usize, may_unmap }
            }
            Command::BlockStatus => {
                let connection = Arc::clone(self);
                std::thread::spawn(move || connection.send_allocation(request));
                return;
            }
            _ => return self.fail(request, bytes, Errno::Inval),
        };
        let connection = Arc::clone(self);
        let completion: Completion = Box::new(move |result, buffer| match result {
            Ok(()) => connection.complete(request, &buffer),
            Err(errno) => {
                connection.ownership.record_error(errno);
                connection.fail(request, buffer.len(), errno_on_wire(errno));
            }
        });
        self.image.start(operation, buffer, completion);
    }

    fn complete(&self, request: Request, buffer: &[u8]) {
        match request.command {
            Command::Read => self.send(&data_chunk(request.cookie, request.offset, request.len, DONE), buffer),
            _ => self.send(&chunk(request.cookie, ChunkKind::None, DONE, 0), &[]),
        }
        self.in_flight.end(buffer.len());
    }

    fn fail(&self, request: Request, bytes: usize, error: Errno) {
        let mut reply = Vec::new();
        push_error_chunk(&mut reply, request.cookie, error, None);
        self.send(&reply, &[]);
        self.in_flight.end(bytes);
    }

    /// Answers a status request. The call of librbd waits for the cluster, so it has a thread of its own.
    fn send_allocation(&self, request: Request) {
        let (at, end) = (request.offset, request.offset + u64::from(request.len));
        let first = at / OBJECT_BYTES_MAX * OBJECT_BYTES_MAX;
        let allocated = match self.image.allocated(first, end - first) {
            Ok(allocated) => allocated,
            Err(error) => {
                self.ownership.record_error(error.errno);
                return self.fail(request, 0, errno_on_wire(error.errno));
            }
        };
        let mut reply = Vec::new();
        push_status_chunk(&mut reply, request.cookie, ALLOCATION_CONTEXT, &status_extents(&allocated, at, end));
        self.send(&reply, &[]);
        self.in_flight.end(0);
    }

    /// Sends a reply. The daemon always receives, so this waits for long only if the daemon is stopped. After a failure
    /// the connection is useless.
    fn send(&self, head: &[u8], data: &[u8]) {
        let _sending = self.sending.lock().expect("no holder of the lock panics");
        let mut parts = [IoSlice::new(head), IoSlice::new(data)];
        let mut remaining = &mut parts[..];
        IoSlice::advance_slices(&mut remaining, 0);
        while !remaining.is_empty() {
            match (&self.stream).write_vectored(remaining) {
                Ok(count @ 1..) => IoSlice::advance_slices(&mut remaining, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    let (Ok(()) | Err(_)) = self.stream.shutdown(std::net::Shutdown::Both);
                    return;
                }
            }
        }
    }
}

/// The extents of a status reply for `at..end`: holes between the allocated ranges, which are in order.
fn status_extents(allocated: &[(u64, u64)], at: u64, end: u64) -> Vec<(u32, u32)> {
    let hole = flags::STATE_HOLE | flags::STATE_ZERO;
    let (mut position, mut extents) = (at, Vec::new());
    for (start, len) in allocated {
        let (start, stop) = (start.clamp(&position, &end), (start + len).clamp(position, end));
        if *start > position {
            extents.push(((start - position) as u32, hole));
        }
        if stop > *start {
            extents.push(((stop - start) as u32, 0));
        }
        position = stop;
    }
    if position < end {
        extents.push(((end - position) as u32, hole));
    }
    // The client asks again for the rest.
    extents.truncate(EXTENTS_MAX);
    extents
}

fn errno_on_wire(errno: i32) -> Errno {
    match errno {
        libc::ENOSPC | libc::EDQUOT => Errno::NoSpace,
        libc::ENOMEM => Errno::NoMem,
        libc::EINVAL => Errno::Inval,
        libc::EOPNOTSUPP => Errno::NotSup,
        _ => Errno::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_between_allocated_objects_are_holes() {
        let hole = flags::STATE_HOLE | flags::STATE_ZERO;
        assert_eq!(status_extents(&[], 10, 30), [(20, hole)]);
        assert_eq!(status_extents(&[(0, 40)], 10, 30), [(20, 0)]);
        assert_eq!(status_extents(&[(0, 12), (20, 5)], 10, 30), [(2, 0), (8, hole), (5, 0), (5, hole)]);
        assert_eq!(status_extents(&[(0, 4), (29, 50)], 10, 30), [(19, hole), (1, 0)]);
    }
}
