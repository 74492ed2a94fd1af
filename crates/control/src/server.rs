//! The daemon's side of the control socket: bounded connections, bounded messages, one task a connection.
//!
//! Connections that wait for their client (for a request, or until it receives an answer) have a limit of their own,
//! apart from requests in progress. Beyond it the longest waiting connection is closed, so silent clients block neither
//! other clients nor a stop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use messages::{Answer, ErrorKind, Failure, Progress, Reply, Request};
use seam::real::count_accept_error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::wire::{REQUEST_BYTES_MAX, too_long};
use crate::{Actor, socket, wire};

/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Error of opening the control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket cannot be created.
    #[error("control socket {path}: cannot listen: {error}; check [control] socket and the folder's permissions")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// Another daemon listens at the path.
    #[error(
        "control socket {path}: another daemon answers there; stop it, or specify another socket for this one in \
         [control]"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
}

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of requests in progress; as many more wait, and further ones are refused.
    pub requests_max: usize,
    /// Maximum number of connections that wait for their client; beyond it the longest waiting one is closed.
    pub idle_max: usize,
    /// Maximum time to wait for the next request, and for the client to receive a reply.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { requests_max: 64, idle_max: 64, idle_timeout: Duration::from_secs(60) }
    }
}

/// Sends progress to the client; messages that a slow client does not receive are dropped.
#[derive(Clone)]
pub struct ProgressSender(mpsc::Sender<Progress>);

impl ProgressSender {
    /// A sender and its receiver.
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (sender, receiver) = mpsc::channel(4);
        (ProgressSender(sender), receiver)
    }

    /// Reports the progress of an action.
    pub fn report(&self, activity: impl Into<String>, dirty_bytes: u64) {
        // A full channel means that newer progress will follow.
        let _ = self.0.try_send(Progress { activity: activity.into(), dirty_bytes, done_bytes: 0, total_bytes: 0 });
    }

    /// Passes on a report of another daemon.
    pub fn forward(&self, progress: Progress) {
        let _ = self.0.try_send(progress);
    }

    /// Reports the progress of a copy.
    pub fn report_copied(&self, activity: impl Into<String>, done_bytes: u64, total_bytes: u64) {
        let _ = self.0.try_send(Progress { activity: activity.into(), dirty_bytes: 0, done_bytes, total_bytes });
    }
}

/// Handler of requests.
pub trait Handler: 'static {
    /// Carries out `request` for `actor`; may take long and report progress. Completes even if the client disconnects.
    fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> impl Future<Output = Result<Answer, Failure>>;
}

/// Listens at `path` until `stop` becomes true, then removes the socket's file. Answers in progress are still sent.
/// Runs inside a `LocalSet` of a current-thread runtime.
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
    let connections = Rc::new(Connections::new(handler, limits));
    let reserve = Rc::new(Reserve::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let actor = stream.peer_cred().map_or(Actor::Unknown, |peer| Actor::User(peer.uid()));
                let served = connections.serve(stream, actor);
                let reserve = reserve.clone();
                tokio::task::spawn_local(async move {
                    // An error means that the client disconnected or broke the protocol. Its connection is closed
                    // without a message.
                    let _ = served.await;
                    // Refill the reserve at once: other clients may wait for this descriptor.
                    reserve.refill();
                });
                // A request that has arrived is read before a later connection can evict this one.
                tokio::task::yield_now().await;
            }
            // The client still waits: the next accept uses the reserved descriptor.
            Err(error) if count_accept_error(&error) && reserve.release() => {}
            // Descriptors may become free meanwhile.
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                reserve.refill();
            }
        }
    }
    let _ = socket::remove(path);
    Ok(())
}

/// A reserved descriptor, so that the daemon can be queried and stopped when all others are in use.
struct Reserve(Cell<Option<File>>);

impl Reserve {
    fn new() -> Reserve {
        Reserve(Cell::new(Reserve::open_descriptor()))
    }

    fn open_descriptor() -> Option<File> {
        File::open("/dev/null").ok()
    }

    /// Reserves a descriptor again if it was released and one is free.
    fn refill(&self) {
        let held = self.0.take().or_else(Reserve::open_descriptor);
        self.0.set(held);
    }

    /// Releases the descriptor for the next accept; returns false without one.
    fn release(&self) -> bool {
        self.0.take().is_some()
    }
}

/// State shared by all connections.
struct Shared {
    limits: Limits,
    idle: Idle,
    /// Requests in progress or waiting.
    requests: Cell<usize>,
    permits: Semaphore,
}

/// Connections under common bounds.
pub struct Connections<H> {
    handler: Rc<H>,
    shared: Rc<Shared>,
}

impl<H: Handler> Connections<H> {
    /// No connection yet; `handler` carries out their requests.
    pub fn new(handler: Rc<H>, limits: Limits) -> Connections<H> {
        let permits = Semaphore::new(limits.requests_max);
        let shared = Shared { limits, idle: Idle::default(), requests: Cell::new(0), permits };
        Connections { handler, shared: Rc::new(shared) }
    }

    /// Serves the requests of `actor` on a stream, until it ends. The connection counts from the call on. An error
    /// means that the client disconnected or broke the protocol. Runs inside a `LocalSet`.
    pub fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + 'static,
        actor: Actor,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let (handler, shared) = (self.handler.clone(), self.shared.clone());
        let idle_entry = IdleEntry::new(&shared);
        serve_requests(stream, handler, shared, actor, idle_entry)
    }
}

/// Connections that wait for their client, the longest waiting first.
#[derive(Default)]
struct Idle {
    evictions: RefCell<BTreeMap<u64, Rc<Notify>>>,
    next: Cell<u64>,
}

