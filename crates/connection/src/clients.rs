//! Clients of a server, and the buffers that their replies may hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::budget::Budget;
use crate::{Control, Stop};

/// Interval of checks for stalled clients that hold buffers for which others wait.
pub(crate) const STALL_CHECK_INTERVAL: Nanos = Nanos::from_secs(1);

/// Limits of one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of buffers that one client borrows without queueing.
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
    client_quota_bytes: Cell<usize>,
    /// True while a task checks for stalled clients.
    is_watching: Cell<bool>,
}

impl Clients {
    /// An empty list, on a core with `pool_bytes` of buffers.
    pub fn new(limits: Limits, pool_bytes: usize) -> Clients {
        let clients = Clients {
            limits,
            budget: Budget::new(pool_bytes),
            controls: Default::default(),
            client_quota_bytes: Default::default(),
            is_watching: Default::default(),
        };
        clients.update_quota();
        clients
    }

    /// Adds a client.
    pub fn add(&self, number: u64, control: &Rc<Control>) {
        self.controls.borrow_mut().insert(number, Rc::clone(control));
        self.update_quota();
    }

    /// Removes a client.
    pub fn remove(&self, number: u64) {
        self.controls.borrow_mut().remove(&number);
        self.update_quota();
    }

    /// Number of clients.
    pub fn count(&self) -> usize {
        self.controls.borrow().len()
    }

    /// True while the client of that number is connected.
    pub fn has(&self, number: u64) -> bool {
        self.controls.borrow().contains_key(&number)
    }

    /// Requests the end of all connections.
    pub fn request_stop_all(&self, stop: Stop) {
        self.controls.borrow().values().for_each(|client| client.request_stop(stop));
    }

    /// Bytes that one client may borrow without waiting for others.
    pub fn client_quota_bytes(&self) -> usize {
        self.client_quota_bytes.get()
    }

    /// Disconnects clients that have accepted nothing for too long, while others wait in queue.
    pub(crate) fn watch_for_stalls<S: Seam>(self: &Rc<Self>, seam: &S) {
        if self.is_watching.replace(true) {
            return;
        }
        let (task_seam, clients) = (seam.clone(), Rc::clone(self));
        seam.spawn(async move {
            while clients.budget.has_waiting_clients() {
                task_seam.sleep(STALL_CHECK_INTERVAL).await;
                clients.disconnect_stalled();
            }
            clients.is_watching.set(false);
        });
    }

    /// Counts another [`STALL_CHECK_INTERVAL`] of waiting; disconnects clients whose sends have lasted too long.
    fn disconnect_stalled(&self) {
        for client in self.controls.borrow().values() {
            let intervals = client.count_stall();
            if intervals > 0 && STALL_CHECK_INTERVAL.0 * intervals >= self.limits.stall_timeout.0 {
                client.request_stop(Stop::Now);
            }
        }
    }

    fn update_quota(&self) {
        self.client_quota_bytes.set(self.budget.client_quota_bytes(self.count()).min(self.limits.held_bytes_max));
    }
}
