//! A queue of control requests from the server's tasks to the daemon's handler, which stays on its thread.

use std::rc::Rc;

use control::{Actor, Handler, ProgressSender};
use messages::{Answer, ErrorKind, Failure, Request};
use tokio::sync::{mpsc, oneshot};

/// Requests in the queue at most; [`ControlHandle::request`] waits while it is full.
const QUEUE_MAX: usize = 64;

type QueuedRequest = (Request, Actor, oneshot::Sender<Result<Answer, Failure>>);

tokio::task_local! {
    /// The actor of the current request. The guard sets it, so that routes need not pass it on.
    pub static ACTOR: Actor;
}

/// A handle for sending requests to the daemon.
#[derive(Clone)]
pub struct ControlHandle(mpsc::Sender<QueuedRequest>);

/// The receiving end of the queue.
pub struct RequestQueue(mpsc::Receiver<QueuedRequest>);

impl ControlHandle {
    /// A handle, and the queue for [`handle_requests`].
    pub fn new() -> (ControlHandle, RequestQueue) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (ControlHandle(sender), RequestQueue(receiver))
    }

    /// Has the daemon handle `request` for the current actor. The daemon completes the request even if the caller drops
    /// this future.
    pub async fn request(&self, request: Request) -> Result<Answer, Failure> {
        let stopping = || Failure::new(ErrorKind::Unavailable, "the daemon is stopping; retry once it has restarted");
        let (sender, receiver) = oneshot::channel();
        let actor = ACTOR.try_with(Actor::clone).unwrap_or_default();
        self.0.send((request, actor, sender)).await.map_err(|_| stopping())?;
        receiver.await.map_err(|_| stopping())?
    }
}

/// Passes requests to `handler`, each in a task of its own, until the last [`ControlHandle`] is dropped.
pub async fn handle_requests<H: Handler>(mut queue: RequestQueue, handler: Rc<H>) {
    while let Some((request, actor, result)) = queue.0.recv().await {
        let handler = handler.clone();
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            // Sending fails if the client has disconnected.
            let _ = result.send(handler.handle(request, actor, progress).await);
        });
    }
}
