//! Requests of the transmission phase: 28 bytes, followed by `len` bytes of data for a write.

use crate::wire::PayloadReader;
use crate::{Command, Decoded, ProtocolError, Step};

const MAGIC: u32 = 0x2560_9513;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags of [`crate::command`].
    pub flags: u16,
    /// Command.
    pub command: Command,
    /// Cookie, returned in the reply.
    pub cookie: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Request {
    /// Length without data.
    pub const BYTES: usize = 28;

    /// Decodes the request at the start of `bytes`.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Decoded<Request> {
        let Some(head) = bytes.first_chunk::<{ Request::BYTES }>() else {
            return Ok(Step::Incomplete(Request::BYTES));
        };
        let mut reader = PayloadReader(head);
        // The header has exactly the bytes of these fields, so the defaults are never used.
        let magic = reader.u32().unwrap_or_default();
        if magic != MAGIC {
            return Err(ProtocolError::Magic { item: "a request", found: magic.into() });
        }
        let request = Request {
            flags: reader.u16().unwrap_or_default(),
            command: Command::from_wire(reader.u16().unwrap_or_default()),
            cookie: reader.u64().unwrap_or_default(),
            offset: reader.u64().unwrap_or_default(),
            len: reader.u32().unwrap_or_default(),
        };
        Ok(Step::Got(request, Request::BYTES))
    }

    /// Encodes the request.
    pub fn encode(&self) -> [u8; Request::BYTES] {
        let mut out = [0; Request::BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_wire().to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Request = Request {
        flags: crate::command::FUA,
        command: Command::Write,
        cookie: 0x0102_0304_0506_0708,
        offset: 1 << 40,
        len: 4096,
    };

    #[test]
    fn request_round_trips() {
        let bytes = WRITE.encode();
        assert_eq!(Request::decode(&bytes), Ok(Step::Got(WRITE, 28)));
        let read = Request { command: Command::Read, flags: 0, ..WRITE };
        assert_eq!(read.encode()[4..8], [0, 0, 0, 0]);
    }

    #[test]
    fn partial_request_needs_more_bytes() {
        let bytes = WRITE.encode();
        for len in 0..28 {
            assert_eq!(Request::decode(&bytes[..len]), Ok(Step::Incomplete(28)));
        }
    }

    #[test]
    fn error_for_garbage_names_the_bytes() {
        let error = Request::decode(b"GET / HTTP/1.1\r\nHost: somewhere").unwrap_err();
        assert_eq!(error, ProtocolError::Magic { item: "a request", found: 0x4745_5420 });
    }
}
