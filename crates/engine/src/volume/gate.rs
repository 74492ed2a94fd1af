//! The gate of a volume: requests go in and out, an administrator may hold it or close it.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use crate::RequestError;
use crate::wait::Signal;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Open,
    /// Requests wait outside.
    Held,
    /// Requests are refused.
    Closed,
}

/// Counts the requests inside.
#[derive(Default)]
pub struct Gate {
    position: Cell<Position>,
    inside: Cell<u64>,
    changed: Signal,
}

/// A request that is inside.
pub struct Inside<'a>(&'a Gate);

/// The gate is held and nobody is inside; opens when dropped.
pub struct Held<'a>(&'a Gate);

/// The gate is closed for good; requests are inside at most where they were not waited for.
pub struct Closed<'a>(&'a Gate);

impl Gate {
    /// True when a request that does not wait may pass.
    pub fn is_open(&self) -> bool {
        self.position.get() == Position::Open
    }

    /// Goes in, as soon as the gate is not held.
    pub async fn enter(&self) -> Result<Inside<'_>, RequestError> {
        if !self.is_open() {
            self.changed.wait_for(|| (self.position.get() != Position::Held).then_some(())).await;
        }
        if self.position.get() == Position::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.inside.set(self.inside.get() + 1);
        Ok(Inside(self))
    }

    /// Lets nobody in and waits until all are out.
    pub async fn hold(&self) -> Result<Held<'_>, RequestError> {
        self.changed.wait_for(|| (self.position.get() != Position::Held).then_some(())).await;
        if self.position.get() == Position::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.position.set(Position::Held);
        let held = Held(self);
        self.all_out().await;
        Ok(held)
    }

    /// Refuses everybody and waits until all are out.
    pub async fn close(&self) -> Result<Closed<'_>, RequestError> {
        let held = self.hold().await?;
        self.position.set(Position::Closed);
        drop(held);
        Ok(Closed(self))
    }

    /// As [`Gate::close`]; does not wait for requests that are inside when `patience` ends.
    pub async fn close_within(&self, patience: impl Future<Output = ()>) -> Result<Closed<'_>, RequestError> {
        self.changed.wait_for(|| (self.position.get() != Position::Held).then_some(())).await;
        if self.position.get() == Position::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.position.set(Position::Held);
        let held = Held(self);
        let (mut out, mut patience) = (pin!(self.all_out()), pin!(patience));
        let is_over = |context: &mut Context<'_>| {
            let ready = out.as_mut().poll(context).is_ready() || patience.as_mut().poll(context).is_ready();
            if ready { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(is_over).await;
        self.position.set(Position::Closed);
        drop(held);
        Ok(Closed(self))
    }

    async fn all_out(&self) {
        self.changed.wait_for(|| (self.inside.get() == 0).then_some(())).await;
    }
}

impl Closed<'_> {
    /// Takes it back.
    pub fn open_again(self) {
        self.0.position.set(Position::Open);
        self.0.changed.notify();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        if self.0.inside.get() == 0 {
            self.0.changed.notify();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.position.get() == Position::Held {
            self.0.position.set(Position::Open);
        }
        self.0.changed.notify();
    }
}
