//! A front end's socket, on a thread of its own: messages come with descriptors and may come in halves, and whoever sends one half
//! holds up nobody but himself. Descriptors that could hold up the data core go no further than here.

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
use crate::message::{FDS_MAX, HEAD_BYTES, Head, Message, Reply, Wrong, decode};

/// A message on its way to the core, and where its answer goes.
pub(crate) struct Asked {
    /// Or why it is refused already.
    pub(crate) message: Result<Message, String>,
    pub(crate) answer: SyncSender<Answered>,
}

/// What the core says to a message.
pub(crate) struct Answered {
    /// The answer, or why it cannot be obeyed.
    pub(crate) result: Result<Reply, String>,
    /// The front end may ask for a word to each message by now.
    pub(crate) acknowledges: bool,
}

/// Why a conversation ended, where it was not the front end's own wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// A message that cannot be obeyed, from a front end that did not ask whether it was.
    #[error("{0}")]
    Refused(String),
    /// The core has ended, or the volume is not served any more.
    #[error("the volume is not served any more")]
    Gone,
}

/// Takes messages to the core, one at a time, until the front end leaves.
pub(crate) fn talk(socket: &Arc<OwnedFd>, core: &Sender<Asked>) -> Result<(), Ended> {
    loop {
        let mut fds = Vec::new();
        let mut bytes = [0; HEAD_BYTES];
        if !receive(socket, &mut bytes, &mut fds)? {
            return Ok(());
        }
        let head = Head::decode(&bytes)?;
        let mut body = vec![0; head.len];
        if head.len > 0 && !receive(socket, &mut body, &mut fds)? {
            return Ok(());
        }
        let message = decode(&head, &body, fds)?;
        // What is refused is closed on this thread.
        let message = descriptor::check(&message).map(|()| message).map_err(|refused| refused.to_string());
        let (answer, answered) = sync_channel(1);
        core.send_waiting(Asked { message, answer }).map_err(|_| Ended::Gone)?;
        let Answered { result, acknowledges } = answered.recv().map_err(|_| Ended::Gone)?;
        let wants_word = acknowledges && head.wants_reply();
        match result.map(|reply| reply.encode(&head)) {
            Ok(Some((bytes, fd))) => send(socket, &bytes, fd)?,
            Ok(None) if wants_word => send(socket, &head.acknowledge(true), None)?,
            Ok(None) => {}
            Err(_) if wants_word => send(socket, &head.acknowledge(false), None)?,
            Err(why) => return Err(Ended::Refused(why)),
        }
    }
}

/// Fills `bytes`, and takes what comes with them; false when the front end has left instead.
fn receive(socket: &OwnedFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<bool, Ended> {
    let mut done = 0;
    while done < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes[done..])];
        let received = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut beside, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        // More than a message may have are closed, not kept.
        fds.truncate(FDS_MAX + 1);
        if count == 0 {
            return Ok(false);
        }
        done += count;
    }
    Ok(true)
}

fn send(socket: &OwnedFd, bytes: &[u8], fd: Option<OwnedFd>) -> Result<(), Ended> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let mut done = 0;
    while done < bytes.len() {
        let sent =
            rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(&bytes[done..])], &mut beside, SendFlags::NOSIGNAL);
        match sent {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        beside.clear();
    }
    Ok(())
}
