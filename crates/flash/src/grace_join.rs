//! A join of several futures that does not wait for the slowest one without a limit.

use std::future::poll_fn;
use std::task::Poll;

use seam::{Nanos, Seam};
use task_sync::BoxFuture;

/// Runs all `futures` and returns their results in order. Once one has succeeded, the others get `grace` more time. A
/// future that takes longer is abandoned, with `timed_out` as its result.
pub async fn join_with_grace<S: Seam, T, E>(
    seam: &S,
    mut futures: Vec<BoxFuture<'_, Result<T, E>>>,
    grace: Nanos,
    timed_out: fn() -> Result<T, E>,
) -> Vec<Result<T, E>> {
    let mut results: Vec<Option<Result<T, E>>> = futures.iter().map(|_| None).collect();
    let mut timer: Option<BoxFuture<'_, ()>> = None;
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) {
            return Poll::Ready(());
        }
        if !results.iter().flatten().any(Result::is_ok) {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::pin(seam.sleep(grace)));
        timer.as_mut().poll(context)
    })
    .await;
    results.into_iter().map(|result| result.unwrap_or_else(timed_out)).collect()
}
