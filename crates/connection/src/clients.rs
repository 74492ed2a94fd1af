//! Clients of a server, and the buffers that their replies may hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::budget::Budget;
use crate::{Control, Stop};

/// Interval of checks for clients that keep others waiting.
pub(crate) const WATCH_PAUSE: Nanos = Nanos::from_secs(1);

/// Limits of one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of buffers that one client borrows without waiting in line.
    pub held_bytes_max: usize,
    /// Time for a client to accept a reply while others wait for the buffers that it holds.
    pub stall_timeout: Nanos,
}

/// All clients of a server, and the budget of buffers for their replies.
pub struct Clients {
    limits: Limits,
    pub(crate) budget: Budget,
    controls: RefCell<BTreeMap<u64, Rc<Control>>>,
    /// Bytes that one client may borrow without waiting for others.
    share_bytes: Cell<usize>,
    /// True while a task checks for clients that keep others waiting.
    watched: Cell<bool>,
}

impl Clients {
    /// An empty list, on a core with `pool_bytes` of buffers.
    pub fn new(limits: Limits, pool_bytes: usize) -> Clients {
        let (controls, share_bytes, watched) = Default::default();
        let clients = Clients { limits, budget: Budget::new(pool_bytes), controls, share_bytes, watched };
        clients.recount();
        clients
    }

    /// Adds a client.
    pub fn add(&self, number: u64, control: &Rc<Control>) {
        self.controls.borrow_mut().insert(number, Rc::clone(control));
        self.recount();
    }

    /// Removes a client.
    pub fn remove(&self, number: u64) {
        self.controls.borrow_mut().remove(&number);
        self.recount();
    }

    /// Number of clients.
    pub fn count(&self) -> usize {
        self.controls.borrow().len()
    }

    /// True while the client of that number is connected.
    pub fn has(&self, number: u64) -> bool {
        self.controls.borrow().contains_key(&number)
    }

    /// Asks all clients to end.
    pub fn ask_all(&self, stop: Stop) {
        self.controls.borrow().values().for_each(|client| client.ask(stop));
    }

    /// Bytes that one client may borrow without waiting for others.
    pub fn share_bytes(&self) -> usize {
        self.share_bytes.get()
    }

    /// Disconnects clients that have accepted nothing for too long, while others wait in line.
    pub(crate) fn watch<S: Seam>(self: &Rc<Self>, seam: &S) {
        if self.watched.replace(true) {
            return;
        }
        let (watching, clients) = (seam.clone(), Rc::clone(self));
        seam.spawn(async move {
            while clients.budget.is_waited_for() {
                watching.sleep(WATCH_PAUSE).await;
                clients.end_stalled();
            }
            clients.watched.set(false);
        });
    }

    /// Counts another [`WATCH_PAUSE`] of waiting; disconnects clients whose sends have lasted too long.
    fn end_stalled(&self) {
        for client in self.controls.borrow().values() {
            let pauses = client.count_stall();
            if pauses > 0 && WATCH_PAUSE.0 * pauses >= self.limits.stall_timeout.0 {
                client.ask(Stop::Now);
            }
        }
    }

    fn recount(&self) {
        self.share_bytes.set(self.budget.share_bytes(self.count()).min(self.limits.held_bytes_max));
    }
}
