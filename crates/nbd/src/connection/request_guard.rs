//! Guard of a request in flight: counts what the request holds.

use std::cell::Cell;
use std::rc::Rc;

use seam::Seam;

use super::Connection;

/// Guard of a request in flight; dropping it releases the counted bytes and wakes the connection.
pub(super) struct RequestGuard<S: Seam> {
    pub(super) connection: Rc<Connection<S>>,
    held_bytes: usize,
    payload_bytes: usize,
    lent_bytes: usize,
}

impl<S: Seam> RequestGuard<S> {
    /// Counts a request with `held_bytes` for its reply or its blocks and `payload_bytes` of write data.
    pub(super) fn new(connection: &Rc<Connection<S>>, held_bytes: usize, payload_bytes: usize) -> Self {
        let add = |cell: &Cell<usize>, more: usize| cell.set(cell.get() + more);
        add(&connection.requests_in_flight, 1);
        add(&connection.held_bytes, held_bytes);
        add(&connection.payload_bytes, payload_bytes);
        RequestGuard { connection: Rc::clone(connection), held_bytes, payload_bytes, lent_bytes: 0 }
    }

    /// Adds a loan of `lent_bytes` of pool buffers, which the guard returns when dropped.
    pub(super) fn with_loan(mut self, lent_bytes: usize) -> Self {
        self.lent_bytes += lent_bytes;
        self
    }
}

impl<S: Seam> Drop for RequestGuard<S> {
    fn drop(&mut self) {
        let subtract = |cell: &Cell<usize>, less: usize| {
            cell.set(cell.get().checked_sub(less).expect("released bytes were counted"));
        };
        subtract(&self.connection.requests_in_flight, 1);
        subtract(&self.connection.held_bytes, self.held_bytes);
        subtract(&self.connection.payload_bytes, self.payload_bytes);
        self.connection.duplex.buffer_account().release(self.lent_bytes);
        if let Some(waker) = self.connection.sole_request_waker.take() {
            waker.wake();
        }
        self.connection.duplex.control().wake();
    }
}
