//! Options of the handshake and their replies: a header each, followed by a payload.

use crate::greeting::OPTION_MAGIC;
use crate::limits::{OPTION_PAYLOAD_BYTES_MAX, OPTION_PAYLOAD_BYTES_SKIPPED_MAX};
use crate::wire::PayloadReader;
use crate::{Decoded, ProtocolError, Step};

const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Type of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionKind {
    /// Selects an export without a regular reply; the payload is the name.
    ExportName,
    /// Ends the handshake.
    Abort,
    /// Lists all exports.
    List,
    /// Starts TLS.
    StartTls,
    /// Requests information about an export.
    Info,
    /// Selects an export.
    Go,
    /// Negotiates structured replies.
    StructuredReply,
    /// Lists metadata contexts.
    ListMetaContext,
    /// Selects metadata contexts.
    SetMetaContext,
    /// Negotiates 64-bit headers.
    ExtendedHeaders,
    /// An unsupported option.
    Unknown(u32),
}

impl OptionKind {
    /// Decodes an option number.
    pub const fn from_wire(number: u32) -> Self {
        match number {
            1 => OptionKind::ExportName,
            2 => OptionKind::Abort,
            3 => OptionKind::List,
            5 => OptionKind::StartTls,
            6 => OptionKind::Info,
            7 => OptionKind::Go,
            8 => OptionKind::StructuredReply,
            9 => OptionKind::ListMetaContext,
            10 => OptionKind::SetMetaContext,
            11 => OptionKind::ExtendedHeaders,
            other => OptionKind::Unknown(other),
        }
    }

    /// Encodes the option number.
    pub const fn to_wire(self) -> u32 {
        match self {
            OptionKind::ExportName => 1,
            OptionKind::Abort => 2,
            OptionKind::List => 3,
            OptionKind::StartTls => 5,
            OptionKind::Info => 6,
            OptionKind::Go => 7,
            OptionKind::StructuredReply => 8,
            OptionKind::ListMetaContext => 9,
            OptionKind::SetMetaContext => 10,
            OptionKind::ExtendedHeaders => 11,
            OptionKind::Unknown(number) => number,
        }
    }
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Type.
    pub kind: OptionKind,
    /// Length of the payload in bytes.
    pub len: u32,
}

impl OptionHeader {
    /// Length without payload.
    pub const BYTES: usize = 16;

    /// Decodes the header at the start of `bytes`. A payload beyond [`OPTION_PAYLOAD_BYTES_SKIPPED_MAX`] is an error.
    pub fn decode(bytes: &[u8]) -> Decoded<OptionHeader> {
        let mut reader = PayloadReader(bytes);
        let Some(magic) = reader.u64() else { return Ok(Step::Incomplete(OptionHeader::BYTES)) };
        if magic != OPTION_MAGIC {
            return Err(ProtocolError::Magic { item: "an option", found: magic });
        }
        let (Some(kind), Some(len)) = (reader.u32(), reader.u32()) else {
            return Ok(Step::Incomplete(OptionHeader::BYTES));
        };
        if len > OPTION_PAYLOAD_BYTES_SKIPPED_MAX {
            let max = OPTION_PAYLOAD_BYTES_SKIPPED_MAX.into();
            return Err(ProtocolError::TooLong { item: "an option's payload", len: len.into(), max });
        }
        Ok(Step::Got(OptionHeader { kind: OptionKind::from_wire(kind), len }, OptionHeader::BYTES))
    }

    /// True if the payload is too long: it is skipped and answered with [`OptionReplyKind::ErrTooBig`].
    pub fn is_too_big(&self) -> bool {
        self.len as usize > OPTION_PAYLOAD_BYTES_MAX
    }
}

/// Appends an option with its payload.
pub fn push_option(out: &mut Vec<u8>, kind: OptionKind, payload: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&kind.to_wire().to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
}

/// Type of an option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionReplyKind {
    /// Success; the last reply.
    Ack,
    /// Name of an export; further replies follow.
    Server,
    /// Information about an export; further replies follow.
    Info,
    /// A metadata context; further replies follow.
    MetaContext,
    /// The option is not supported.
    ErrUnsupported,
    /// Forbidden by configuration.
    ErrPolicy,
    /// The payload is malformed, or the option is not valid now.
    ErrInvalid,
    /// Not supported on the server's platform.
    ErrPlatform,
    /// The option requires TLS.
    ErrTlsRequired,
    /// The export does not exist.
    ErrUnknown,
    /// The server is shutting down.
    ErrShutdown,
    /// The client must request block sizes.
    ErrBlockSizeRequired,
    /// The payload is too long.
    ErrTooBig,
    /// Unknown; the top bit marks an error.
    Unknown(u32),
}

impl OptionReplyKind {
    const ERROR: u32 = 1 << 31;

