//! The client's side of the handshake: opens an export and reads its properties.

use std::io;

use nbd_protocol::greeting::{client_flags, decode_greeting};
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::meta::{MetaRequest, decode_context};
use nbd_protocol::option::push_option;
use nbd_protocol::{Decoded, OptionKind, OptionReplyHeader, OptionReplyKind, ProtocolError, Step, flags};
use seam::{BLOCK_BYTES, BufferedReader, Gather, SECTOR_BYTES, Seam, StreamReader, StreamWriter};

use crate::export_info::ExportInfo;

/// Longest request to a server that states no limit, from the specification.
const DEFAULT_REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Length of the reply to `EXPORT_NAME`: the size and the flags of the export.
const EXPORT_NAME_REPLY_BYTES: usize = 8 + 2;
/// Zeroes that follow this reply, unless both sides have agreed to omit them (`NO_ZEROES`).
const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Why an export could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum NegotiateError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("the server refuses the export \"{export}\": {reason}")]
    Refused { export: String, reason: String },
    #[error("the server accepts requests of {min} to {max} bytes; 4096 must be in this range")]
    BlockSize { min: u32, max: u32 },
    #[error("the export belongs to this daemon itself; specify the volume's own storage as its backing")]
    Own,
    #[error("the export's size of {0} bytes is not a multiple of its block size")]
    Size(u64),
}

/// Performs the handshake for `export`.
pub async fn negotiate<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
    incoming: &mut BufferedReader<S, R>,
    writer: &mut W,
    export: &str,
) -> Result<ExportInfo, NegotiateError> {
    let greeting_flags = receive(incoming, decode_greeting).await?;
    send(writer, &client_flags(greeting_flags)?).await?;

    send_option(writer, OptionKind::StructuredReply, b"").await?;
    let (reply, _) = receive_replies(incoming, OptionKind::StructuredReply, |_, _| Ok(())).await?;
    let structured = reply == OptionReplyKind::Ack;

    let mut allocation = None;
    if structured {
        let kind = OptionKind::SetMetaContext;
        send_option(writer, kind, &MetaRequest::encode_base_allocation(export)).await?;
        let parse = |reply, payload: &[u8]| {
            if reply == OptionReplyKind::MetaContext {
                let (id, name) = decode_context(payload)?;
                allocation = allocation.or((name == flags::BASE_ALLOCATION).then_some(id));
            }
            Ok(())
        };
        if receive_replies(incoming, kind, parse).await?.0 != OptionReplyKind::Ack {
            allocation = None;
        }
    }

    let info_request =
        InfoRequest { name: export, wants_block_size: true, wants_name: false, wants_description: false };
    send_option(writer, OptionKind::Go, &info_request.encode()).await?;
    let (mut size_and_flags, mut block_sizes) = (None, (1, BLOCK_BYTES as u32, DEFAULT_REQUEST_BYTES_MAX));
    let parse = |reply, payload: &[u8]| {
        if reply == OptionReplyKind::Info {
            match Info::parse(payload)? {
                Info::Export { size_bytes, flags } => size_and_flags = Some((size_bytes, flags)),
                Info::BlockSize { min, preferred, max } => block_sizes = (min, preferred, max),
                _ => (),
            }
        }
        Ok(())
    };
    let (size_bytes, flags) = match (receive_replies(incoming, OptionKind::Go, parse).await?, size_and_flags) {
        ((OptionReplyKind::Ack, _), Some(size_and_flags)) => size_and_flags,
        ((OptionReplyKind::Ack, _), None) => return Err(ProtocolError::Malformed("GO's answer: no size in it").into()),
        ((OptionReplyKind::ErrUnsupported, _), _) => {
            negotiate_export_name(incoming, writer, export, greeting_flags & flags::NO_ZEROES != 0).await?
        }
        ((reply, text), _) => {
            let reason = if text.is_empty() { format!("{reply:?}") } else { text };
            return Err(NegotiateError::Refused { export: export.to_owned(), reason });
        }
    };
    export_info(size_bytes, flags, block_sizes, structured, allocation)
}

