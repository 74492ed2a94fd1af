//! A connection in the transmission phase: one task sends requests and receives replies concurrently.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use nbd_protocol::{Command, Request};
use seam::{BufferedReader, Gather, Seam, StreamReader, StreamWriter};

use crate::export_info::ExportInfo;
use crate::request_table::Operation;
use crate::shared::SharedConnection;

/// Bytes of requests sent in one call.
const SEND_BYTES_MAX: usize = 1 << 20;

/// Factor for the longest silence while a flush or a zero request is open. A flush writes all data that the server has
/// gathered, and some servers answer nothing meanwhile. A connection dropped too early would repeat all of it, and time
/// out again.
const SLOW_FACTOR: u32 = 10;

/// A connection after the handshake.
pub struct Link<S: Seam, R: StreamReader<S>, W: StreamWriter<S>> {
    pub incoming: BufferedReader<S, R>,
    pub writer: W,
    pub export_info: ExportInfo,
}

impl<S: Seam, R: StreamReader<S>, W: StreamWriter<S>> Link<S, R, W> {
    /// Runs until the connection is lost or no longer needed.
    pub async fn run(self, shared: &SharedConnection<S>) {
        let Link { mut incoming, writer, export_info } = self;
        let mut replies = pin!(shared.receive_until_lost(&mut incoming, &export_info));
        let mut requests = pin!(shared.send_requests(writer));
        let mut silence = pin!(shared.wait_for_silence());
        poll_fn(|context| {
            shared.register(context);
            // An abandoned disk does not wait for its open requests.
            let lost = shared.is_abandoned.get()
                || replies.as_mut().poll(context).is_ready()
                || requests.as_mut().poll(context).is_ready()
                || silence.as_mut().poll(context).is_ready();
            if lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl<S: Seam> SharedConnection<S> {
    /// Sends requests until the connection is lost, or until the disk is closing and all requests are answered.
    async fn send_requests<W: StreamWriter<S>>(&self, mut writer: W) {
        let mut gather = Gather::default();
        loop {
            let ready = |_: &mut std::task::Context<'_>| {
                if self.request_table.borrow().has_unsent() {
                    Poll::Ready(true)
                } else if self.is_closing.get() && self.request_table.borrow().is_empty() {
                    Poll::Ready(false)
                } else {
                    Poll::Pending
                }
            };
            if !poll_fn(ready).await {
                let disconnect = Request { flags: 0, command: Command::Disconnect, cookie: 0, offset: 0, len: 0 };
                gather.push_bytes(&disconnect.encode());
                // The result of the disconnect message does not matter.
                let (Ok(()) | Err(_), _) = writer.send(gather).await;
                return;
            }
            while gather.len() < SEND_BYTES_MAX {
                let Some((cookie, request)) = self.request_table.borrow_mut().next_to_send() else { break };
                gather.push_bytes(&request.header(cookie).encode());
                if let Operation::Write(pieces) = &request.operation {
                    pieces.iter().for_each(|piece| gather.push_piece(piece.clone()));
                }
            }
            let (result, sent) = writer.send(gather).await;
            gather = sent;
            gather.clear();
            if result.is_err() {
                return;
            }
        }
    }

    /// Returns when a request is open and the server has sent nothing for too long.
    async fn wait_for_silence(&self) {
        let Some(silence_max) = self.options.silence_max else { return std::future::pending().await };
        let (mut before, mut silent_periods) = (None, 0);
        loop {
            let (oldest, has_slow) = {
                let request_table = self.request_table.borrow();
                (request_table.oldest(), request_table.has_slow())
            };
            let now = oldest.map(|oldest| (oldest, self.receive_count()));
            silent_periods = if now.is_some() && now == before { silent_periods + 1 } else { 0 };
            if silent_periods >= if has_slow { SLOW_FACTOR } else { 1 } {
                return;
            }
            before = now;
            self.seam.sleep(silence_max).await;
        }
    }
}
