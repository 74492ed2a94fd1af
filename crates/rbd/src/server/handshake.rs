//! The server's side of the handshake, for one client: the daemon. It uses structured replies and `GO`.

use std::io::{self, Read, Write};

use nbd_protocol::greeting::{CLIENT_FLAGS_BYTES, decode_client_flags, greeting};
use nbd_protocol::info::Info;
use nbd_protocol::meta::{MetaRequest, encode_context};
use nbd_protocol::option::push_option_reply;
use nbd_protocol::{OptionHeader, OptionKind, OptionReplyKind, ProtocolError, Step, flags};

/// Context identifier of `base:allocation`.
pub const ALLOCATION_CONTEXT: u32 = 1;
/// Longest read or write, in bytes: an object of the default size.
pub const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Flags of the export.
const EXPORT_FLAGS: u16 =
    flags::HAS_FLAGS | flags::SEND_FLUSH | flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO | flags::CAN_MULTI_CONN;

/// Negotiates; false if the client ended the handshake.
pub fn negotiate(
    incoming: &mut impl Read,
    mut outgoing: impl Write,
    size_bytes: impl Fn() -> io::Result<u64>,
) -> io::Result<bool> {
    outgoing.write_all(&greeting())?;
    let mut client_flags = [0; CLIENT_FLAGS_BYTES];
    incoming.read_exact(&mut client_flags)?;
    decode_client_flags(&client_flags).map_err(invalid)?;
    let mut is_structured = false;
    loop {
        let mut header = [0; OptionHeader::BYTES];
        incoming.read_exact(&mut header)?;
        let Step::Got(header, _) = OptionHeader::decode(&header).map_err(invalid)? else {
            unreachable!("all bytes of the header are there")
        };
        let mut payload = vec![0; header.len as usize];
        incoming.read_exact(&mut payload)?;
        let mut out = Vec::new();
        let mut is_chosen = false;
        match header.kind {
            OptionKind::StructuredReply => {
                is_structured = true;
                push_option_reply(&mut out, header.kind, OptionReplyKind::Ack, b"");
            }
            OptionKind::SetMetaContext if is_structured => {
                if MetaRequest::decode(&payload).map_err(invalid)?.wants_base_allocation {
                    let context = encode_context(ALLOCATION_CONTEXT, flags::BASE_ALLOCATION);
                    push_option_reply(&mut out, header.kind, OptionReplyKind::MetaContext, &context);
                }
                push_option_reply(&mut out, header.kind, OptionReplyKind::Ack, b"");
            }
            OptionKind::Go if is_structured => {
                let infos = [
                    Info::Export { size_bytes: size_bytes()?, flags: EXPORT_FLAGS },
                    Info::BlockSize { min: 512, preferred: 4096, max: REQUEST_BYTES_MAX },
                ];
                for info in infos {
                    push_option_reply(&mut out, header.kind, OptionReplyKind::Info, &info.encode());
                }
                push_option_reply(&mut out, header.kind, OptionReplyKind::Ack, b"");
                is_chosen = true;
            }
            OptionKind::Abort => return Ok(false),
            _ => push_option_reply(&mut out, header.kind, OptionReplyKind::ErrUnsupported, b"unsupported option"),
        }
        outgoing.write_all(&out)?;
        if is_chosen {
            return Ok(true);
        }
    }
}

/// A violation of the protocol, which ends the connection.
pub fn invalid(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
