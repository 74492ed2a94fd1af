//! Work that no dropped future interrupts.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use seam::Seam;
use task_sync::Reply;

/// Runs `work` to its end as a task of its own, even if the returned future is dropped.
pub async fn detached<S: Seam, T: 'static>(seam: &S, work: impl Future<Output = T> + 'static) -> T {
    let reply = Reply::default();
    let sender = reply.clone();
    seam.spawn(async move { sender.send(work.await) });
    reply.wait().await
}

/// As [`detached`], but `work` becomes a task only when the returned future is dropped: nearly all requests need none.
pub fn detached_on_drop<S: Seam, F: Future + 'static>(seam: &S, work: F) -> DetachedOnDrop<S, F> {
    DetachedOnDrop { seam: seam.clone(), work: Some(Box::pin(work)) }
}

/// Future of [`detached_on_drop`].
pub struct DetachedOnDrop<S: Seam, F: Future + 'static> {
    seam: S,
    /// `None` after the end.
    work: Option<Pin<Box<F>>>,
}

// The work does not move when its box does.
impl<S: Seam, F: Future + 'static> Unpin for DetachedOnDrop<S, F> {}

impl<S: Seam, F: Future + 'static> Future for DetachedOnDrop<S, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Work that panics is not polled again.
        let mut work = self.work.take().expect("a future is not polled after its end");
        let result = work.as_mut().poll(context);
        if result.is_pending() {
            self.work = Some(work);
        }
        result
    }
}

impl<S: Seam, F: Future + 'static> Drop for DetachedOnDrop<S, F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.seam.spawn(async move { drop(work.await) });
        }
    }
}
