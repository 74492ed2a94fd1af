//! Descriptors that a service manager gave this process when it started it.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them; the others follow.
const FIRST: RawFd = 3;
/// More than any service manager keeps for one service.
const COUNT_MAX: RawFd = 1 << 16;

/// All of them with their names, as `sd_listen_fds(3)` says it; once, then none. To be called before anything else is opened.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let said = |name| std::env::var(name).ok();
    let number = |name| said(name).and_then(|text| text.parse::<RawFd>().ok());
    let ours = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
    if !ours || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, COUNT_MAX);
    let names = said("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').chain(std::iter::repeat(""));
    let mut found = Vec::new();
    for (fd, name) in (FIRST..FIRST + count).zip(names) {
        // SAFETY: a system call on a number. Nobody has such a descriptor where it fails.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0 {
            // SAFETY: it is open, and was made for this process and nobody else in it; nobody takes it a second time.
            found.push((name.to_owned(), unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    found
}
