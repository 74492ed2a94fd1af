//! A front end's socket, on a thread of its own: messages carry descriptors and may arrive in parts, so that a slow
//! front end blocks only its own thread. Descriptors that could block the data core are refused here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use seam::mailbox::Sender;

use crate::descriptor;
use crate::message::{FDS_MAX, HEADER_BYTES, Header, Message, MessageError, Reply, decode};

/// A message for the core, with the channel for its result.
pub(crate) struct FrontEndMessage {
    /// The decoded message, or the reason for which the descriptor check refused it.
    pub(crate) message: Result<Message, String>,
    pub(crate) reply: SyncSender<MessageResult>,
}

/// Result of a message at the core.
pub(crate) struct MessageResult {
    /// The reply, or the reason of a refusal.
    pub(crate) result: Result<Reply, String>,
    /// True if the front end may request an acknowledgement of each message.
    pub(crate) supports_acknowledgements: bool,
}

/// Reason why a connection ended, other than a disconnect of the front end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    MessageError(#[from] MessageError),
    /// A refused message, whose front end did not request an acknowledgement.
    #[error("{0}")]
    Refused(String),
    /// The core has ended, or the volume is no longer served.
    #[error("the volume is no longer served")]
    CoreClosed,
}

/// Passes messages to the core, one at a time, until the front end disconnects.
pub(crate) fn serve_socket(socket: &Arc<OwnedFd>, core: &Sender<FrontEndMessage>) -> Result<(), SocketError> {
    loop {
        let mut fds = Vec::new();
        let mut bytes = [0; HEADER_BYTES];
        if !receive(socket, &mut bytes, &mut fds)? {
            return Ok(());
        }
        let header = Header::decode(&bytes)?;
        let mut body = vec![0; header.len];
        if header.len > 0 && !receive(socket, &mut body, &mut fds)? {
            return Ok(());
        }
        let message = decode(&header, &body, fds)?;
        // A refused message's descriptors are closed on this thread.
        let message = descriptor::check(&message).map(|()| message).map_err(|refused| refused.to_string());
        let (reply, replies) = sync_channel(1);
        core.send_waiting(FrontEndMessage { message, reply }).map_err(|_| SocketError::CoreClosed)?;
        let MessageResult { result, supports_acknowledgements } =
            replies.recv().map_err(|_| SocketError::CoreClosed)?;
        let must_acknowledge = supports_acknowledgements && header.wants_reply();
        match result.map(|reply| reply.encode(&header)) {
            Ok(Some((bytes, fd))) => send(socket, &bytes, fd)?,
            Ok(None) if must_acknowledge => send(socket, &header.acknowledge(true), None)?,
            Ok(None) => {}
            Err(_) if must_acknowledge => send(socket, &header.acknowledge(false), None)?,
            Err(reason) => return Err(SocketError::Refused(reason)),
        }
    }
}

/// Fills `bytes` and collects attached descriptors; returns false if the front end has disconnected.
fn receive(socket: &OwnedFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<bool, SocketError> {
    let mut filled = 0;
    while filled < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes[filled..])];
        let received = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        // Surplus descriptors are closed.
        fds.truncate(FDS_MAX + 1);
        if count == 0 {
            return Ok(false);
        }
        filled += count;
    }
    Ok(true)
}

/// Sends `bytes`, with `fd` attached to the first of them.
fn send(socket: &OwnedFd, bytes: &[u8], fd: Option<OwnedFd>) -> Result<(), SocketError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let mut sent_bytes = 0;
    while sent_bytes < bytes.len() {
        let sent = rustix::net::sendmsg(
            socket.as_fd(),
            &[IoSlice::new(&bytes[sent_bytes..])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(count) => sent_bytes += count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        ancillary.clear();
    }
    Ok(())
}
