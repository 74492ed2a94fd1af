//! Waiting within one core, without an executor: for several futures at once, for a reply of another task, for a lock,
//! with a limit.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all `futures` and returns their results in order.
pub async fn join<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    if futures.len() == 1 {
        return vec![futures.pop().expect("one future was counted").await];
    }
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

/// Runs both futures and returns their results.
pub async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut results = (None, None);
    poll_fn(|context| {
        if results.0.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(context)
        {
            results.0 = Some(value);
        }
        if results.1.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(context)
        {
            results.1 = Some(value);
        }
        if results.0.is_some() && results.1.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.0.zip(results.1).expect("both futures have ended")
}

/// The result of `work`, or `None` if `limit` ends first.
pub async fn within<T>(limit: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut limit, mut work) = (pin!(limit), pin!(work));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => limit.as_mut().poll(context).map(|()| None),
    })
    .await
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

/// Tasks that wait for the next change of some state.
#[derive(Default)]
pub struct Waiters(Vec<Reply<()>>);

impl Waiters {
    /// A reply that the next [`Waiters::wake`] sends.
    pub fn add(&mut self) -> Reply<()> {
        let reply = Reply::default();
        self.0.push(reply.clone());
        reply
    }

    /// Wakes all waiting tasks.
    pub fn wake(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(|reply| reply.send(()));
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

impl TaskMutex {
    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<TaskMutexGuard<'_>> {
        (!self.is_locked.replace(true)).then_some(TaskMutexGuard(self))
    }
}

impl Drop for TaskMutexGuard<'_> {
    fn drop(&mut self) {
        self.0.is_locked.set(false);
        let waiters = std::mem::take(&mut *self.0.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Context;

    #[test]
    fn both_polls_both_at_once_and_ends_with_the_slower_one() {
        let replies = [Reply::default(), Reply::default()];
        let mut waits = pin!(both(replies[0].clone().wait(), replies[1].clone().wait()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        replies[1].send(2);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        replies[0].send(1);
        assert_eq!(waits.as_mut().poll(&mut context), Poll::Ready((1, 2)));
    }
}
