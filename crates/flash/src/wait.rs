//! Waiting within one core, without an executor: for several futures at once, for a reply of another task, for a lock.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use seam::{Nanos, Seam};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all `futures` and returns their results in order.
pub async fn join<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *result = Some(value),
                Poll::Pending => is_pending = true,
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().map(|result| result.expect("every future has ended")).collect()
}

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

/// A one-time reply from another task (a one-shot channel).
pub struct Reply<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply(Rc::clone(&self.0))
    }
}

impl<T> Default for Reply<T> {
    fn default() -> Self {
        Reply(Rc::new(RefCell::new((None, None))))
    }
}

impl<T> Reply<T> {
    /// Delivers the value and wakes the waiting task.
    pub fn send(&self, value: T) {
        let mut inner = self.0.borrow_mut();
        inner.0 = Some(value);
        let waker = inner.1.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the value.
    pub async fn wait(self) -> T {
        poll_fn(|context| {
            let mut inner = self.0.borrow_mut();
            match inner.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    inner.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A mutex for tasks: one holder at a time. A waiter that is dropped does not block the others.
#[derive(Default)]
pub struct TaskMutex {
    is_locked: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

/// The guard of a [`TaskMutex`].
pub struct TaskMutexGuard<'a>(&'a TaskMutex);

impl TaskMutex {
    /// Waits until the mutex is free, then takes it.
    pub async fn lock(&self) -> TaskMutexGuard<'_> {
        poll_fn(|context| match self.is_locked.replace(true) {
            false => Poll::Ready(TaskMutexGuard(self)),
            true => {
                self.waiters.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for TaskMutexGuard<'_> {
    fn drop(&mut self) {
        self.0.is_locked.set(false);
        let waiters = std::mem::take(&mut *self.0.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
}
