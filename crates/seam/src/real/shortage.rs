//! Clients that could not be let in for want of a file descriptor, counted for all listeners of the process.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static SHORTAGES: AtomicU64 = AtomicU64::new(0);

/// Counts a failed accept, if it failed for want of a descriptor; true where it did.
pub fn note_accept_error(error: &io::Error) -> bool {
    let is_shortage = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if is_shortage {
        SHORTAGES.fetch_add(1, Ordering::Relaxed);
    }
    is_shortage
}

/// How often a client could not be let in so far. It is tried again, and counted again.
pub fn shortages() -> u64 {
    SHORTAGES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_want_of_descriptors_is_counted() {
        let before = shortages();
        assert!(!note_accept_error(&io::Error::from_raw_os_error(libc::ECONNRESET)));
        assert_eq!(shortages(), before);
        assert!(note_accept_error(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(note_accept_error(&io::Error::from_raw_os_error(libc::ENFILE)));
        assert_eq!(shortages(), before + 2);
    }
}
