//! The gate of a volume: counts requests in progress, and lets an administrator hold or refuse new ones.

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
    /// New requests wait.
    Held,
    /// New requests are refused.
    Closed,
}

/// The gate, with a count of requests in progress.
#[derive(Default)]
pub struct Gate {
    position: Cell<Position>,
    inside: Cell<u64>,
    changed: Signal,
}

/// Guard of a request in progress.
pub struct Inside<'a>(&'a Gate);

/// Guard of a held gate without requests in progress; dropping it opens the gate.
pub struct Held<'a>(&'a Gate);

/// A closed gate. Requests are in progress only if [`Gate::close_within`] ran out of time.
pub struct Closed<'a>(&'a Gate);

impl Gate {
    /// True if a request that must not wait may enter.
    pub fn is_open(&self) -> bool {
        self.position.get() == Position::Open
    }

    /// Enters, once the gate is not held.
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

    /// Holds new requests and waits until all others have ended.
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

    /// Refuses new requests and waits until all others have ended.
    pub async fn close(&self) -> Result<Closed<'_>, RequestError> {
        let held = self.hold().await?;
        self.position.set(Position::Closed);
        drop(held);
        Ok(Closed(self))
    }

    /// Like [`Gate::close`], but stops waiting for requests in progress when `patience` ends.
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
    /// Opens the gate again.
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
