//! Messages of vhost-user: decoded requests of a front end, and encoded replies. Independent of sockets.
//!
//! The crate `vhost` is not used because it cannot notify a front end that a volume has grown.

use std::os::fd::OwnedFd;

use crate::memory::{REGIONS_MAX, RegionLayout};

/// Bytes of a message header.
pub const HEADER_BYTES: usize = 12;
/// Maximum number of bytes after a header.
pub const BODY_BYTES_MAX: usize = 4096;
/// Maximum number of file descriptors of one message: one for each region of a memory table.
pub const FDS_MAX: usize = TABLE_REGIONS_MAX;
/// Maximum number of regions of one memory table.
const TABLE_REGIONS_MAX: usize = 8;

/// Version of the protocol, in the header's flags.
const VERSION: u32 = 1;
/// Bits of the version in the header's flags.
const VERSION_MASK: u32 = 3;
/// Header flag: the message is a reply.
const REPLY: u32 = 1 << 2;
/// Header flag: the front end waits for a reply.
const NEED_REPLY: u32 = 1 << 3;
/// Flag: no file descriptor is attached.
const NO_FD: u64 = 1 << 8;

/// Message of the device to a front end: the configuration has changed.
const CONFIG_CHANGE: u32 = 2;

/// Protocol features, as bits.
pub mod protocol {
    /// Multiple queues.
    pub const MQ: u64 = 1;
    /// Shared dirty log.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Acknowledgement of each message on request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// Channel for messages of the device.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// Access to the configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// Inflight requests in shared memory.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// Reset of the device.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// All offered features.
    pub const OFFERED: u64 =
        MQ | LOG_SHMFD | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// Numbers of a front end's messages.
mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_LOG_BASE: u32 = 6;
    pub(super) const SET_LOG_FD: u32 = 7;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const SET_CONFIG: u32 = 25;
    pub(super) const GET_INFLIGHT_FD: u32 = 31;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const RESET_DEVICE: u32 = 34;
    pub(super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
}

/// Reason for rejecting a message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MessageError {
    /// Invalid header.
    #[error("invalid message header: flags {0:#x}, {1} bytes")]
    Header(u32, u32),
    /// Invalid length.
    #[error("message {0} has an invalid length of {1} bytes")]
    Length(u32, usize),
    /// Invalid number of file descriptors.
    #[error("message {0} has an invalid number of file descriptors: {1}")]
    FileDescriptors(u32, usize),
    /// Invalid value.
    #[error("message {0} has the invalid value {1}")]
    Value(u32, u64),
    /// Unsupported message.
    #[error("message {0} is not supported")]
    Unknown(u32),
}

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message number.
    pub request: u32,
    flags: u32,
    /// Length of the body in bytes.
    pub len: usize,
}

impl Header {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, MessageError> {
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (request, flags, len) = (field(0), field(4), field(8));
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || len as usize > BODY_BYTES_MAX {
            return Err(MessageError::Header(flags, len));
        }
        Ok(Header { request, flags, len: len as usize })
    }

    /// True if the front end waits for an acknowledgement, provided that the feature is negotiated.
    pub fn wants_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Encodes a reply.
    pub fn encode_reply(&self, body: &[u8]) -> Vec<u8> {
        encode(self.request, VERSION | REPLY, body)
    }

    /// Encodes an acknowledgement.
    pub fn acknowledge(&self, succeeded: bool) -> Vec<u8> {
        self.encode_reply(&u64::from(!succeeded).to_le_bytes())
    }
}

fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let fields = [request, flags, body.len() as u32];
    let mut bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes the message that the volume's size has changed.
pub fn config_changed() -> Vec<u8> {
    encode(CONFIG_CHANGE, VERSION, &[])
}

/// Type of a queue's eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VringFdKind {
    /// From the driver: requests are available.
    Kick,
    /// To the driver: requests were used.
    Call,
    /// To the front end: the queue is broken.
    Err,
}

