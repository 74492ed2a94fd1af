//! Bells of the real world: eventfds created by another process.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use compio::BufResult;
use compio::driver::op::{Interest, PollOnce};
use compio::runtime::{Runtime, Submit};

use crate::Bell;

/// An eventfd shared with another process.
pub struct RealBell {
    fd: Rc<OwnedFd>,
    /// The other process opened the eventfd in blocking mode: a write waits while the counter is at its maximum.
    blocks: bool,
    waiting: RefCell<Option<Submit<PollOnce<Rc<OwnedFd>>>>>,
}

/// Refuses every descriptor except an eventfd. Another file could be readable for ever, or block the thread that uses
/// or closes it. The check itself touches no file system.
pub fn check_eventfd(fd: impl AsFd) -> io::Result<()> {
    let file_name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))?;
    if file_name.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no eventfd", file_name.display())));
    }
    Ok(())
}

impl RealBell {
    /// Takes ownership of an eventfd; refuses any other descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<RealBell> {
        check_eventfd(&fd)?;
        // SAFETY: reads the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        let blocks = flags & libc::O_NONBLOCK == 0;
        Ok(RealBell { fd: Rc::new(fd), blocks, waiting: RefCell::default() })
    }

    /// Resets the counter without waiting; false if another reader was faster.
    fn take(&self) -> io::Result<bool> {
        let mut count = 0_u64;
        let iov = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: one buffer of eight bytes that outlives the call; the offset -1 means none.
        let read_bytes = unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const iov, 1, -1, libc::RWF_NOWAIT) };
        if read_bytes >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        }
    }

    fn would_block(&self) -> bool {
        let mut poll_entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry that outlives the call, which does not wait.
        self.blocks && unsafe { libc::poll(&raw mut poll_entry, 1, 0) } != 1
    }
}

impl Bell for RealBell {
    fn poll_rung(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waiting = self.waiting.borrow_mut();
        loop {
            let submit = waiting.get_or_insert_with(|| {
                let operation = PollOnce::new(self.fd.clone(), Interest::Readable);
                Runtime::with_current(|runtime| runtime.submit(operation))
            });
            let BufResult(result, _) = ready!(Pin::new(submit).poll(context));
            *waiting = None;
            result?;
            if self.take()? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn ring(&self) {
        if self.would_block() {
            return;
        }
        let increment = 1_u64;
        // SAFETY: eight bytes that outlive the call. At the maximum of the counter a failed write loses nothing.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const increment).cast(), size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::future::poll_fn;
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::Seam;
    use crate::real::{RealCoreSpec, run_core};

    fn eventfd(flags: i32) -> OwnedFd {
        // SAFETY: the kernel has just created this descriptor, and it has no other owner.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, flags)) }
    }

    #[test]
    fn several_rings_wake_once_and_a_later_ring_again() {
        for flags in [0, libc::EFD_NONBLOCK] {
            let is_silent = run_core(RealCoreSpec::new(1 << 20), move |seam| async move {
                let fd = eventfd(flags);
                let (receiver, sender) = (
                    RealBell::new(fd.try_clone().expect("a copy")).expect("an eventfd"),
                    RealBell::new(fd).expect("an eventfd"),
                );
                sender.ring();
                sender.ring();
                poll_fn(|context| receiver.poll_rung(context)).await.expect("the ring wakes the waiter");
                let silent = poll_fn(|context| Poll::Ready(receiver.poll_rung(context).is_pending())).await;
                let (ringing, later) = (seam.clone(), Rc::new(sender));
                seam.spawn(async move {
                    ringing.yield_now().await;
                    later.ring();
                });
                poll_fn(|context| receiver.poll_rung(context)).await.expect("a later ring wakes the waiter");
                silent
            });
            assert!(is_silent.expect("a core"), "the first wait consumes all earlier rings");
        }
    }

    #[test]
    fn full_bell_does_not_block_and_other_files_are_refused() {
        let fd = eventfd(0);
        let counter_max = u64::MAX - 1;
        // SAFETY: eight bytes that outlive the call.
        unsafe { libc::write(fd.as_raw_fd(), (&raw const counter_max).cast(), 8) };
        RealBell::new(fd).expect("an eventfd").ring();
        let zeroes = File::open("/dev/zero").expect("there");
        assert!(RealBell::new(zeroes.into()).is_err());
    }
}
