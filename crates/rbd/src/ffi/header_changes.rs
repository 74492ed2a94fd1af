//! Notifications of changes to an image's header: its features, its size, its snapshots, its metadata.

use std::ffi::c_void;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Changes that no wait has seen yet.
#[derive(Default)]
pub struct HeaderChanges {
    is_changed: Mutex<bool>,
    changed: Condvar,
}

impl HeaderChanges {
    fn notify(&self) {
        *self.is_changed.lock().expect("no holder of the lock panics") = true;
        self.changed.notify_all();
    }

    /// Waits for the next change, for a limited time.
    pub fn wait(&self, limit: Duration) {
        let is_changed = self.is_changed.lock().expect("no holder of the lock panics");
        let waited = self.changed.wait_timeout_while(is_changed, limit, |is_changed| !*is_changed);
        *waited.expect("no holder of the lock panics").0 = false;
    }
}

/// Called by librbd on a thread of its own; `changes` is a [`HeaderChanges`].
pub(super) extern "C" fn notify_changes(changes: *mut c_void) {
    // SAFETY: `Image::watch_header` passes a pointer to a value that lives for as long as the process.
    unsafe { &*changes.cast::<HeaderChanges>() }.notify();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_before_the_wait_ends_it_at_once() {
        let changes = HeaderChanges::default();
        notify_changes(std::ptr::from_ref(&changes).cast_mut().cast());
        changes.wait(Duration::from_secs(600));
        changes.wait(Duration::from_millis(1));
    }
}