/// Checks the properties of an export.
fn export_info(
    size_bytes: u64,
    flags: u16,
    (min, preferred, max): (u32, u32, u32),
    has_structured_replies: bool,
    allocation_context_id: Option<u32>,
) -> Result<ExportInfo, NegotiateError> {
    let (sector, block) = (SECTOR_BYTES as u32, BLOCK_BYTES as u32);
    if min > block || max < block {
        return Err(NegotiateError::BlockSize { min, max });
    }
    let logical_block = if min <= sector { sector } else { block };
    if !size_bytes.is_multiple_of(logical_block.into()) {
        return Err(NegotiateError::Size(size_bytes));
    }
    let preferred_block = if preferred.is_power_of_two() { preferred.max(logical_block) } else { block };
    let request_bytes_max = max.min(nbd_protocol::limits::DATA_BYTES_MAX) / block * block;
    Ok(ExportInfo {
        size_bytes,
        flags,
        logical_block_bytes: logical_block,
        preferred_block_bytes: preferred_block,
        request_bytes_max,
        has_structured_replies,
        allocation_context_id,
    })
}

/// The handshake with servers that do not support `GO`.
async fn negotiate_export_name<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
    incoming: &mut BufferedReader<S, R>,
    writer: &mut W,
    export: &str,
    omits_zeroes: bool,
) -> Result<(u64, u16), NegotiateError> {
    send_option(writer, OptionKind::ExportName, export.as_bytes()).await?;
    let padding = if omits_zeroes { 0 } else { EXPORT_NAME_PADDING_BYTES };
    let len = EXPORT_NAME_REPLY_BYTES + padding;
    while incoming.bytes().len() < len {
        incoming.receive_more().await?;
    }
    let bytes = incoming.bytes();
    let (size, rest) = bytes.split_first_chunk::<8>().expect("ten bytes were received");
    let (flags, _) = rest.split_first_chunk::<2>().expect("ten bytes were received");
    let size_and_flags = (u64::from_be_bytes(*size), u16::from_be_bytes(*flags));
    incoming.consume(len);
    Ok(size_and_flags)
}

/// Receives the replies to an option, passes each to `visit`, and returns the last one with its text.
async fn receive_replies<S: Seam, R: StreamReader<S>>(
    incoming: &mut BufferedReader<S, R>,
    kind: OptionKind,
    mut visit: impl FnMut(OptionReplyKind, &[u8]) -> Result<(), ProtocolError>,
) -> Result<(OptionReplyKind, String), NegotiateError> {
    loop {
        let header = receive(incoming, OptionReplyHeader::decode).await?;
        if header.option != kind {
            return Err(ProtocolError::Malformed("handshake: a reply to another option").into());
        }
        let len = header.len as usize;
        while incoming.bytes().len() < len {
            incoming.receive_more().await?;
        }
        let payload = &incoming.bytes()[..len];
        visit(header.kind, payload)?;
        // The text comes from another server and ends in our log and on terminals.
        let text = String::from_utf8_lossy(payload).replace(char::is_control, " ");
        incoming.consume(len);
        if header.kind == OptionReplyKind::Ack || header.kind.is_error() {
            return Ok((header.kind, text));
        }
    }
}

async fn receive<S: Seam, R: StreamReader<S>, T>(
    incoming: &mut BufferedReader<S, R>,
    decode: impl Fn(&[u8]) -> Decoded<T>,
) -> Result<T, NegotiateError> {
    loop {
        match decode(incoming.bytes())? {
            Step::Got(value, used) => {
                incoming.consume(used);
                return Ok(value);
            }
            Step::Incomplete(_) => incoming.receive_more().await?,
        }
    }
}

async fn send_option<S: Seam, W: StreamWriter<S>>(writer: &mut W, kind: OptionKind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    push_option(&mut bytes, kind, payload);
    send(writer, &bytes).await
}

async fn send<S: Seam, W: StreamWriter<S>>(writer: &mut W, bytes: &[u8]) -> io::Result<()> {
    let mut gather = Gather::default();
    gather.push_bytes(bytes);
    writer.send(gather).await.0
}
