//! Replies of the transmission phase: simple replies (16 bytes, then the data of a read) and chunks of structured
//! replies (20 bytes, then a payload that depends on the type).

use crate::limits::{CHUNK_PAYLOAD_BYTES_MAX, DATA_BYTES_MAX};
use crate::wire::PayloadReader;
use crate::{Decoded, Errno, ProtocolError, Step};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Chunk flag: last chunk of the reply.
pub const DONE: u16 = 1 << 0;

/// Type of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// No payload: the request is complete.
    None,
    /// Offset and data.
    Data,
    /// Offset and length of zeroes.
    Hole,
    /// Metadata context and extents.
    BlockStatus,
    /// Error of the whole request.
    Error,
    /// Error at an offset.
    ErrorOffset,
    /// Unknown; the top bit marks an error.
    Unknown(u16),
}

impl ChunkKind {
    /// Decodes a type number.
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => ChunkKind::None,
            1 => ChunkKind::Data,
            2 => ChunkKind::Hole,
            5 => ChunkKind::BlockStatus,
            0x8001 => ChunkKind::Error,
            0x8002 => ChunkKind::ErrorOffset,
            other => ChunkKind::Unknown(other),
        }
    }

    /// Encodes the type number.
    pub const fn to_wire(self) -> u16 {
        match self {
            ChunkKind::None => 0,
            ChunkKind::Data => 1,
            ChunkKind::Hole => 2,
            ChunkKind::BlockStatus => 5,
            ChunkKind::Error => 0x8001,
            ChunkKind::ErrorOffset => 0x8002,
            ChunkKind::Unknown(number) => number,
        }
    }

    /// True for errors, known or unknown.
    pub const fn is_error(self) -> bool {
        self.to_wire() & 0x8000 != 0
    }
}

