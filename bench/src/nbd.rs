//! An NBD connection in the transmission phase, for clients that fio cannot imitate.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nbd_protocol::greeting::{GREETING_BYTES, client_flags, decode_greeting};
use nbd_protocol::info::InfoRequest;
use nbd_protocol::option::push_option;
use nbd_protocol::{OptionKind, OptionReplyHeader, OptionReplyKind, Step};

fn io_error(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Connects to `export` and negotiates up to the transmission phase.
pub fn connect(socket: &Path, export: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting)?;
    let Step::Got(flags, _) = decode_greeting(&greeting).map_err(io_error)? else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let mut out = client_flags(flags).map_err(io_error)?.to_vec();
    let request = InfoRequest { name: export, wants_block_size: false, wants_name: false, wants_description: false };
    push_option(&mut out, OptionKind::Go, &request.encode());
    stream.write_all(&out)?;
    loop {
        let mut bytes = [0; OptionReplyHeader::BYTES];
        stream.read_exact(&mut bytes)?;
        let Step::Got(header, _) = OptionReplyHeader::decode(&bytes).map_err(io_error)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        stream.read_exact(&mut vec![0; header.len as usize])?;
        match header.kind {
            OptionReplyKind::Ack => return Ok(stream),
            OptionReplyKind::Info => {}
            kind => return Err(io_error(format!("the server refused export {export:?}: {kind:?}"))),
        }
    }
}
