//! Payloads of `GO`, `INFO` and `LIST`, and of the replies to them.

use crate::ProtocolError;
use crate::limits::NAME_BYTES_MAX;
use crate::wire::{PayloadReader, push_text};

/// Types of information, by number.
pub mod kind {
    /// Size and flags; always sent.
    pub const EXPORT: u16 = 0;
    /// Name of the export.
    pub const NAME: u16 = 1;
    /// Description.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum request size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Payload of `GO` or `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default export.
    pub name: &'a str,
    /// True if block sizes are requested.
    pub wants_block_size: bool,
    /// True if the name is requested.
    pub wants_name: bool,
    /// True if the description is requested.
    pub wants_description: bool,
}

impl<'a> InfoRequest<'a> {
    /// Decodes the payload of `GO` or `INFO`.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let broken = ProtocolError::Malformed("GO or INFO");
        let mut reader = PayloadReader(payload);
        let name = reader.text(NAME_BYTES_MAX).ok_or(broken.clone())?;
        let count = reader.u16().ok_or(broken.clone())?;
        let mut request = InfoRequest { name, wants_block_size: false, wants_name: false, wants_description: false };
        for _ in 0..count {
            match reader.u16().ok_or(broken.clone())? {
                kind::BLOCK_SIZE => request.wants_block_size = true,
                kind::NAME => request.wants_name = true,
                kind::DESCRIPTION => request.wants_description = true,
                _ => (),
            }
        }
        if reader.is_empty() { Ok(request) } else { Err(broken) }
    }

    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let requested = [
            (self.wants_block_size, kind::BLOCK_SIZE),
            (self.wants_name, kind::NAME),
            (self.wants_description, kind::DESCRIPTION),
        ];
        let requested: Vec<u16> =
            requested.into_iter().filter(|(is_requested, _)| *is_requested).map(|(_, kind)| kind).collect();
        let mut out = Vec::new();
        push_text(&mut out, self.name);
        out.extend_from_slice(&(requested.len() as u16).to_be_bytes());
        requested.iter().for_each(|kind| out.extend_from_slice(&kind.to_be_bytes()));
        out
    }
}

/// Information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// Size and flags.
    Export {
        /// Size in bytes.
        size_bytes: u64,
        /// Flags of [`crate::flags`].
        flags: u16,
    },
    /// Name.
    Name(&'a str),
    /// Description.
    Description(&'a str),
    /// Limits on requests, in bytes.
    BlockSize {
        /// Minimum request size and alignment.
        min: u32,
        /// Preferred alignment.
        preferred: u32,
        /// Maximum length of a read or write.
        max: u32,
    },
    /// Unknown information, which is ignored.
    Other(u16),
}

impl<'a> Info<'a> {
    /// Decodes the payload of an `INFO` reply.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let broken = || ProtocolError::Malformed("INFO reply");
        let mut reader = PayloadReader(payload);
        let info = match reader.u16().ok_or_else(broken)? {
            kind::EXPORT => {
                Info::Export { size_bytes: reader.u64().ok_or_else(broken)?, flags: reader.u16().ok_or_else(broken)? }
            }
            kind::NAME => Info::Name(std::str::from_utf8(reader.0).map_err(|_| broken())?),
            kind::DESCRIPTION => Info::Description(std::str::from_utf8(reader.0).map_err(|_| broken())?),
            kind::BLOCK_SIZE => Info::BlockSize {
                min: reader.u32().ok_or_else(broken)?,
                preferred: reader.u32().ok_or_else(broken)?,
                max: reader.u32().ok_or_else(broken)?,
            },
            other => Info::Other(other),
        };
        Ok(info)
    }

    /// Encodes the payload of an `INFO` reply.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let push16 = |out: &mut Vec<u8>, number: u16| out.extend_from_slice(&number.to_be_bytes());
        match self {
            Info::Export { size_bytes, flags } => {
                push16(&mut out, kind::EXPORT);
                out.extend_from_slice(&size_bytes.to_be_bytes());
                push16(&mut out, *flags);
            }
            Info::Name(text) => {
                push16(&mut out, kind::NAME);
                out.extend_from_slice(text.as_bytes());
            }
            Info::Description(text) => {
                push16(&mut out, kind::DESCRIPTION);
                out.extend_from_slice(text.as_bytes());
            }
            Info::BlockSize { min, preferred, max } => {
                push16(&mut out, kind::BLOCK_SIZE);
                [min, preferred, max].iter().for_each(|size| out.extend_from_slice(&size.to_be_bytes()));
            }
            Info::Other(number) => push16(&mut out, *number),
        }
        out
    }
}

/// Encodes the payload of a `SERVER` reply to `LIST`: name and description.
pub fn encode_server(name: &str, description: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push_text(&mut out, name);
    out.extend_from_slice(description.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_request_round_trips() {
        let request = InfoRequest { name: "vm1", wants_block_size: true, wants_name: false, wants_description: true };
        assert_eq!(InfoRequest::parse(&request.encode()), Ok(request));
    }

    #[test]
    fn go_request_with_wrong_lengths_is_malformed() {
        let request = InfoRequest { name: "vm1", wants_block_size: true, wants_name: true, wants_description: true };
        let whole = request.encode();
        for len in 0..whole.len() {
            assert!(InfoRequest::parse(&whole[..len]).is_err(), "cut to {len} bytes");
        }
        assert!(InfoRequest::parse(&[&whole[..], b"x"].concat()).is_err());
        let mut long = whole.clone();
        long[0..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(InfoRequest::parse(&long).is_err());
        let mut not_utf8 = whole;
        not_utf8[4] = 0xff;
        assert!(InfoRequest::parse(&not_utf8).is_err(), "the name is not UTF-8");
    }

    #[test]
    fn every_information_type_round_trips() {
        let infos = [
            Info::Export { size_bytes: 1 << 40, flags: 0x5ed },
            Info::Name("vm1"),
            Info::Description("the mail server"),
            Info::BlockSize { min: 512, preferred: 4096, max: 64 << 20 },
            Info::Other(77),
        ];
        for info in infos {
            assert_eq!(Info::parse(&info.encode()), Ok(info));
        }
    }
}