/// Encodes the header of a simple reply; the data of a successful read follow.
#[inline]
pub fn simple(cookie: u64, error: Option<Errno>) -> [u8; 16] {
    let mut out = [0; 16];
    out[0..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.map_or(0, Errno::to_wire).to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Encodes the header of a chunk; `len` bytes of payload follow.
#[inline]
pub fn chunk(cookie: u64, kind: ChunkKind, flags: u16, len: u32) -> [u8; 20] {
    let mut out = [0; 20];
    out[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_wire().to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..20].copy_from_slice(&len.to_be_bytes());
    out
}

/// Encodes the header of a data chunk; `len` bytes of data from `offset` on follow.
#[inline]
pub fn data_chunk(cookie: u64, offset: u64, len: u32, flags: u16) -> [u8; 28] {
    let mut out = [0; 28];
    out[0..20].copy_from_slice(&chunk(cookie, ChunkKind::Data, flags, len + 8));
    out[20..28].copy_from_slice(&offset.to_be_bytes());
    out
}

/// Encodes a complete hole chunk: `len` zeroes from `offset` on.
pub fn hole_chunk(cookie: u64, offset: u64, len: u32, flags: u16) -> [u8; 32] {
    let mut out = [0; 32];
    out[0..20].copy_from_slice(&chunk(cookie, ChunkKind::Hole, flags, 12));
    out[20..28].copy_from_slice(&offset.to_be_bytes());
    out[28..32].copy_from_slice(&len.to_be_bytes());
    out
}

/// Appends a complete error chunk, the last of its reply, with an offset if given.
pub fn push_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, offset: Option<u64>) {
    let text = error.text().as_bytes();
    let kind = if offset.is_some() { ChunkKind::ErrorOffset } else { ChunkKind::Error };
    let len = 4 + 2 + text.len() + if offset.is_some() { 8 } else { 0 };
    out.extend_from_slice(&chunk(cookie, kind, DONE, len as u32));
    out.extend_from_slice(&error.to_wire().to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
    offset.iter().for_each(|offset| out.extend_from_slice(&offset.to_be_bytes()));
}

/// Appends a complete block status chunk, the last of its reply. Extents are (bytes, flags).
pub fn push_status_chunk(out: &mut Vec<u8>, cookie: u64, context: u32, extents: &[(u32, u32)]) {
    out.extend_from_slice(&chunk(cookie, ChunkKind::BlockStatus, DONE, 4 + 8 * extents.len() as u32));
    out.extend_from_slice(&context.to_be_bytes());
    for (len, flags) in extents {
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
    }
}

/// Header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply; the data of a successful read follow.
    Simple {
        /// Cookie of the request.
        cookie: u64,
        /// Error, if any.
        error: Option<Errno>,
    },
    /// A chunk of a structured reply; `len` bytes of payload follow.
    Chunk {
        /// Cookie of the request.
        cookie: u64,
        /// Type of the payload.
        kind: ChunkKind,
        /// True for the last chunk.
        done: bool,
        /// Length of the payload in bytes.
        len: u32,
    },
}

impl ReplyHeader {
    /// Decodes the header at the start of `bytes`. A payload beyond the limit of its type is an error.
    pub fn decode(bytes: &[u8]) -> Decoded<ReplyHeader> {
        let mut reader = PayloadReader(bytes);
        let Some(magic) = reader.u32() else { return Ok(Step::Incomplete(16)) };
        match magic {
            SIMPLE_MAGIC => {
                let (Some(error), Some(cookie)) = (reader.u32(), reader.u64()) else { return Ok(Step::Incomplete(16)) };
                Ok(Step::Got(ReplyHeader::Simple { cookie, error: Errno::from_wire(error) }, 16))
            }
            CHUNK_MAGIC => {
                let (Some(flags), Some(kind), Some(cookie), Some(len)) =
                    (reader.u16(), reader.u16(), reader.u64(), reader.u32())
                else {
                    return Ok(Step::Incomplete(20));
                };
                let kind = ChunkKind::from_wire(kind);
                let max = if kind == ChunkKind::Data { DATA_BYTES_MAX + 8 } else { CHUNK_PAYLOAD_BYTES_MAX as u32 };
                if len > max {
                    return Err(ProtocolError::TooLong { item: "a chunk", len: len.into(), max: max.into() });
                }
                Ok(Step::Got(ReplyHeader::Chunk { cookie, kind, done: flags & DONE != 0, len }, 20))
            }
            found => Err(ProtocolError::Magic { item: "a reply", found: found.into() }),
        }
    }
}

/// Decodes the payload of an error chunk: error and text.
pub fn parse_error(payload: &[u8]) -> Result<(Errno, &str), ProtocolError> {
    let broken = || ProtocolError::Malformed("error chunk");
    let mut reader = PayloadReader(payload);
    let error = Errno::from_wire(reader.u32().ok_or_else(broken)?).ok_or_else(broken)?;
    let len = reader.u16().ok_or_else(broken)?;
    let text = reader.bytes(len.into()).ok_or_else(broken)?;
    Ok((error, std::str::from_utf8(text).unwrap_or("")))
}

/// Decodes the offset at the start of a data chunk's payload.
pub fn parse_data_offset(payload: &[u8]) -> Option<u64> {
    PayloadReader(payload).u64()
}

/// Decodes the payload of a hole chunk: offset and length.
pub fn parse_hole(payload: &[u8]) -> Result<(u64, u32), ProtocolError> {
    let mut reader = PayloadReader(payload);
    match (reader.u64(), reader.u32(), reader.is_empty()) {
        (Some(offset), Some(len), true) => Ok((offset, len)),
        _ => Err(ProtocolError::Malformed("hole chunk")),
    }
}

/// Decodes the payload of a block status chunk: context and extents as (bytes, flags), none of them empty.
pub fn parse_status(payload: &[u8]) -> Result<(u32, Vec<(u32, u32)>), ProtocolError> {
    let broken = || ProtocolError::Malformed("block status chunk");
    let mut reader = PayloadReader(payload);
    let context = reader.u32().ok_or_else(broken)?;
    let mut extents = Vec::with_capacity(reader.0.len() / 8);
    while !reader.is_empty() {
        match (reader.u32(), reader.u32()) {
            (Some(len), Some(flags)) if len > 0 => extents.push((len, flags)),
            _ => return Err(broken()),
        }
    }
    if extents.is_empty() { Err(broken()) } else { Ok((context, extents)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload_of(bytes: &[u8]) -> (ReplyHeader, &[u8]) {
        let Ok(Step::Got(header, used)) = ReplyHeader::decode(bytes) else { panic!("the header is incomplete") };
        (header, &bytes[used..])
    }

    #[test]
    fn simple_replies_round_trip() {
        for error in [None, Some(Errno::Io)] {
            let bytes = simple(7, error);
            assert_eq!(ReplyHeader::decode(&bytes), Ok(Step::Got(ReplyHeader::Simple { cookie: 7, error }, 16)));
            assert_eq!(ReplyHeader::decode(&bytes[..15]), Ok(Step::Incomplete(16)));
        }
    }

    #[test]
    fn every_chunk_round_trips() {
        let data = [&data_chunk(7, 4096, 4, DONE)[..], b"data"].concat();
        let (header, payload) = payload_of(&data);
        assert_eq!(header, ReplyHeader::Chunk { cookie: 7, kind: ChunkKind::Data, done: true, len: 12 });
        assert_eq!((parse_data_offset(payload), &payload[8..]), (Some(4096), &b"data"[..]));

        assert_eq!(parse_hole(payload_of(&hole_chunk(7, 1 << 33, 65536, 0)).1), Ok((1 << 33, 65536)));

        let mut bytes = Vec::new();
        push_error_chunk(&mut bytes, 7, Errno::NoSpace, Some(512));
        let (header, payload) = payload_of(&bytes);
        assert!(matches!(header, ReplyHeader::Chunk { kind: ChunkKind::ErrorOffset, done: true, .. }));
        assert_eq!(parse_error(payload), Ok((Errno::NoSpace, Errno::NoSpace.text())));

        bytes.clear();
        push_status_chunk(&mut bytes, 7, 1, &[(4096, 0), (8192, 3)]);
        assert_eq!(parse_status(payload_of(&bytes).1), Ok((1, vec![(4096, 0), (8192, 3)])));
    }

    #[test]
    fn chunk_with_wrong_length_is_an_error() {
        assert!(ReplyHeader::decode(&chunk(7, ChunkKind::Data, DONE, u32::MAX)).is_err());
        assert!(ReplyHeader::decode(&chunk(7, ChunkKind::Error, DONE, 2 << 20)).is_err());
        assert!(parse_error(&[0, 0, 0, 5, 0, 9, b'x']).is_err());
        assert!(parse_status(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "an empty extent");
        assert!(parse_hole(&[0; 13]).is_err());
    }
}
