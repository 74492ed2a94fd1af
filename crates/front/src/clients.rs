//! Who is connected to a server, and what their replies may hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::budget::Budget;
use crate::{Control, Stop};

/// How often it is looked whether a client keeps others waiting.
pub(crate) const WATCH_PAUSE: Nanos = Nanos::from_secs(1);

/// What one client may hold, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of buffers that one client borrows at most without standing in line.
    pub held_bytes_max: usize,
    /// Time that a client has to take what was sent to it while others wait for the buffers which that holds.
    pub stall_timeout: Nanos,
}

/// All clients of a server: who there is, and what buffers their replies hold.
pub struct Clients {
    limits: Limits,
    pub(crate) budget: Budget,
    controls: RefCell<BTreeMap<u64, Rc<Control>>>,
    /// What one client may borrow of the budget without waiting for others, in bytes.
    share_bytes: Cell<usize>,
    /// Somebody looks for clients that keep others waiting.
    watched: Cell<bool>,
}

impl Clients {
    /// No clients yet, on a core with `pool_bytes` of buffers.
    pub fn new(limits: Limits, pool_bytes: usize) -> Clients {
        let (controls, share_bytes, watched) = Default::default();
        let clients = Clients { limits, budget: Budget::new(pool_bytes), controls, share_bytes, watched };
        clients.recount();
        clients
    }

    /// One client more.
    pub fn add(&self, number: u64, control: &Rc<Control>) {
        self.controls.borrow_mut().insert(number, Rc::clone(control));
        self.recount();
    }

    /// One client less.
    pub fn remove(&self, number: u64) {
        self.controls.borrow_mut().remove(&number);
        self.recount();
    }

    /// Clients now.
    pub fn count(&self) -> usize {
        self.controls.borrow().len()
    }

    /// True while the client of that number is there.
    pub fn has(&self, number: u64) -> bool {
        self.controls.borrow().contains_key(&number)
    }

    /// Asks all clients to end.
    pub fn ask_all(&self, stop: Stop) {
        self.controls.borrow().values().for_each(|client| client.ask(stop));
    }

    /// What one client may borrow of the budget without waiting for others, in bytes.
    pub fn share_bytes(&self) -> usize {
        self.share_bytes.get()
    }

    /// As long as somebody is in line, ends clients that have taken nothing for too long.
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

    /// Others have waited for another [`WATCH_PAUSE`]: sends away whoever has not taken his replies for too long.
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
