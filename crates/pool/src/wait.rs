//! Work that no dropped future interrupts.

use std::future::Future;

use seam::Seam;
use task_sync::Reply;

/// Runs `work` to its end, even if the returned future is dropped.
pub async fn detached<S: Seam, T: 'static>(seam: &S, work: impl Future<Output = T> + 'static) -> T {
    let reply = Reply::default();
    let sender = reply.clone();
    seam.spawn(async move { sender.send(work.await) });
    reply.wait().await
}
