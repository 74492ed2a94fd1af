//! A request to another daemon on an open stream, without blocking.

use std::io;

use messages::{Answer, Failure, Progress, Reply, Request};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::wire::{REPLY_BYTES_MAX, encode_line, too_long};

/// Reason why a request returned no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection broke; whether the request was carried out is unknown.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The daemon refused or failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Sends a request and waits for its result.
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &Request,
    mut on_progress: impl FnMut(Progress),
) -> Result<Answer, ExchangeError> {
    let mut stream = BufReader::new(stream);
    stream.write_all(&encode_line(request)).await?;
    stream.flush().await?;
    loop {
        let mut line = Vec::new();
        (&mut stream).take(REPLY_BYTES_MAX as u64).read_until(b'\n', &mut line).await?;
        let reply = match line.last() {
            Some(b'\n') => serde_json::from_slice(&line).map_err(io::Error::from)?,
            _ if line.len() == REPLY_BYTES_MAX => return Err(too_long(REPLY_BYTES_MAX).into()),
            _ => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        };
        match reply {
            Reply::Progress(progress) => on_progress(progress),
            Reply::Done(answer) => return Ok(answer),
            Reply::Failed(failure) => return Err(failure.into()),
        }
    }
}
