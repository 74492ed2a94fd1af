//! The requests of a connection in flight: a bound on their number and bytes, and their end.

use std::sync::{Condvar, Mutex};

/// Requests in flight on a connection.
const REQUESTS_MAX: usize = 128;
/// Bytes of their buffers, beyond which no further request begins.
const BYTES_MAX: usize = 64 << 20;

/// The requests in flight.
#[derive(Default)]
pub struct InFlight {
    /// Number and bytes.
    sum: Mutex<(usize, usize)>,
    ended: Condvar,
}

impl InFlight {
    /// Waits for room, and counts a request with a buffer of `bytes`.
    pub fn begin(&self, bytes: usize) {
        let sum = self.sum.lock().expect("no holder of the lock panics");
        let is_full = |sum: &mut (usize, usize)| sum.0 >= REQUESTS_MAX || sum.1 >= BYTES_MAX;
        let mut sum = self.ended.wait_while(sum, is_full).expect("no holder of the lock panics");
        *sum = (sum.0 + 1, sum.1 + bytes);
    }

    /// Counts the end of a request.
    pub fn end(&self, bytes: usize) {
        let mut sum = self.sum.lock().expect("no holder of the lock panics");
        *sum = (sum.0 - 1, sum.1 - bytes);
        self.ended.notify_one();
    }

    /// Waits until no request is in flight.
    pub fn wait_for_end(&self) {
        let sum = self.sum.lock().expect("no holder of the lock panics");
        drop(self.ended.wait_while(sum, |sum| sum.0 > 0).expect("no holder of the lock panics"));
    }
}