/// A request of a front end.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as in the specification")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    Reset,
    SetMemTable(Vec<(RegionLayout, OwnedFd)>),
    SetLogBase {
        len: u64,
        offset: u64,
        file: OwnedFd,
    },
    /// An eventfd for changes of the log, which is not used.
    SetLogFd,
    SetVringNum {
        index: u32,
        size: u32,
    },
    SetVringAddr {
        index: u32,
        is_logged: bool,
        descriptor_table: u64,
        used: u64,
        available: u64,
        log: u64,
    },
    SetVringBase {
        index: u32,
        base: u32,
    },
    GetVringBase {
        index: u32,
    },
    SetVringFd {
        kind: VringFdKind,
        index: u32,
        fd: Option<OwnedFd>,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable {
        index: u32,
        enabled: bool,
    },
    SetBackendReqFd(OwnedFd),
    GetConfig {
        offset: u32,
        len: u32,
    },
    SetConfig {
        offset: u32,
        bytes: Vec<u8>,
    },
    GetInflightFd {
        queues: u16,
        size: u16,
    },
    SetInflightFd {
        len: u64,
        offset: u64,
        queues: u16,
        size: u16,
        file: OwnedFd,
    },
    GetMaxMemSlots,
    AddMemReg(RegionLayout, OwnedFd),
    RemMemReg(RegionLayout),
}

/// Reply to a request.
#[derive(Debug)]
#[allow(missing_docs, reason = "each is the answer to the message of its name")]
pub enum Reply {
    /// Success without content, acknowledged on request.
    Done,
    U64(u64),
    VringState {
        index: u32,
        base: u32,
    },
    Config {
        offset: u32,
        bytes: Vec<u8>,
    },
    Inflight {
        len: u64,
        queues: u16,
        size: u16,
        file: OwnedFd,
    },
    /// The log is in use.
    Log,
}

/// A body, consumed from its front.
struct Body<'a> {
    request: u32,
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// Fails unless exactly `len` bytes remain.
    fn check_len(&self, len: usize) -> Result<(), MessageError> {
        if self.bytes.len() == len { Ok(()) } else { Err(MessageError::Length(self.request, self.bytes.len())) }
    }

    /// Reads the next `len` bytes.
    fn take(&mut self, len: usize) -> Result<&'a [u8], MessageError> {
        let (first, rest) =
            self.bytes.split_at_checked(len).ok_or(MessageError::Length(self.request, self.bytes.len()))?;
        self.bytes = rest;
        Ok(first)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take(2).map(|bytes| u16::from_le_bytes(bytes.try_into().expect("two bytes")))
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    fn region_layout(&mut self) -> Result<RegionLayout, MessageError> {
        let (guest, len, user, offset) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        Ok(RegionLayout { guest, len, user, offset })
    }

    /// Reads a queue index and a number, which are the whole body.
    fn pair(&mut self) -> Result<(u32, u32), MessageError> {
        self.check_len(8)?;
        Ok((self.u32()?, self.u32()?))
    }

    /// Reads the only number of a body.
    fn single(&mut self) -> Result<u64, MessageError> {
        self.check_len(8)?;
        self.u64()
    }
}

