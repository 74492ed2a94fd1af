//! The daemon's side of the control socket: bounded connections, bounded messages, one task a connection.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::wire::{REQUEST_BYTES_MAX, line, too_long};
use crate::{Actor, Answer, ErrorKind, Failure, Progress, Reply, Request, socket};

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It cannot be made.
    #[error("control socket {path}: cannot listen: {error}; check [control] socket and the folder's permissions")]
    Listen {
        /// Where.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// Somebody answers there.
    #[error(
        "control socket {path}: another daemon answers there; stop it, or give this one a socket of its own in [control]"
    )]
    Answered {
        /// Where.
        path: PathBuf,
    },
}

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more wait until one ends.
    pub connections_max: usize,
    /// A connection that neither asks nor is being answered for this long is closed, and so is one that does not take its answer.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections_max: 64, idle_timeout: Duration::from_secs(60) }
    }
}

/// Takes progress on its way to the client; what a slow client does not take is dropped.
#[derive(Clone)]
pub struct ProgressSender(mpsc::Sender<Progress>);

impl ProgressSender {
    /// A sender and where it leads.
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (sender, receiver) = mpsc::channel(4);
        (ProgressSender(sender), receiver)
    }

    /// Says how far an action is.
    pub fn say(&self, what: impl Into<String>, dirty_bytes: u64) {
        // A full channel means that newer progress will follow.
        let _ = self.0.try_send(Progress { what: what.into(), dirty_bytes, done_bytes: 0, total_bytes: 0 });
    }

    /// Says how much was copied of how much.
    pub fn say_copied(&self, what: impl Into<String>, done_bytes: u64, total_bytes: u64) {
        let _ = self.0.try_send(Progress { what: what.into(), dirty_bytes: 0, done_bytes, total_bytes });
    }
}

/// What acts on requests.
pub trait Handler: 'static {
    /// Acts for `actor`; may take long and say how far it is. Goes on to its end when the client leaves.
    fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> impl Future<Output = Result<Answer, Failure>>;
}

/// Listens at `path` until `stop` says true, then removes the socket's file. Answers under way are still sent. Runs inside
/// a `LocalSet` of a current-thread runtime.
pub async fn serve<H: Handler>(
    path: &Path,
    handler: Rc<H>,
    limits: Limits,
    ready: impl FnOnce(),
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServerError> {
    let listener = socket::listen(path)?;
    let failed = |error| ServerError::Listen { path: path.to_owned(), error };
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    ready();
    let permits = std::sync::Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let handler = handler.clone();
                tokio::task::spawn_local(async move {
                    // An error is a client that left or broke the rules: its connection is closed, and that is all.
                    let _ = converse(stream, handler, limits).await;
                    drop(permit);
                });
            }
            // Out of descriptors, most likely: others may be given back soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let _ = socket::remove(path);
    Ok(())
}

async fn converse<H: Handler>(stream: UnixStream, handler: Rc<H>, limits: Limits) -> io::Result<()> {
    let actor = stream.peer_cred().map_or(Actor::Unknown, |peer| Actor::User(peer.uid()));
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    loop {
        text.clear();
        let mut bounded = (&mut reader).take(REQUEST_BYTES_MAX as u64);
        let read = tokio::time::timeout(limits.idle_timeout, bounded.read_until(b'\n', &mut text)).await??;
        if read == 0 {
            return Ok(());
        }
        if text.last() != Some(&b'\n') {
            let failure = Failure::new(ErrorKind::Invalid, too_long(REQUEST_BYTES_MAX).to_string());
            return send(&mut writer, &Reply::Failed(failure), limits).await;
        }
        let request = match serde_json::from_slice::<Request>(&text) {
            Ok(request) => request,
            Err(error) => {
                let failure = Failure::new(ErrorKind::Invalid, format!("not a request: {error}"));
                send(&mut writer, &Reply::Failed(failure), limits).await?;
                continue;
            }
        };
        let reply = act(handler.clone(), request, actor.clone(), &mut writer, limits).await;
        send(&mut writer, &reply, limits).await?;
    }
}

/// Runs one action in a task of its own, so that a client that leaves does not break it off half-way.
async fn act<H: Handler>(
    handler: Rc<H>,
    request: Request,
    actor: Actor,
    writer: &mut (impl AsyncWriteExt + Unpin),
    limits: Limits,
) -> Reply {
    let (progress, mut said) = ProgressSender::new();
    let mut action = tokio::task::spawn_local(async move { handler.handle(request, actor, progress).await });
    let mut listening = true;
    loop {
        tokio::select! {
            result = &mut action => return match result {
                Ok(Ok(answer)) => Reply::Done(answer),
                Ok(Err(failure)) => Reply::Failed(failure),
                Err(_) => Reply::Failed(Failure::new(ErrorKind::Failed, "the action broke off; the daemon's log says why")),
            },
            Some(progress) = said.recv(), if listening => {
                listening = send(writer, &Reply::Progress(progress), limits).await.is_ok();
            }
        }
    }
}

async fn send(writer: &mut (impl AsyncWriteExt + Unpin), reply: &Reply, limits: Limits) -> io::Result<()> {
    tokio::time::timeout(limits.idle_timeout, writer.write_all(&line(reply))).await?
}
