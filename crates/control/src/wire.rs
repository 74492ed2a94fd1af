//! Wire format: one JSON object per line, of bounded length.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Longest request, in bytes with its line feed.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest reply, in bytes with its line feed: a status of some ten thousand volumes.
pub(crate) const REPLY_BYTES_MAX: usize = 64 << 20;

/// Encodes `message` as one line.
pub(crate) fn encode_line(message: &impl Serialize) -> Vec<u8> {
    // serde_json escapes line feeds inside texts, so that the only one is the last byte.
    let mut bytes = serde_json::to_vec(message).expect("messages have only text keys");
    bytes.push(b'\n');
    bytes
}

/// Sends `message` as one line. A stream under TLS sends what it has encrypted with the flush.
pub(crate) async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode_line(message)).await?;
    stream.flush().await
}

/// Error for a line longer than the limit.
pub(crate) fn too_long(limit: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message longer than {limit} bytes"))
}
