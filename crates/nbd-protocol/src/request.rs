//! A request in transmission: 28 bytes, followed by `len` bytes of data if it is a write.

use crate::wire::Wire;
use crate::{Broken, Command, Decoded, Step};

const MAGIC: u32 = 0x2560_9513;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`crate::command`].
    pub flags: u16,
    /// What to do.
    pub command: Command,
    /// The client's own name for the request; comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Length on the wire, without data.
    pub const BYTES: usize = 28;

    /// The first request in `bytes`.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Decoded<Request> {
        let Some(head) = bytes.first_chunk::<{ Request::BYTES }>() else {
            return Ok(Step::More(Request::BYTES));
        };
        let mut wire = Wire(head);
        // A head has exactly the bytes that are taken from it here; the zeroes are never used.
        let magic = wire.u32().unwrap_or_default();
        if magic != MAGIC {
            return Err(Broken::Magic { what: "a request", found: magic.into() });
        }
        let request = Request {
            flags: wire.u16().unwrap_or_default(),
            command: Command::from_wire(wire.u16().unwrap_or_default()),
            cookie: wire.u64().unwrap_or_default(),
            offset: wire.u64().unwrap_or_default(),
            len: wire.u32().unwrap_or_default(),
        };
        Ok(Step::Got(request, Request::BYTES))
    }

    /// As it goes over the wire.
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
    fn a_request_survives_the_wire() {
        let bytes = WRITE.encode();
        assert_eq!(Request::decode(&bytes), Ok(Step::Got(WRITE, 28)));
        let read = Request { command: Command::Read, flags: 0, ..WRITE };
        assert_eq!(read.encode()[4..8], [0, 0, 0, 0]);
    }

    #[test]
    fn a_part_of_a_request_asks_for_more() {
        let bytes = WRITE.encode();
        for len in 0..28 {
            assert_eq!(Request::decode(&bytes[..len]), Ok(Step::More(28)));
        }
    }

    #[test]
    fn garbage_is_named() {
        let error = Request::decode(b"GET / HTTP/1.1\r\nHost: somewhere").unwrap_err();
        assert_eq!(error, Broken::Magic { what: "a request", found: 0x4745_5420 });
    }
}
