//! Descriptors that the service manager has passed to this process.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of the first descriptor; the others follow.
const FIRST_FD: RawFd = 3;
/// Upper bound of the descriptors that a service manager keeps for one service.
const FD_COUNT_MAX: RawFd = 1 << 16;

/// Takes all passed descriptors with their names, as specified by `sd_listen_fds(3)`; later calls return none. Must be
/// called before the process opens any other descriptor.
pub fn take_inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var(name).ok();
    let number = |name| variable(name).and_then(|text| text.parse::<RawFd>().ok());
    let is_for_this_process = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
    if !is_for_this_process || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, FD_COUNT_MAX);
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').chain(std::iter::repeat(""));
    let mut descriptors = Vec::new();
    for (fd, name) in (FIRST_FD..FIRST_FD + count).zip(names) {
        // SAFETY: a system call on a number; it fails if no descriptor has that number.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0 {
            // SAFETY: the descriptor is open and was passed to this process; no other code owns it, and it is taken
            // only once.
            descriptors.push((name.to_owned(), unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    descriptors
}