/// Decodes a message from its header, body and file descriptors.
pub fn decode(header: &Header, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Message, MessageError> {
    let request = header.request;
    let mut body = Body { request, bytes };
    let mut fds = fds.into_iter();
    let fd_count = fds.len();
    let single_fd = |fds: &mut std::vec::IntoIter<OwnedFd>| match (fds.next(), fd_count) {
        (Some(fd), 1) => Ok(fd),
        _ => Err(MessageError::FileDescriptors(request, fd_count)),
    };
    let message = match request {
        request::GET_FEATURES => Message::GetFeatures,
        request::SET_FEATURES => Message::SetFeatures(body.single()?),
        request::SET_OWNER => Message::SetOwner,
        request::RESET_OWNER | request::RESET_DEVICE => Message::Reset,
        request::SET_MEM_TABLE => {
            let (count, _) = (body.u32()? as usize, body.u32()?);
            if count > TABLE_REGIONS_MAX {
                return Err(MessageError::Value(request, count as u64));
            }
            if count != fd_count {
                return Err(MessageError::FileDescriptors(request, fd_count));
            }
            let regions =
                fds.by_ref().map(|fd| Ok((body.region_layout()?, fd))).collect::<Result<_, MessageError>>()?;
            Message::SetMemTable(regions)
        }
        request::SET_LOG_BASE => {
            body.check_len(16)?;
            Message::SetLogBase { len: body.u64()?, offset: body.u64()?, file: single_fd(&mut fds)? }
        }
        request::SET_LOG_FD => {
            drop(single_fd(&mut fds)?);
            Message::SetLogFd
        }
        request::SET_VRING_NUM => body.pair().map(|(index, size)| Message::SetVringNum { index, size })?,
        request::SET_VRING_ADDR => {
            body.check_len(40)?;
            let (index, flags) = (body.u32()?, body.u32()?);
            let (descriptor_table, used, available, log) = (body.u64()?, body.u64()?, body.u64()?, body.u64()?);
            Message::SetVringAddr { index, is_logged: flags & 1 != 0, descriptor_table, used, available, log }
        }
        request::SET_VRING_BASE => body.pair().map(|(index, base)| Message::SetVringBase { index, base })?,
        request::GET_VRING_BASE => body.pair().map(|(index, _)| Message::GetVringBase { index })?,
        request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
            let value = body.single()?;
            let kind =
                [VringFdKind::Kick, VringFdKind::Call, VringFdKind::Err][(request - request::SET_VRING_KICK) as usize];
            let fd = if value & NO_FD == 0 { Some(single_fd(&mut fds)?) } else { None };
            Message::SetVringFd { kind, index: (value & 0xff) as u32, fd }
        }
        request::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
        request::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(body.single()?),
        request::GET_QUEUE_NUM => Message::GetQueueNum,
        request::SET_VRING_ENABLE => match body.pair()? {
            (index, value @ (0 | 1)) => Message::SetVringEnable { index, enabled: value == 1 },
            (_, value) => return Err(MessageError::Value(request, value.into())),
        },
        request::SET_BACKEND_REQ_FD => Message::SetBackendReqFd(single_fd(&mut fds)?),
        request::GET_CONFIG | request::SET_CONFIG => {
            let (offset, len, _flags) = (body.u32()?, body.u32()?, body.u32()?);
            body.check_len(len as usize)?;
            match request {
                request::GET_CONFIG => Message::GetConfig { offset, len },
                _ => Message::SetConfig { offset, bytes: body.bytes.to_vec() },
            }
        }
        request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD => {
            let (len, offset, queues, size) = (body.u64()?, body.u64()?, body.u16()?, body.u16()?);
            match request {
                request::GET_INFLIGHT_FD => Message::GetInflightFd { queues, size },
                _ => Message::SetInflightFd { len, offset, queues, size, file: single_fd(&mut fds)? },
            }
        }
        request::GET_MAX_MEM_SLOTS => Message::GetMaxMemSlots,
        request::ADD_MEM_REG | request::REM_MEM_REG => {
            let _padding = body.u64()?;
            let region = body.region_layout()?;
            match request {
                request::ADD_MEM_REG => Message::AddMemReg(region, single_fd(&mut fds)?),
                // Older front ends attach the file again.
                _ => Message::RemMemReg(region),
            }
        }
        _ => return Err(MessageError::Unknown(request)),
    };
    Ok(message)
}

/// Maximum number of memory regions, as reported to front ends.
pub(crate) const MEM_SLOTS: u64 = REGIONS_MAX as u64;

impl Reply {
    /// Encodes the reply and its file descriptor; `None` if it has no content.
    pub fn encode(self, header: &Header) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let body = match self {
            Reply::Done => return None,
            Reply::U64(value) => value.to_le_bytes().to_vec(),
            Reply::VringState { index, base } => [index.to_le_bytes(), base.to_le_bytes()].concat(),
            Reply::Config { offset, bytes } => {
                let fields = [offset, bytes.len() as u32, 0];
                let fields = fields.iter().flat_map(|field| field.to_le_bytes());
                fields.chain(bytes).collect()
            }
            Reply::Inflight { len, queues, size, file } => {
                // The structure of the inflight description ends with padding.
                let (len, offset, padding) = (len.to_le_bytes(), [0; 8], [0; 4]);
                let numbers = [&len[..], &offset, &queues.to_le_bytes(), &size.to_le_bytes(), &padding].concat();
                return Some((header.encode_reply(&numbers), Some(file)));
            }
            Reply::Log => Vec::new(),
        };
        Some((header.encode_reply(&body), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, len: u32) -> Header {
        let bytes: Vec<u8> = [request, VERSION, len].iter().flat_map(|word| word.to_le_bytes()).collect();
        Header::decode(&bytes.try_into().expect("the bytes are a header")).expect("the header is valid")
    }

    fn fd() -> OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file")
    }

