//! Requests between daemons on an open stream, without blocking.

use std::io;

use messages::{Answer, Failure, Progress, Reply, Request};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite};

use crate::wire::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX, send, too_long};

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

/// Sends a request and waits for its result. Bytes that follow the result stay in the stream.
pub async fn exchange(
    stream: &mut (impl AsyncBufRead + AsyncWrite + Unpin),
    request: &Request,
    mut on_progress: impl FnMut(Progress),
) -> Result<Answer, ExchangeError> {
    send(stream, request).await?;
    loop {
        match receive(stream, REPLY_BYTES_MAX).await? {
            Reply::Progress(progress) => on_progress(progress),
            Reply::Done(answer) => return Ok(answer),
            Reply::Failed(failure) => return Err(failure.into()),
        }
    }
}

/// Receives a request on a stream that will carry other bytes after the reply.
pub async fn receive_request(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Request> {
    receive(stream, REQUEST_BYTES_MAX).await
}

/// Sends the result of a request.
pub async fn send_result(stream: &mut (impl AsyncWrite + Unpin), result: Result<Answer, Failure>) -> io::Result<()> {
    send(stream, &result.map_or_else(Reply::Failed, Reply::Done)).await
}

async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncBufRead + Unpin), bytes_max: usize) -> io::Result<T> {
    let mut line = Vec::new();
    stream.take(bytes_max as u64).read_until(b'\n', &mut line).await?;
    match line.last() {
        Some(b'\n') => Ok(serde_json::from_slice(&line)?),
        _ if line.len() == bytes_max => Err(too_long(bytes_max)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
