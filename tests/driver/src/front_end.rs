//! The messages of a front end, as a virtual machine sends them.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::memory::{Memory, USER_BASE};
use crate::queue::Queue;

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Feature bits of the device.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod feature {
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const FLUSH: u64 = 1 << 9;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const LOG_ALL: u64 = 1 << 26;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Feature bits of the protocol.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod protocol {
    pub const MQ: u64 = 1;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// Numbers of the front end's messages.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Version and flags in the header of a message.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Inflight memory, which survives the server.
pub struct Inflight {
    file: OwnedFd,
    bytes: u64,
    queues: u16,
    queue_size: u16,
}

/// A connection to a server.
pub struct FrontEnd {
    socket: UnixStream,
    has_reply_ack: bool,
}

/// The words in little-endian order.
fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A message body of two 32-bit words: most often a queue's index and its new state.
fn pair(index: u32, value: u32) -> Vec<u8> {
    [index.to_le_bytes(), value.to_le_bytes()].concat()
}

impl FrontEnd {
    /// Connects, and negotiates the device features `features` and the `protocol_features` as far as the server offers
    /// them.
    pub fn connect(path: &Path, features: u64, protocol_features: u64) -> io::Result<FrontEnd> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut front_end = FrontEnd { socket, has_reply_ack: false };
        let offered = front_end.request_u64(message::GET_FEATURES)?;
        front_end.send(message::SET_OWNER, &[], &[])?;
        if offered & feature::PROTOCOL_FEATURES != 0 {
            let agreed = front_end.request_u64(message::GET_PROTOCOL_FEATURES)? & protocol_features;
            front_end.send(message::SET_PROTOCOL_FEATURES, &bytes_of(&[agreed]), &[])?;
            front_end.has_reply_ack = agreed & protocol::REPLY_ACK != 0;
        }
        front_end.send_acked(message::SET_FEATURES, &bytes_of(&[features & offered]), &[])?;
        Ok(front_end)
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent =
            rustix::net::sendmsg(self.socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn send_with(&mut self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let header = [request, VERSION | flags, body.len() as u32];
        let bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()).collect();
        self.send_raw(&bytes, fds)
    }

    /// Sends a message without waiting for a reply.
    pub fn send(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(request, 0, body, fds)
    }

    /// Sends a message, and waits for the acknowledgement if the server offers acknowledgements.
    pub fn send_acked(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.has_reply_ack {
            return self.send(request, body, fds);
        }
        self.send_with(request, NEED_REPLY, body, fds)?;
        let (reply, _) = self.receive_reply(request)?;
        if reply == bytes_of(&[0]) { Ok(()) } else { Err(io::Error::other(format!("message {request} was refused"))) }
    }

    /// Sends a message and returns its reply.
    pub fn request_reply(
        &mut self,
        request: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.send(request, body, fds)?;
        self.receive_reply(request)
    }

    fn request_u64(&mut self, request: u32) -> io::Result<u64> {
        let (body, _) = self.request_reply(request, &[], &[])?;
        Ok(u64::from_le_bytes(body.try_into().map_err(|_| io::ErrorKind::InvalidData)?))
    }

    fn receive_reply(&mut self, request: u32) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let (mut header, mut fds) = ([0; 12], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut header)];
        let received =
            rustix::net::recvmsg(self.socket.as_fd(), &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.socket.read_exact(&mut header[received..])?;
        let word = |offset: usize| u32::from_le_bytes(header[offset..offset + 4].try_into().expect("four bytes"));
        if word(0) != request || word(4) != VERSION | REPLY {
            return Err(io::Error::other(format!("a reply to {}, with flags {:#x}", word(0), word(4))));
        }
        let mut body = vec![0; word(8) as usize];
        self.socket.read_exact(&mut body)?;
        Ok((body, fds))
    }

    /// True when the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.socket.read(&mut [0]).is_ok_and(|count| count == 0)
            || matches!(
                self.request_reply(message::GET_FEATURES, &[], &[]),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock
            )
    }

    /// Features that the device offers.
    pub fn offered_features(&mut self) -> io::Result<u64> {
        self.request_u64(message::GET_FEATURES)
    }

    /// Shares all of a guest's memory.
    pub fn share_memory(&mut self, memory: &Memory) -> io::Result<()> {
        let body = [pair(1, 0), bytes_of(&[0, memory.bytes(), USER_BASE, 0])].concat();
        self.send_acked(message::SET_MEM_TABLE, &body, &[memory.file()])
    }

    /// Shares one more region: `len` bytes of `memory` from `offset` on, at `guest_address`.
    pub fn add_memory(&mut self, memory: &Memory, guest_address: u64, len: u64, offset: u64) -> io::Result<()> {
        let region = bytes_of(&[0, guest_address, len, USER_BASE + guest_address, offset]);
        self.send_acked(message::ADD_MEM_REG, &region, &[memory.file()])
    }

    /// Removes a shared region.
    pub fn remove_memory(&mut self, guest_address: u64, len: u64, offset: u64) -> io::Result<()> {
        let region = bytes_of(&[0, guest_address, len, USER_BASE + guest_address, offset]);
        self.send_acked(message::REM_MEM_REG, &region, &[])
    }

    /// The first `len` bytes of the configuration space.
    pub fn config(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let head: Vec<u8> = [0, len, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let (body, _) = self.request_reply(message::GET_CONFIG, &[head, vec![0; len as usize]].concat(), &[])?;
        body.get(12..).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Changes a byte of the configuration space.
    pub fn set_config(&mut self, offset: u32, value: u8) -> io::Result<()> {
        let head: Vec<u8> = [offset, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send_acked(message::SET_CONFIG, &[head, vec![value]].concat(), &[])
    }

    /// Opens the back channel, on which the server sends messages; returns the front end's side.
    pub fn open_backend_channel(&mut self) -> io::Result<UnixStream> {
        let (own_end, server_end) = UnixStream::pair()?;
        own_end.set_read_timeout(Some(TIMEOUT))?;
        self.send_acked(message::SET_BACKEND_REQ_FD, &[], &[server_end.as_fd()])?;
        Ok(own_end)
    }

    /// Requests memory in which the server records requests in flight.
    pub fn get_inflight(&mut self, queues: u16, queue_size: u16) -> io::Result<Inflight> {
        let body = [bytes_of(&[0, 0]), queues.to_le_bytes().to_vec(), queue_size.to_le_bytes().to_vec(), vec![0; 4]];
        let (reply, mut fds) = self.request_reply(message::GET_INFLIGHT_FD, &body.concat(), &[])?;
        let bytes = reply.get(..8).ok_or(io::ErrorKind::InvalidData)?.try_into().expect("eight bytes");
        let file = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Inflight { file, bytes: u64::from_le_bytes(bytes), queues, queue_size })
    }

    /// Passes the inflight memory to this server.
    pub fn set_inflight(&mut self, inflight: &Inflight) -> io::Result<()> {
        let numbers = [inflight.queues.to_le_bytes(), inflight.queue_size.to_le_bytes(), [0; 2], [0; 2]].concat();
        let body = [bytes_of(&[inflight.bytes, 0]), numbers].concat();
        self.send_acked(message::SET_INFLIGHT_FD, &body, &[inflight.file.as_fd()])
    }

    /// Shares a log of dirty guest memory, with one bit for each 4 KiB.
    pub fn set_dirty_log(&mut self, log: &Memory) -> io::Result<()> {
        self.request_reply(message::SET_LOG_BASE, &bytes_of(&[log.bytes(), 0]), &[log.file()]).map(|_| ())
    }

    /// Negotiates other features of the device.
    pub fn set_features(&mut self, features: u64) -> io::Result<()> {
        self.send_acked(message::SET_FEATURES, &bytes_of(&[features]), &[])
    }

    /// Starts a queue. With `log_address`, the server logs writes to the used ring at this guest address.
    pub fn start_queue(&mut self, index: u32, queue: &Queue, log_address: Option<u64>) -> io::Result<()> {
        self.send_acked(message::SET_VRING_NUM, &pair(index, queue.size().into()), &[])?;
        self.set_addresses(index, queue, log_address)?;
        self.send_acked(message::SET_VRING_BASE, &pair(index, queue.base().into()), &[])?;
        self.send_acked(message::SET_VRING_CALL, &bytes_of(&[index.into()]), &[queue.call()])?;
        self.send_acked(message::SET_VRING_ERR, &bytes_of(&[index.into()]), &[queue.err()])?;
        self.send_acked(message::SET_VRING_KICK, &bytes_of(&[index.into()]), &[queue.kick()])?;
        self.send_acked(message::SET_VRING_ENABLE, &pair(index, 1), &[])
    }

    /// Sends the addresses of a queue.
    pub fn set_addresses(&mut self, index: u32, queue: &Queue, log_address: Option<u64>) -> io::Result<()> {
        let [descriptors, available, used] = queue.addresses().map(|address| USER_BASE + address);
        let addresses = bytes_of(&[descriptors, used, available, log_address.unwrap_or(0)]);
        let body = [pair(index, u32::from(log_address.is_some())), addresses].concat();
        self.send_acked(message::SET_VRING_ADDR, &body, &[])
    }

    /// Stops a queue when its requests in flight have completed; returns the base for the next server.
    pub fn stop_queue(&mut self, index: u32) -> io::Result<u32> {
        let (body, _) = self.request_reply(message::GET_VRING_BASE, &pair(index, 0), &[])?;
        let value = body.get(4..8).ok_or(io::ErrorKind::InvalidData)?;
        Ok(u32::from_le_bytes(value.try_into().expect("four bytes")))
    }
}
