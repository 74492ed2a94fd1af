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

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

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
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL: u64 = 1 << 30;
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

/// Inflight memory, which outlives the server.
pub struct Inflight {
    file: OwnedFd,
    bytes: u64,
    queues: u16,
    size: u16,
}

/// A connection to a server.
pub struct FrontEnd {
    socket: UnixStream,
    acknowledged: bool,
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(index: u32, value: u32) -> Vec<u8> {
    [index.to_le_bytes(), value.to_le_bytes()].concat()
}

impl FrontEnd {
    /// Connects, and negotiates `features` of the device and `wanted` of the protocol, as far as they are offered.
    pub fn connect(path: &Path, features: u64, wanted: u64) -> io::Result<FrontEnd> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut front_end = FrontEnd { socket, acknowledged: false };
        let offered = front_end.ask_u64(1)?;
        front_end.send(3, &[], &[])?;
        if offered & feature::PROTOCOL != 0 {
            let agreed = front_end.ask_u64(15)? & wanted;
            front_end.send(16, &words(&[agreed]), &[])?;
            front_end.acknowledged = agreed & protocol::REPLY_ACK != 0;
        }
        front_end.tell(2, &words(&[features & offered]), &[])?;
        Ok(front_end)
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = rustix::net::sendmsg(self.socket.as_fd(), &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn send_with(&mut self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let head = [request, 1 | flags, body.len() as u32];
        let bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()).collect();
        self.send_raw(&bytes, fds)
    }

    /// Sends a message without waiting for an answer.
    pub fn send(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(request, 0, body, fds)
    }

    /// Sends a message, and waits for the acknowledgement if the server offers acknowledgements.
    pub fn tell(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.acknowledged {
            return self.send(request, body, fds);
        }
        self.send_with(request, 1 << 3, body, fds)?;
        let (answer, _) = self.answer(request)?;
        if answer == words(&[0]) { Ok(()) } else { Err(io::Error::other(format!("message {request} was refused"))) }
    }

    /// Sends a message that has an answer, and returns the answer.
    pub fn ask(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.send(request, body, fds)?;
        self.answer(request)
    }

    fn ask_u64(&mut self, request: u32) -> io::Result<u64> {
        let (body, _) = self.ask(request, &[], &[])?;
        Ok(u64::from_le_bytes(body.try_into().map_err(|_| io::ErrorKind::InvalidData)?))
    }

    fn answer(&mut self, request: u32) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let (mut head, mut fds) = ([0; 12], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut head)];
        let got = rustix::net::recvmsg(self.socket.as_fd(), &mut into, &mut beside, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.socket.read_exact(&mut head[got..])?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if word(0) != request || word(4) != 1 | 1 << 2 {
            return Err(io::Error::other(format!("an answer to {}, with flags {:#x}", word(0), word(4))));
        }
        let mut body = vec![0; word(8) as usize];
        self.socket.read_exact(&mut body)?;
        Ok((body, fds))
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.socket.read(&mut [0]).is_ok_and(|count| count == 0)
            || matches!(self.ask(1, &[], &[]), Err(error) if error.kind() != io::ErrorKind::WouldBlock)
    }

    /// Features that the device offers.
    pub fn offered(&mut self) -> io::Result<u64> {
        self.ask_u64(1)
    }

    /// Shares all of a guest's memory.
    pub fn share(&mut self, memory: &Memory) -> io::Result<()> {
        let body = [pair(1, 0), words(&[0, memory.bytes(), USER_BASE, 0])].concat();
        self.tell(5, &body, &[memory.file()])
    }

    /// Shares `len` more bytes at the guest's address `guest`: those of the memory from `offset` on.
    pub fn add_memory(&mut self, memory: &Memory, guest: u64, len: u64, offset: u64) -> io::Result<()> {
        self.tell(37, &words(&[0, guest, len, USER_BASE + guest, offset]), &[memory.file()])
    }

    /// Removes a shared region.
    pub fn remove_memory(&mut self, guest: u64, len: u64, offset: u64) -> io::Result<()> {
        self.tell(38, &words(&[0, guest, len, USER_BASE + guest, offset]), &[])
    }

    /// The first `len` bytes of the configuration space.
    pub fn config(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let head: Vec<u8> = [0, len, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let (body, _) = self.ask(24, &[head, vec![0; len as usize]].concat(), &[])?;
        body.get(12..).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Changes a byte of the configuration space.
    pub fn set_config(&mut self, offset: u32, value: u8) -> io::Result<()> {
        let head: Vec<u8> = [offset, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        self.tell(25, &[head, vec![value]].concat(), &[])
    }

    /// Opens the back channel, on which the server sends messages; returns the front end's side.
    pub fn listen(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        self.tell(21, &[], &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Asks for memory in which the server records requests in flight.
    pub fn get_inflight(&mut self, queues: u16, size: u16) -> io::Result<Inflight> {
        let body = [words(&[0, 0]), queues.to_le_bytes().to_vec(), size.to_le_bytes().to_vec(), vec![0; 4]].concat();
        let (answer, mut fds) = self.ask(31, &body, &[])?;
        let bytes = answer.get(..8).ok_or(io::ErrorKind::InvalidData)?.try_into().expect("eight bytes");
        let file = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Inflight { file, bytes: u64::from_le_bytes(bytes), queues, size })
    }

    /// Hands the inflight memory to this server.
    pub fn set_inflight(&mut self, kept: &Inflight) -> io::Result<()> {
        let numbers = [kept.queues.to_le_bytes(), kept.size.to_le_bytes(), [0; 2], [0; 2]].concat();
        self.tell(32, &[words(&[kept.bytes, 0]), numbers].concat(), &[kept.file.as_fd()])
    }

    /// Shares a log of dirty memory, a bit for 4 KiB.
    pub fn log_to(&mut self, log: &Memory) -> io::Result<()> {
        self.ask(6, &words(&[log.bytes(), 0]), &[log.file()]).map(|_| ())
    }

    /// Negotiates other features of the device.
    pub fn set_features(&mut self, features: u64) -> io::Result<()> {
        self.tell(2, &words(&[features]), &[])
    }

    /// Starts a queue; writes to the used ring are logged at the address `logged_at`.
    pub fn start(&mut self, index: u32, queue: &Queue, logged_at: Option<u64>) -> io::Result<()> {
        self.tell(8, &pair(index, queue.size().into()), &[])?;
        self.address(index, queue, logged_at)?;
        self.tell(10, &pair(index, queue.base().into()), &[])?;
        self.tell(13, &words(&[index.into()]), &[queue.call()])?;
        self.tell(14, &words(&[index.into()]), &[queue.err()])?;
        self.tell(12, &words(&[index.into()]), &[queue.kick()])?;
        self.tell(18, &pair(index, 1), &[])
    }

    /// Sends the addresses of a queue.
    pub fn address(&mut self, index: u32, queue: &Queue, logged_at: Option<u64>) -> io::Result<()> {
        let [descriptors, available, used] = queue.places().map(|at| USER_BASE + at);
        let places = words(&[descriptors, used, available, logged_at.unwrap_or(0)]);
        self.tell(9, &[pair(index, u32::from(logged_at.is_some())), places].concat(), &[])
    }

    /// Stops a queue when its requests in flight have ended; returns the base for the next server.
    pub fn stop(&mut self, index: u32) -> io::Result<u32> {
        let (body, _) = self.ask(11, &pair(index, 0), &[])?;
        let value = body.get(4..8).ok_or(io::ErrorKind::InvalidData)?;
        Ok(u32::from_le_bytes(value.try_into().expect("four bytes")))
    }
}
