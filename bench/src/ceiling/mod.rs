//! The ceiling: what a server can do on this machine that does nothing but copy between socket and memory.
//!
//! Two variants, a blocking thread a connection and one core of the project's runtime, share the handshake. Both read up to
//! [`RECEIVE_BYTES`] in one call, serve all requests in it, and answer them in one call, without copying what is read: that batching is
//! worth more than anything else at depth (at depth 32 a call carries several requests). At depth 1 a hit costs the server about 9 µs
//! of CPU, nearly all of it the kernel's socket code and the client's wake-up; what is left to save there is the server's own wake-up.

pub mod seam;
pub mod seam_file;
pub mod threads;

use nbd_protocol::option::{OptionHeader, OptionKind, OptionReplyKind, push_option_reply};
use nbd_protocol::{Broken, Step, flags, greeting, info};

/// Room for what one call receives.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Longest request that is served.
pub const REQUEST_BYTES_MAX: usize = 128 << 10;
/// Replies of this many bytes are sent before more requests are looked at.
pub const REPLY_BYTES: usize = 1 << 20;

/// A handshake's server side, fed with what arrives.
pub struct Handshake {
    size_bytes: u64,
    greeted: bool,
}

/// How far a handshake came.
pub enum Progress {
    /// More has to arrive.
    More,
    /// The client may send requests.
    Done,
    /// The client leaves.
    Left,
}

impl Handshake {
    /// A server of one export with this size, under any name.
    pub fn new(size_bytes: u64) -> Handshake {
        Handshake { size_bytes, greeted: false }
    }

    /// What is said before the client says anything.
    pub fn greeting(&self) -> [u8; greeting::GREETING_BYTES] {
        greeting::greeting()
    }

    /// Takes what it understands from the front of `arrived` and appends the answer to `out`.
    pub fn step(&mut self, arrived: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<Progress, Broken> {
        loop {
            if !self.greeted {
                let Step::Got(_, used) = greeting::decode_client_flags(arrived)? else { return Ok(Progress::More) };
                arrived.drain(..used);
                self.greeted = true;
            }
            let Step::Got(option, used) = OptionHeader::decode(arrived)? else { return Ok(Progress::More) };
            let whole = used + option.len as usize;
            if option.is_too_big() {
                return Err(Broken::Malformed("option"));
            }
            if arrived.len() < whole {
                return Ok(Progress::More);
            }
            arrived.drain(..whole);
            let reply = |out: &mut Vec<u8>, kind, payload: &[u8]| push_option_reply(out, option.kind, kind, payload);
            match option.kind {
                OptionKind::Go | OptionKind::Info => {
                    let flags = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::CAN_MULTI_CONN;
                    let export = info::Info::Export { size_bytes: self.size_bytes, flags };
                    let limits = info::Info::BlockSize { min: 512, preferred: 4096, max: REQUEST_BYTES_MAX as u32 };
                    reply(out, OptionReplyKind::Info, &export.encode());
                    reply(out, OptionReplyKind::Info, &limits.encode());
                    reply(out, OptionReplyKind::Ack, &[]);
                    if option.kind == OptionKind::Go {
                        return Ok(Progress::Done);
                    }
                }
                OptionKind::Abort => {
                    reply(out, OptionReplyKind::Ack, &[]);
                    return Ok(Progress::Left);
                }
                _ => reply(out, OptionReplyKind::ErrUnsupported, &[]),
            }
        }
    }
}
