//! From the server's tasks to the daemon's handler: the handler stays on its thread, questions come through a queue.

use std::rc::Rc;

use control::{Actor, Answer, ErrorKind, Failure, Handler, ProgressSender, Request};
use tokio::sync::{mpsc, oneshot};

/// Questions that wait at most; who asks more waits.
const WAITING_MAX: usize = 64;

type Question = (Request, Actor, oneshot::Sender<Result<Answer, Failure>>);

tokio::task_local! {
    /// Who the request that is being answered came from. The guard knows, and every route would only pass it on.
    pub static ACTOR: Actor;
}

/// Asks the daemon.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Question>);

/// What waits to be asked.
pub struct Questions(mpsc::Receiver<Question>);

impl Asker {
    /// One, and what [`answer`] takes.
    pub fn new() -> (Asker, Questions) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Asker(sender), Questions(receiver))
    }

    /// Does what `request` says, for the request's actor; it goes on to its end when nobody waits for it any more.
    pub async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        let gone = || Failure::new(ErrorKind::Unavailable, "the daemon is stopping; ask the next one");
        let (answer, answered) = oneshot::channel();
        let actor = ACTOR.try_with(Actor::clone).unwrap_or_default();
        self.0.send((request, actor, answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// Hands questions to `handler`, each in a task of its own, until there are no askers left.
pub async fn answer<H: Handler>(mut questions: Questions, handler: Rc<H>) {
    while let Some((request, actor, answer)) = questions.0.recv().await {
        let handler = handler.clone();
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            // Whoever asked may have gone.
            let _ = answer.send(handler.handle(request, actor, progress).await);
        });
    }
}
