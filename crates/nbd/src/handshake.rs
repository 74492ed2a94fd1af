//! The handshake of a connection: greeting and options.

use std::io;

use nbd_protocol::greeting::{decode_client_flags, greeting};
use nbd_protocol::option::push_option_reply;
use nbd_protocol::{Decoded, OptionHeader, OptionReplyKind, ProtocolError, Step};
use seam::{BufferedReader, Gather, Seam, StreamReader, StreamWriter};

use crate::Exports;
use crate::negotiation::{Negotiated, Negotiation, NextStep, TlsState};

/// Bytes of the receive buffer: the longest accepted option and some room.
pub(crate) const HANDSHAKE_BYTES: usize = nbd_protocol::limits::OPTION_PAYLOAD_BYTES_MAX + 1024;

/// Reason why a connection ended in the handshake phase.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Malformed message.
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
}

/// End of the option phase.
pub(crate) enum Outcome<S: Seam> {
    /// The transmission phase follows.
    Transmit(Negotiated<S>),
    /// A TLS handshake follows, then options again.
    StartTls,
    /// The connection ends.
    Closed,
}

/// Sends the greeting and receives the client's flags; returns true if the client has set the flag `NO_ZEROES`.
pub(crate) async fn greet<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
    incoming: &mut BufferedReader<S, R>,
    writer: &mut W,
) -> Result<bool, HandshakeError> {
    send(writer, &greeting()).await?;
    Ok(receive(incoming, decode_client_flags).await?.no_zeroes)
}

/// Answers options until one ends the phase.
pub(crate) async fn negotiate_options<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
    incoming: &mut BufferedReader<S, R>,
    writer: &mut W,
    exports: &dyn Exports<S>,
    no_zeroes: bool,
    tls: TlsState,
) -> Result<Outcome<S>, HandshakeError> {
    let mut negotiation = Negotiation::new(no_zeroes, tls);
    let mut out = Vec::new();
    loop {
        let header = receive(incoming, OptionHeader::decode).await?;
        let len = header.len as usize;
        let next = if header.is_too_big() {
            skip(incoming, len).await?;
            push_option_reply(&mut out, header.kind, OptionReplyKind::ErrTooBig, b"the option's payload is too long");
            NextStep::Continue
        } else {
            while incoming.bytes().len() < len {
                incoming.receive_more().await?;
            }
            let next = negotiation.process_option(header, &incoming.bytes()[..len], exports, &mut out);
            incoming.consume(len);
            next
        };
        send(writer, &out).await?;
        out.clear();
        match next {
            NextStep::Continue => (),
            NextStep::Transmit(negotiated) => return Ok(Outcome::Transmit(negotiated)),
            NextStep::StartTls => return Ok(Outcome::StartTls),
            NextStep::Close => return Ok(Outcome::Closed),
        }
    }
}

async fn receive<S: Seam, R: StreamReader<S>, T>(
    incoming: &mut BufferedReader<S, R>,
    decode: impl Fn(&[u8]) -> Decoded<T>,
) -> Result<T, HandshakeError> {
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

async fn skip<S: Seam, R: StreamReader<S>>(incoming: &mut BufferedReader<S, R>, mut len: usize) -> io::Result<()> {
    while len > 0 {
        if incoming.bytes().is_empty() {
            incoming.receive_more().await?;
        }
        let count = incoming.bytes().len().min(len);
        incoming.consume(count);
        len -= count;
    }
    Ok(())
}

async fn send<S: Seam, W: StreamWriter<S>>(writer: &mut W, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut gather = Gather::default();
    gather.push_bytes(bytes);
    writer.send(gather).await.0
}
