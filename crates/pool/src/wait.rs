//! Work that no dropped future interrupts, and waits with a limit.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use seam::{Nanos, Seam};
use task_sync::Reply;

/// Runs `work` to its end, even if the returned future is dropped.
pub async fn detached<S: Seam, T: 'static>(seam: &S, work: impl Future<Output = T> + 'static) -> T {
    let reply = Reply::default();
    let sender = reply.clone();
    seam.spawn(async move { sender.send(work.await) });
    reply.wait().await
}

/// Waits for `work`, at most for `limit`; `None` if it has not ended by then.
pub async fn within<S: Seam, T>(seam: &S, limit: Nanos, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut limit) = (pin!(work), pin!(seam.sleep(limit)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => limit.as_mut().poll(context).map(|()| None),
    })
    .await
}
