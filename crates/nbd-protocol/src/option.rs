//! Options of the handshake and their replies: a head each, followed by a payload.

use crate::greeting::OPTION_MAGIC;
use crate::limits::{OPTION_PAYLOAD_BYTES_MAX, OPTION_PAYLOAD_BYTES_SKIPPED_MAX};
use crate::wire::Wire;
use crate::{Broken, Decoded, Step};

const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// What a client asks during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionKind {
    /// Take this export, without a proper answer; the payload is the name.
    ExportName,
    /// End the handshake.
    Abort,
    /// Name all exports.
    List,
    /// Speak TLS from now on.
    StartTls,
    /// Tell about an export.
    Info,
    /// Take this export.
    Go,
    /// Use structured replies.
    StructuredReply,
    /// Which metadata contexts are there.
    ListMetaContext,
    /// Use these metadata contexts.
    SetMetaContext,
    /// Use 64-bit headers.
    ExtendedHeaders,
    /// Something that is not spoken here.
    Unknown(u32),
}

impl OptionKind {
    /// From its number on the wire.
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

    /// Its number on the wire.
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

/// The head of an option, as the server reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// What is asked.
    pub kind: OptionKind,
    /// Bytes of payload that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Length on the wire, without payload.
    pub const BYTES: usize = 16;

    /// The head at the start of `bytes`. A payload past [`OPTION_PAYLOAD_BYTES_SKIPPED_MAX`] is broken.
    pub fn decode(bytes: &[u8]) -> Decoded<OptionHeader> {
        let mut wire = Wire(bytes);
        let Some(magic) = wire.u64() else { return Ok(Step::More(OptionHeader::BYTES)) };
        if magic != OPTION_MAGIC {
            return Err(Broken::Magic { what: "an option", found: magic });
        }
        let (Some(kind), Some(len)) = (wire.u32(), wire.u32()) else { return Ok(Step::More(OptionHeader::BYTES)) };
        if len > OPTION_PAYLOAD_BYTES_SKIPPED_MAX {
            let max = OPTION_PAYLOAD_BYTES_SKIPPED_MAX.into();
            return Err(Broken::TooLong { what: "an option's payload", len: len.into(), max });
        }
        Ok(Step::Got(OptionHeader { kind: OptionKind::from_wire(kind), len }, OptionHeader::BYTES))
    }

    /// True when the payload is too long to be looked at: it is skipped and answered with [`OptionReplyKind::ErrTooBig`].
    pub fn is_too_big(&self) -> bool {
        self.len as usize > OPTION_PAYLOAD_BYTES_MAX
    }
}

/// Appends an option with its payload, as a client sends it.
pub fn push_option(out: &mut Vec<u8>, kind: OptionKind, payload: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&kind.to_wire().to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
}

/// What a server answers to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionReplyKind {
    /// Done, and nothing more follows.
    Ack,
    /// An export's name; more follow.
    Server,
    /// A fact about an export; more follow.
    Info,
    /// A metadata context; more follow.
    MetaContext,
    /// The option is unknown.
    ErrUnsupported,
    /// Forbidden by configuration.
    ErrPolicy,
    /// The payload is malformed, or the option makes no sense now.
    ErrInvalid,
    /// Not possible on this server's machine.
    ErrPlatform,
    /// First TLS, then this.
    ErrTlsRequired,
    /// No such export.
    ErrUnknown,
    /// The server is shutting down.
    ErrShutdown,
    /// The client must ask for block sizes.
    ErrBlockSizeRequired,
    /// The payload is too long.
    ErrTooBig,
    /// Something unknown; its top bit tells an error.
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

    /// From its number on the wire.
    pub fn from_wire(number: u32) -> Self {
        let found = Self::TABLE.iter().find(|(wire, _)| *wire == number);
        found.map_or(OptionReplyKind::Unknown(number), |(_, kind)| *kind)
    }

    /// Its number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            OptionReplyKind::Unknown(number) => number,
            known => Self::TABLE.iter().find(|(_, kind)| *kind == known).map_or(Self::ERROR | 1, |(wire, _)| *wire),
        }
    }

    /// True for a refusal.
    pub fn is_error(self) -> bool {
        self.to_wire() & Self::ERROR != 0
    }
}

/// The head of an option's reply, as a client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: OptionKind,
    /// The answer.
    pub kind: OptionReplyKind,
    /// Bytes of payload that follow, at most [`OPTION_PAYLOAD_BYTES_MAX`].
    pub len: u32,
}

impl OptionReplyHeader {
    /// Length on the wire, without payload.
    pub const BYTES: usize = 20;

    /// The head at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Decoded<OptionReplyHeader> {
        let mut wire = Wire(bytes);
        let Some(magic) = wire.u64() else { return Ok(Step::More(OptionReplyHeader::BYTES)) };
        if magic != REPLY_MAGIC {
            return Err(Broken::Magic { what: "an option's reply", found: magic });
        }
        let (Some(option), Some(kind), Some(len)) = (wire.u32(), wire.u32(), wire.u32()) else {
            return Ok(Step::More(OptionReplyHeader::BYTES));
        };
        if len as usize > OPTION_PAYLOAD_BYTES_MAX {
            let max = OPTION_PAYLOAD_BYTES_MAX as u64;
            return Err(Broken::TooLong { what: "an option's reply", len: len.into(), max });
        }
        let (option, kind) = (OptionKind::from_wire(option), OptionReplyKind::from_wire(kind));
        Ok(Step::Got(OptionReplyHeader { option, kind, len }, OptionReplyHeader::BYTES))
    }
}

/// Appends the answer to an option, with its payload.
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
    fn an_option_and_its_reply_survive_the_wire() {
        let mut bytes = Vec::new();
        push_option(&mut bytes, OptionKind::Go, b"payload");
        assert_eq!(OptionHeader::decode(&bytes), Ok(Step::Got(OptionHeader { kind: OptionKind::Go, len: 7 }, 16)));
        bytes.clear();
        push_option_reply(&mut bytes, OptionKind::Go, OptionReplyKind::ErrUnknown, b"no such export");
        let expected = OptionReplyHeader { option: OptionKind::Go, kind: OptionReplyKind::ErrUnknown, len: 14 };
        assert_eq!(OptionReplyHeader::decode(&bytes), Ok(Step::Got(expected, 20)));
    }

    #[test]
    fn a_payload_of_gigabytes_is_broken_not_awaited() {
        let mut bytes = Vec::new();
        push_option(&mut bytes, OptionKind::List, b"");
        bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(OptionHeader::decode(&bytes), Err(Broken::TooLong { .. })));
    }

    #[test]
    fn numbers_survive_and_errors_are_told() {
        for number in (0..20).chain((1 << 31)..(1 << 31) + 20) {
            assert_eq!(OptionKind::from_wire(number).to_wire(), number);
            assert_eq!(OptionReplyKind::from_wire(number).to_wire(), number);
            assert_eq!(OptionReplyKind::from_wire(number).is_error(), number >= 1 << 31);
        }
    }
}