    #[test]
    fn headers_of_replies_and_other_versions_are_refused() {
        for flags in [0, 2, VERSION | REPLY] {
            let bytes: Vec<u8> = [1, flags, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            assert_eq!(
                Header::decode(&bytes.try_into().expect("the bytes are a header")),
                Err(MessageError::Header(flags, 0))
            );
        }
        let bytes: Vec<u8> = [1, VERSION, 4097].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        assert_eq!(
            Header::decode(&bytes.try_into().expect("the bytes are a header")),
            Err(MessageError::Header(VERSION, 4097))
        );
    }

    #[test]
    fn number_of_file_descriptors_is_checked() {
        let table: Vec<u8> = [2_u32, 0].iter().flat_map(|word| word.to_le_bytes()).chain([0; 64]).collect();
        assert!(matches!(
            decode(&header(request::SET_MEM_TABLE, 72), &table, vec![fd(), fd()]),
            Ok(Message::SetMemTable(list)) if list.len() == 2
        ));
        assert_eq!(
            decode(&header(request::SET_MEM_TABLE, 72), &table, vec![fd()]).expect_err("a missing file descriptor"),
            MessageError::FileDescriptors(request::SET_MEM_TABLE, 1)
        );
        let kick = |value: u64, fds| decode(&header(request::SET_VRING_KICK, 8), &value.to_le_bytes(), fds);
        assert!(matches!(
            kick(3, vec![fd()]),
            Ok(Message::SetVringFd { kind: VringFdKind::Kick, index: 3, fd: Some(_) })
        ));
        assert!(matches!(kick(3 | NO_FD, vec![]), Ok(Message::SetVringFd { index: 3, fd: None, .. })));
        assert!(kick(3, vec![]).is_err() && kick(3, vec![fd(), fd()]).is_err());
    }

    #[test]
    fn bodies_of_wrong_length_are_refused() {
        for number in [
            request::SET_FEATURES,
            request::SET_MEM_TABLE,
            request::SET_LOG_BASE,
            request::SET_VRING_NUM,
            request::SET_VRING_ADDR,
            request::SET_VRING_BASE,
            request::GET_VRING_BASE,
            request::SET_VRING_KICK,
            request::SET_PROTOCOL_FEATURES,
            request::SET_VRING_ENABLE,
            request::GET_CONFIG,
            request::SET_CONFIG,
            request::GET_INFLIGHT_FD,
            request::SET_INFLIGHT_FD,
            request::ADD_MEM_REG,
            request::REM_MEM_REG,
        ] {
            assert!(decode(&header(number, 3), &[0; 3], vec![fd()]).is_err(), "{number}");
        }
        let config = |len: u32, payload_bytes: usize| {
            let bytes: Vec<u8> =
                [0, len, 0].iter().flat_map(|word| word.to_le_bytes()).chain(vec![0; payload_bytes]).collect();
            decode(&header(request::GET_CONFIG, bytes.len() as u32), &bytes, vec![])
        };
        assert!(matches!(config(60, 60), Ok(Message::GetConfig { offset: 0, len: 60 })) && config(60, 59).is_err());
        assert_eq!(decode(&header(99, 0), &[], vec![]).expect_err("an unknown message"), MessageError::Unknown(99));
    }

    #[test]
    fn replies_carry_the_number_of_their_request() {
        let (bytes, fd) = Reply::VringState { index: 1, base: 7 }
            .encode(&header(request::GET_VRING_BASE, 8))
            .expect("a reply with content");
        assert!(fd.is_none());
        assert_eq!(bytes[..12], [request::GET_VRING_BASE as u8, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(bytes[12..], [1, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(header(request::SET_FEATURES, 8).acknowledge(false)[12..], [1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
