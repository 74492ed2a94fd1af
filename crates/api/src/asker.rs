//! A queue of control requests from the server's tasks to the daemon's handler, which stays on its thread.

use std::rc::Rc;

use control::{Actor, Handler, ProgressSender};
use messages::{Answer, ErrorKind, Failure, Request};
use tokio::sync::{mpsc, oneshot};

/// Requests in the queue at most; [`Asker::ask`] waits while it is full.
const WAITING_MAX: usize = 64;

type Question = (Request, Actor, oneshot::Sender<Result<Answer, Failure>>);

tokio::task_local! {
    /// The actor of the current request. The guard sets it, so that routes need not pass it on.
    pub static ACTOR: Actor;
}

/// A handle for sending requests to the daemon.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Question>);

/// The receiving end of the queue.
pub struct Questions(mpsc::Receiver<Question>);

impl Asker {
    /// A handle, and the queue for [`answer`].
    pub fn new() -> (Asker, Questions) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Asker(sender), Questions(receiver))
    }

    /// Has the daemon handle `request` for the current actor. The daemon completes the request even if the caller drops
    /// this future.
    pub async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        let gone = || Failure::new(ErrorKind::Unavailable, "the daemon is stopping; ask the next one");
        let (answer, answered) = oneshot::channel();
        let actor = ACTOR.try_with(Actor::clone).unwrap_or_default();
        self.0.send((request, actor, answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// Passes requests to `handler`, each in a task of its own, until the last [`Asker`] is gone.
pub async fn answer<H: Handler>(mut questions: Questions, handler: Rc<H>) {
    while let Some((request, actor, answer)) = questions.0.recv().await {
        let handler = handler.clone();
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            // Fails if the client has left.
            let _ = answer.send(handler.handle(request, actor, progress).await);
        });
    }
}