/// A connection's entry among those that wait for their client; dropping it removes the entry.
struct IdleEntry {
    shared: Rc<Shared>,
    number: u64,
    eviction: Rc<Notify>,
}

impl IdleEntry {
    /// Adds an entry at the end. Beyond the limit the first connection is closed.
    fn new(shared: &Rc<Shared>) -> IdleEntry {
        let (number, eviction) = (shared.idle.next.get(), Rc::new(Notify::new()));
        shared.idle.next.set(number + 1);
        let mut evictions = shared.idle.evictions.borrow_mut();
        evictions.insert(number, eviction.clone());
        if evictions.len() > shared.limits.idle_max
            && let Some((_, first)) = evictions.pop_first()
        {
            first.notify_one();
        }
        IdleEntry { shared: shared.clone(), number, eviction }
    }

    /// Runs `work`; returns `None` if the connection is evicted first.
    async fn run_until_evicted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.eviction.notified() => None,
        }
    }
}

impl Drop for IdleEntry {
    fn drop(&mut self) {
        self.shared.idle.evictions.borrow_mut().remove(&self.number);
    }
}

async fn serve_requests<H: Handler>(
    stream: impl AsyncRead + AsyncWrite,
    handler: Rc<H>,
    shared: Rc<Shared>,
    actor: Actor,
    mut idle_entry: IdleEntry,
) -> io::Result<()> {
    let limits = shared.limits;
    let (reader, mut writer) = tokio::io::split(Box::pin(stream));
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    loop {
        let outcome = idle_entry.run_until_evicted(read_request(&mut reader, &mut text, limits)).await;
        let Some(outcome) = outcome.transpose()? else { return Ok(()) };
        let (reply, continues) = match outcome {
            ReadOutcome::End => return Ok(()),
            ReadOutcome::TooLong => {
                let failure = Failure::new(ErrorKind::Invalid, too_long(REQUEST_BYTES_MAX).to_string());
                (Reply::Failed(failure), false)
            }
            ReadOutcome::Line => match serde_json::from_slice::<Request>(&text) {
                Ok(request) => {
                    drop(idle_entry);
                    let reply =
                        execute_when_permitted(&shared, handler.clone(), request, actor.clone(), &mut writer).await;
                    idle_entry = IdleEntry::new(&shared);
                    (reply, true)
                }
                Err(error) => {
                    (Reply::Failed(Failure::new(ErrorKind::Invalid, format!("not a request: {error}"))), true)
                }
            },
        };
        let sent = idle_entry.run_until_evicted(send(&mut writer, &reply, limits)).await;
        if sent.transpose()?.is_none() || !continues {
            return Ok(());
        }
    }
}

/// Outcome of reading from a client.
enum ReadOutcome {
    /// A whole line.
    Line,
    /// More bytes than a request may have.
    TooLong,
    /// End of the stream.
    End,
}

async fn read_request(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
    text: &mut Vec<u8>,
    limits: Limits,
) -> io::Result<ReadOutcome> {
    text.clear();
    let mut bounded = (&mut *reader).take(REQUEST_BYTES_MAX as u64);
    let read = tokio::time::timeout(limits.idle_timeout, bounded.read_until(b'\n', text)).await??;
    Ok(match text.last() {
        Some(b'\n') => ReadOutcome::Line,
        _ if read == 0 => ReadOutcome::End,
        _ => ReadOutcome::TooLong,
    })
}

/// Carries out a request once fewer than the limit are in progress.
async fn execute_when_permitted<H: Handler>(
    shared: &Shared,
    handler: Rc<H>,
    request: Request,
    actor: Actor,
    writer: &mut (impl AsyncWriteExt + Unpin),
) -> Reply {
    let limits = shared.limits;
    let Some(_counted) = Counted::new(&shared.requests, 2 * limits.requests_max) else {
        let text = format!("{} requests are in progress and as many wait; try again later", limits.requests_max);
        return Reply::Failed(Failure::new(ErrorKind::Failed, text));
    };
    let _permit = shared.permits.acquire().await.expect("the semaphore is never closed");
    execute(handler, request, actor, writer, limits).await
}

/// Guard of a bounded count; dropping it decrements the count.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<usize>, max: usize) -> Option<Self> {
        (count.get() < max).then(|| {
            count.set(count.get() + 1);
            Counted(count)
        })
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Runs an action in a task of its own, so that it completes even if the client disconnects.
async fn execute<H: Handler>(
    handler: Rc<H>,
    request: Request,
    actor: Actor,
    writer: &mut (impl AsyncWriteExt + Unpin),
    limits: Limits,
) -> Reply {
    let (progress, mut reports) = ProgressSender::new();
    let mut action = tokio::task::spawn_local(async move { handler.handle(request, actor, progress).await });
    let mut listening = true;
    loop {
        tokio::select! {
            result = &mut action => return match result {
                Ok(Ok(answer)) => Reply::Done(answer),
                Ok(Err(failure)) => Reply::Failed(failure),
                Err(_) => {
                    let text = "the action panicked; see the daemon's log";
                    Reply::Failed(Failure::new(ErrorKind::Failed, text))
                }
            },
            Some(progress) = reports.recv(), if listening => {
                listening = send(writer, &Reply::Progress(progress), limits).await.is_ok();
            }
        }
    }
}

async fn send(writer: &mut (impl AsyncWriteExt + Unpin), reply: &Reply, limits: Limits) -> io::Result<()> {
    tokio::time::timeout(limits.idle_timeout, wire::send(writer, reply)).await?
}
