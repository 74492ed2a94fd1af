//! The succession of volumes. While the ownership of a volume moves between hosts, its clients stay connected: one
//! volume is detached, another one of the same content takes its place, and requests wait in between.
//!
//! A front end holds a handle to the volume that its client has connected to, and a request goes to the last successor.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use seam::{Nanos, Seam};
use task_sync::within;

use super::Volume;
use crate::RequestError;
use crate::wait::Signal;

/// Time for which a request waits for the successor of its volume, and a change for the ownership.
const OWNERSHIP_TIMEOUT: Nanos = Nanos::from_secs(20);

/// A volume's successor, and the requests that wait for it.
pub struct Succession<S: Seam> {
    successor: OnceCell<Volume<S>>,
    /// Requests that the volume no longer serves wait for the successor.
    is_expected: Cell<bool>,
    /// The volume's size before it is detached, which clients see until the successor is there.
    size_bytes: Cell<u64>,
    /// There will be no successor.
    is_cancelled: Cell<bool>,
    /// Number of changes that wait for the ownership of a volume on standby.
    changes_waiting: Cell<usize>,
    changed: Signal,
}

impl<S: Seam> Default for Succession<S> {
    fn default() -> Self {
        Succession {
            successor: OnceCell::new(),
            is_expected: Cell::default(),
            size_bytes: Cell::default(),
            is_cancelled: Cell::default(),
            changes_waiting: Cell::default(),
            changed: Signal::default(),
        }
    }
}

/// State of the client of a handle; clones of the handle share it.
#[derive(Clone, Default)]
pub struct ClientState {
    /// The client has changed the volume.
    has_changed: Rc<Cell<bool>>,
}

impl ClientState {
    /// Records that the client changes the volume.
    pub fn record_change(&self) {
        self.has_changed.set(true);
    }
}

/// A change that waits for the ownership of a volume on standby.
struct WaitingChange<'a>(&'a Cell<usize>);

impl<'a> WaitingChange<'a> {
    fn new<S: Seam>(succession: &'a Succession<S>) -> Self {
        succession.changes_waiting.set(succession.changes_waiting.get() + 1);
        succession.changed.notify();
        WaitingChange(&succession.changes_waiting)
    }
}

impl Drop for WaitingChange<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It leaves the content as it is.
    Read,
    /// A write, zeroes or a discard: only the owner's host carries it out.
    Change,
}

impl<S: Seam> Volume<S> {
    /// From now on, requests that the volume no longer serves wait for its successor.
    pub fn expect_successor(&self) {
        self.0.succession.size_bytes.set(self.0.shard.size_bytes.get());
        self.0.succession.is_expected.set(true);
        self.0.succession.is_cancelled.set(false);
        self.0.succession.changed.notify();
    }

    /// There will be no successor. Waiting requests are tried on this volume again; changes of one on standby fail.
    pub fn cancel_succession(&self) {
        self.0.succession.is_expected.set(false);
        self.0.succession.is_cancelled.set(true);
        self.0.succession.changed.notify();
    }

    /// Passes waiting requests, and later ones of the same clients, to a volume with the same content.
    pub fn set_successor(&self, successor: Volume<S>) {
        assert!(self.0.succession.successor.set(successor).is_ok(), "a detached volume has one successor");
        self.0.succession.changed.notify();
    }

    /// Waits until a client wants to change a volume on standby; false if the volume ends before.
    pub async fn wait_until_change_wanted(&self) -> bool {
        let succession = &self.0.succession;
        let wanted = || match succession.changes_waiting.get() {
            0 => succession.is_expected.get().then_some(false),
            _ => Some(true),
        };
        succession.changed.wait_for(wanted).await
    }

    /// A handle for a client that connects now.
    pub fn for_client(&self) -> Volume<S> {
        Volume(self.0.clone(), ClientState::default())
    }

    /// Size that clients see while they wait for the successor, in bytes; `None` if they do not wait.
    pub(super) fn size_while_expected(&self) -> Option<u64> {
        let succession = &self.0.succession;
        succession.is_expected.get().then(|| succession.size_bytes.get())
    }

    /// The volume that serves this handle's requests now.
    pub(crate) fn current(&self) -> &Volume<S> {
        let mut volume = self;
        while let Some(next) = volume.0.succession.successor.get() {
            volume = next;
        }
        volume
    }
}

/// The way of a request: to the present volume, and again to its successor if it is not served any more.
pub struct Route<'a, S: Seam> {
    volume: &'a Volume<S>,
    client: &'a ClientState,
    access: Access,
    /// A former volume on the way was that of the owner.
    was_owner: bool,
    /// End of all waits for successors, once there was one.
    deadline: Option<Nanos>,
    /// The volume has refused the request, and its successor is awaited.
    is_refused: bool,
}

impl<'a, S: Seam> Route<'a, S> {
    /// The way of a request of this kind, by the client's handle.
    pub fn new(volume: &'a Volume<S>, access: Access) -> Self {
        Route { volume, client: &volume.1, access, was_owner: false, deadline: None, is_refused: false }
    }

    /// The volume that serves the request now. A change of a volume on standby waits for the ownership.
    pub async fn volume(&mut self) -> Result<&'a Volume<S>, RequestError> {
        self.advance();
        if self.is_refused || self.is_change_on_standby() {
            // Boxed: this is rare, and would make the future of every request longer.
            Box::pin(self.wait()).await?;
        }
        if self.access == Access::Change {
            self.client.record_change();
        }
        Ok(self.volume)
    }

    /// True if the volume has not served the request, and another one will.
    pub fn is_refused<T>(&mut self, result: &Result<T, RequestError>) -> bool {
        let is_refusal = match result {
            Ok(_) => false,
            Err(RequestError::ShuttingDown) => true,
            Err(_) => self.volume.0.spec.is_standby,
        };
        self.is_refused = is_refusal && self.volume.0.succession.is_expected.get();
        self.is_refused
    }

    fn is_change_on_standby(&self) -> bool {
        self.access == Access::Change && self.volume.0.spec.is_standby
    }

    fn advance(&mut self) {
        while let Some(next) = self.volume.0.succession.successor.get() {
            self.was_owner |= !self.volume.0.spec.is_standby;
            (self.volume, self.is_refused) = (next, false);
        }
    }

    /// Waits until the volume may serve the request.
    async fn wait(&mut self) -> Result<(), RequestError> {
        loop {
            let (succession, is_change) = (&self.volume.0.succession, self.is_change_on_standby());
            if is_change && succession.is_cancelled.get() {
                return Err(RequestError::ShuttingDown);
            }
            if is_change && self.was_owner && self.client.has_changed.get() {
                // The volume has moved away from this client, to one of another host.
                return Err(RequestError::MovedAway);
            }
            if !is_change && !self.is_refused {
                return Ok(());
            }
            let _waiting = is_change.then(|| WaitingChange::new(succession));
            let is_over = || succession.is_cancelled.get() || !is_change && !succession.is_expected.get();
            let ready = || (succession.successor.get().is_some() || is_over()).then_some(());
            let end = *self.deadline.get_or_insert(self.volume.now() + OWNERSHIP_TIMEOUT);
            let limit = self.volume.0.shard.seam().sleep_until(end);
            if within(limit, succession.changed.wait_for(ready)).await.is_none() {
                return Err(RequestError::NotOwner);
            }
            // Without a successor the volume is tried again: it may have returned to service.
            self.is_refused = false;
            self.advance();
        }
    }
}