    const TABLE: [(u32, OptionReplyKind); 13] = [
        (1, OptionReplyKind::Ack),
        (2, OptionReplyKind::Server),
        (3, OptionReplyKind::Info),
        (4, OptionReplyKind::MetaContext),
        (Self::ERROR | 1, OptionReplyKind::ErrUnsupported),
        (Self::ERROR | 2, OptionReplyKind::ErrPolicy),
        (Self::ERROR | 3, OptionReplyKind::ErrInvalid),
        (Self::ERROR | 4, OptionReplyKind::ErrPlatform),
        (Self::ERROR | 5, OptionReplyKind::ErrTlsRequired),
        (Self::ERROR | 6, OptionReplyKind::ErrUnknown),
        (Self::ERROR | 7, OptionReplyKind::ErrShutdown),
        (Self::ERROR | 8, OptionReplyKind::ErrBlockSizeRequired),
        (Self::ERROR | 9, OptionReplyKind::ErrTooBig),
    ];

    /// Decodes a reply number.
    pub fn from_wire(number: u32) -> Self {
        let entry = Self::TABLE.iter().find(|(code, _)| *code == number);
        entry.map_or(OptionReplyKind::Unknown(number), |(_, kind)| *kind)
    }

    /// Encodes the reply number.
    pub fn to_wire(self) -> u32 {
        match self {
            OptionReplyKind::Unknown(number) => number,
            known => Self::TABLE.iter().find(|(_, kind)| *kind == known).map_or(Self::ERROR | 1, |(code, _)| *code),
        }
    }

    /// True for errors.
    pub fn is_error(self) -> bool {
        self.to_wire() & Self::ERROR != 0
    }
}

/// Header of an option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option.
    pub option: OptionKind,
    /// Type of the reply.
    pub kind: OptionReplyKind,
    /// Length of the payload in bytes, at most [`OPTION_PAYLOAD_BYTES_MAX`].
    pub len: u32,
}

impl OptionReplyHeader {
    /// Length without payload.
    pub const BYTES: usize = 20;

    /// Decodes the header at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Decoded<OptionReplyHeader> {
        let mut reader = PayloadReader(bytes);
        let Some(magic) = reader.u64() else { return Ok(Step::Incomplete(OptionReplyHeader::BYTES)) };
        if magic != REPLY_MAGIC {
            return Err(ProtocolError::Magic { item: "an option's reply", found: magic });
        }
        let (Some(option), Some(kind), Some(len)) = (reader.u32(), reader.u32(), reader.u32()) else {
            return Ok(Step::Incomplete(OptionReplyHeader::BYTES));
        };
        if len as usize > OPTION_PAYLOAD_BYTES_MAX {
            let max = OPTION_PAYLOAD_BYTES_MAX as u64;
            return Err(ProtocolError::TooLong { item: "an option's reply", len: len.into(), max });
        }
        let (option, kind) = (OptionKind::from_wire(option), OptionReplyKind::from_wire(kind));
        Ok(Step::Got(OptionReplyHeader { option, kind, len }, OptionReplyHeader::BYTES))
    }
}

/// Appends an option reply with its payload.
pub fn push_option_reply(out: &mut Vec<u8>, option: OptionKind, kind: OptionReplyKind, payload: &[u8]) {
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_wire().to_be_bytes());
    out.extend_from_slice(&kind.to_wire().to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_and_reply_round_trip() {
        let mut bytes = Vec::new();
        push_option(&mut bytes, OptionKind::Go, b"payload");
        assert_eq!(OptionHeader::decode(&bytes), Ok(Step::Got(OptionHeader { kind: OptionKind::Go, len: 7 }, 16)));
        bytes.clear();
        push_option_reply(&mut bytes, OptionKind::Go, OptionReplyKind::ErrUnknown, b"no such export");
        let expected = OptionReplyHeader { option: OptionKind::Go, kind: OptionReplyKind::ErrUnknown, len: 14 };
        assert_eq!(OptionReplyHeader::decode(&bytes), Ok(Step::Got(expected, 20)));
    }

    #[test]
    fn payload_of_gigabytes_is_an_error() {
        let mut bytes = Vec::new();
        push_option(&mut bytes, OptionKind::List, b"");
        bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(OptionHeader::decode(&bytes), Err(ProtocolError::TooLong { .. })));
    }

    #[test]
    fn option_and_reply_numbers_round_trip() {
        for number in (0..20).chain((1 << 31)..(1 << 31) + 20) {
            assert_eq!(OptionKind::from_wire(number).to_wire(), number);
            assert_eq!(OptionReplyKind::from_wire(number).to_wire(), number);
            assert_eq!(OptionReplyKind::from_wire(number).is_error(), number >= 1 << 31);
        }
    }
}
