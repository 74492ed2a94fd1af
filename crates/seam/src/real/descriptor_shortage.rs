//! Count of accepts that failed because file descriptors ran out, over all listeners of the process.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static DESCRIPTOR_SHORTAGES: AtomicU64 = AtomicU64::new(0);

/// Counts a failed accept if descriptors ran out; returns true if it was counted.
pub fn count_accept_error(error: &io::Error) -> bool {
    let is_shortage = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if is_shortage {
        DESCRIPTOR_SHORTAGES.fetch_add(1, Ordering::Relaxed);
    }
    is_shortage
}

/// Number of accepts that failed for lack of descriptors. Each retry of an accept counts again.
pub fn descriptor_shortages() -> u64 {
    DESCRIPTOR_SHORTAGES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lack_of_descriptors_is_counted() {
        let before = descriptor_shortages();
        assert!(!count_accept_error(&io::Error::from_raw_os_error(libc::ECONNRESET)));
        assert_eq!(descriptor_shortages(), before);
        assert!(count_accept_error(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(count_accept_error(&io::Error::from_raw_os_error(libc::ENFILE)));
        assert_eq!(descriptor_shortages(), before + 2);
    }
}
