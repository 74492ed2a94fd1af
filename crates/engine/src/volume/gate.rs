//! The gate of a volume: counts requests in progress, and lets an administrator hold or refuse new ones.

use std::cell::Cell;

use crate::RequestError;
use crate::wait::Signal;
use task_sync::within;

/// State of a gate.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum GateState {
    /// Requests enter.
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
    state: Cell<GateState>,
    requests_in_progress: Cell<u64>,
    changed: Signal,
}

/// Guard of a request in progress.
pub struct RequestInProgress<'a>(&'a Gate);

/// Guard of a held gate without requests in progress; dropping it opens the gate.
pub struct HeldGate<'a>(&'a Gate);

/// A closed gate. Requests are in progress only if [`Gate::close_within`] ran out of time.
pub struct ClosedGate<'a>(&'a Gate);

impl Gate {
    /// True if a request that must not wait may enter.
    pub fn is_open(&self) -> bool {
        self.state.get() == GateState::Open
    }

    /// Enters, once the gate is not held.
    pub async fn enter(&self) -> Result<RequestInProgress<'_>, RequestError> {
        if !self.is_open() {
            self.changed.wait_for(|| (self.state.get() != GateState::Held).then_some(())).await;
        }
        if self.state.get() == GateState::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.requests_in_progress.set(self.requests_in_progress.get() + 1);
        Ok(RequestInProgress(self))
    }

    /// Holds new requests and waits until all others have ended.
    pub async fn hold(&self) -> Result<HeldGate<'_>, RequestError> {
        self.changed.wait_for(|| (self.state.get() != GateState::Held).then_some(())).await;
        if self.state.get() == GateState::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.state.set(GateState::Held);
        let held = HeldGate(self);
        self.wait_until_empty().await;
        Ok(held)
    }

    /// Refuses new requests and waits until all others have ended.
    pub async fn close(&self) -> Result<ClosedGate<'_>, RequestError> {
        let held = self.hold().await?;
        self.state.set(GateState::Closed);
        drop(held);
        Ok(ClosedGate(self))
    }

    /// Like [`Gate::close`], but stops waiting for requests in progress when `timeout` ends.
    pub async fn close_within(&self, timeout: impl Future<Output = ()>) -> Result<ClosedGate<'_>, RequestError> {
        self.changed.wait_for(|| (self.state.get() != GateState::Held).then_some(())).await;
        if self.state.get() == GateState::Closed {
            return Err(RequestError::ShuttingDown);
        }
        self.state.set(GateState::Held);
        let held = HeldGate(self);
        within(timeout, self.wait_until_empty()).await;
        self.state.set(GateState::Closed);
        drop(held);
        Ok(ClosedGate(self))
    }

    /// Waits until no request is in progress.
    async fn wait_until_empty(&self) {
        self.changed.wait_for(|| (self.requests_in_progress.get() == 0).then_some(())).await;
    }
}

impl ClosedGate<'_> {
    /// Opens the gate again.
    pub fn reopen(self) {
        self.0.state.set(GateState::Open);
        self.0.changed.notify();
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.requests_in_progress.set(self.0.requests_in_progress.get() - 1);
        if self.0.requests_in_progress.get() == 0 {
            self.0.changed.notify();
        }
    }
}

impl Drop for HeldGate<'_> {
    fn drop(&mut self) {
        if self.0.state.get() == GateState::Held {
            self.0.state.set(GateState::Open);
        }
        self.0.changed.notify();
    }
}
