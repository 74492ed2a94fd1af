//! Count of clients that were not accepted because file descriptors ran out, over all listeners of the process.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static SHORTAGES: AtomicU64 = AtomicU64::new(0);

/// Counts a failed accept if descriptors ran out; returns true if it was counted.
pub fn count_accept_error(error: &io::Error) -> bool {
    let is_shortage = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if is_shortage {
        SHORTAGES.fetch_add(1, Ordering::Relaxed);
    }
    is_shortage
}

/// Number of accepts that failed for lack of descriptors. Each retry of an accept counts again.
pub fn shortages() -> u64 {
    SHORTAGES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lack_of_descriptors_is_counted() {
        let before = shortages();
        assert!(!count_accept_error(&io::Error::from_raw_os_error(libc::ECONNRESET)));
        assert_eq!(shortages(), before);
        assert!(count_accept_error(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(count_accept_error(&io::Error::from_raw_os_error(libc::ENFILE)));
        assert_eq!(shortages(), before + 2);
    }
}
