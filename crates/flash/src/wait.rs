//! Waiting within one core, without an executor: for several futures at once, and for an answer of another task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use seam::{Nanos, Seam};

/// A future on the heap.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all `futures` and returns their results in order.
pub async fn join<T>(mut futures: Vec<Boxed<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waits = false;
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *result = Some(value),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().map(|result| result.expect("every future has ended")).collect()
}

/// Runs all `futures` and returns their results in order. Once one has succeeded, the others have `grace`. A future
/// that takes longer is abandoned, with `late` as its result.
pub async fn join_with_grace<S: Seam, T, E>(
    seam: &S,
    mut futures: Vec<Boxed<'_, Result<T, E>>>,
    grace: Nanos,
    late: fn() -> Result<T, E>,
) -> Vec<Result<T, E>> {
    let mut results: Vec<Option<Result<T, E>>> = futures.iter().map(|_| None).collect();
    let mut patience: Option<Boxed<'_, ()>> = None;
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
        let patience = patience.get_or_insert_with(|| Box::pin(seam.sleep(grace)));
        patience.as_mut().poll(context)
    })
    .await;
    results.into_iter().map(|result| result.unwrap_or_else(late)).collect()
}

/// A one-time answer from another task.
pub struct Answer<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Clone for Answer<T> {
    fn clone(&self) -> Self {
        Answer(Rc::clone(&self.0))
    }
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Answer(Rc::new(RefCell::new((None, None))))
    }
}

impl<T> Answer<T> {
    /// Delivers the value and wakes the waiting task.
    pub fn give(&self, value: T) {
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
pub struct Gate {
    taken: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// The guard of a [`Gate`].
pub struct Inside<'a>(&'a Gate);

impl Gate {
    /// Waits until the gate is free, then takes it.
    pub async fn enter(&self) -> Inside<'_> {
        poll_fn(|context| match self.taken.replace(true) {
            false => Poll::Ready(Inside(self)),
            true => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}
