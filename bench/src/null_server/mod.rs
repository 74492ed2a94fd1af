//! The null server, which only copies between socket and memory: the upper bound of an NBD server on this machine.
//!
//! Two variants share the handshake: a blocking thread per connection, and one core of the project's runtime. Both read
//! up to [`RECEIVE_BYTES`] in one call, serve all requests in it, and reply in one call without copying the read data.
//! That batching has the largest effect at depth, because at depth 32 a call carries several requests. At depth 1 a hit
//! costs the server about 9 µs of CPU, nearly all of it in the kernel's socket code and the client's wake-up. Only the
//! server's own wake-up could still be saved there.

pub mod seam;
pub mod seam_file;
pub mod threads;

use nbd_protocol::option::{OptionHeader, OptionKind, OptionReplyKind, push_option_reply};
use nbd_protocol::{ProtocolError, Step, flags, greeting, info};

/// Size of the receive buffer of one call.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Longest served request.
pub const REQUEST_BYTES_MAX: usize = 128 << 10;
/// Amount of replies that is sent before further requests are decoded.
pub const REPLY_BYTES: usize = 1 << 20;

/// Server side of a handshake, fed with received bytes.
pub struct Handshake {
    size_bytes: u64,
    /// True after the client has answered the greeting.
    is_greeted: bool,
}

/// State of a handshake.
pub enum Progress {
    /// More bytes are needed.
    More,
    /// The client may send requests.
    Done,
    /// The client disconnects.
    Disconnected,
}

impl Handshake {
    /// A server of one export of this size, under any name.
    pub fn new(size_bytes: u64) -> Handshake {
        Handshake { size_bytes, is_greeted: false }
    }

    /// The server's initial greeting.
    pub fn greeting(&self) -> [u8; greeting::GREETING_BYTES] {
        greeting::greeting()
    }

    /// Consumes complete messages from the front of `arrived` and appends the replies to `out`.
    pub fn step(&mut self, arrived: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<Progress, ProtocolError> {
        loop {
            if !self.is_greeted {
                let Step::Got(_, used) = greeting::decode_client_flags(arrived)? else { return Ok(Progress::More) };
                arrived.drain(..used);
                self.is_greeted = true;
            }
            let Step::Got(option, used) = OptionHeader::decode(arrived)? else { return Ok(Progress::More) };
            let option_bytes = used + option.len as usize;
            if option.is_too_big() {
                return Err(ProtocolError::Malformed("option"));
            }
            if arrived.len() < option_bytes {
                return Ok(Progress::More);
            }
            arrived.drain(..option_bytes);
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
                    return Ok(Progress::Disconnected);
                }
                _ => reply(out, OptionReplyKind::ErrUnsupported, &[]),
            }
        }
    }
}
