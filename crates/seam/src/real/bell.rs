//! Bells of the real world: eventfds that another process made.

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

/// An eventfd of another process.
pub struct RealBell {
    fd: Rc<OwnedFd>,
    /// A write waits while the count is at its end: the other process made it so.
    blocks: bool,
    waiting: RefCell<Option<Submit<PollOnce<Rc<OwnedFd>>>>>,
}

/// Refuses what is no eventfd: it could be readable for ever, or hold up the thread that uses or closes it. Asks no file system.
pub fn check_eventfd(fd: impl AsFd) -> io::Result<()> {
    let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))?;
    if what.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no eventfd", what.display())));
    }
    Ok(())
}

impl RealBell {
    /// Takes over an eventfd; refuses anything else.
    pub fn new(fd: OwnedFd) -> io::Result<RealBell> {
        check_eventfd(&fd)?;
        // SAFETY: asks for the flags of a descriptor that is open.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        let blocks = flags & libc::O_NONBLOCK == 0;
        Ok(RealBell { fd: Rc::new(fd), blocks, waiting: RefCell::default() })
    }

    /// Takes the count, without waiting; false where somebody else took it.
    fn take(&self) -> io::Result<bool> {
        let mut count = 0_u64;
        let iov = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: one buffer of eight bytes that outlives the call; the offset -1 means none.
        let got = unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const iov, 1, -1, libc::RWF_NOWAIT) };
        if got >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        }
    }

    fn would_block(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry that outlives the call, which does not wait.
        self.blocks && unsafe { libc::poll(&raw mut asked, 1, 0) } != 1
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
        let one = 1_u64;
        // SAFETY: eight bytes that outlive the call. A count at its end has been rung often enough.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
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
        // SAFETY: a descriptor that the kernel has just made is ours.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, flags)) }
    }

    #[test]
    fn a_bell_is_heard_once_however_often_it_was_rung_and_again_when_it_is_rung_again() {
        for flags in [0, libc::EFD_NONBLOCK] {
            let heard = run_core(RealCoreSpec::new(1 << 20), move |seam| async move {
                let fd = eventfd(flags);
                let (here, there) = (
                    RealBell::new(fd.try_clone().expect("a copy")).expect("an eventfd"),
                    RealBell::new(fd).expect("an eventfd"),
                );
                there.ring();
                there.ring();
                poll_fn(|context| here.poll_rung(context)).await.expect("heard");
                let silent = poll_fn(|context| Poll::Ready(here.poll_rung(context).is_pending())).await;
                let (ringing, later) = (seam.clone(), Rc::new(there));
                seam.spawn(async move {
                    ringing.yield_now().await;
                    later.ring();
                });
                poll_fn(|context| here.poll_rung(context)).await.expect("heard again");
                silent
            });
            assert!(heard.expect("a core"), "what was heard is over");
        }
    }

    #[test]
    fn a_full_bell_holds_nobody_up_and_other_files_are_none() {
        let fd = eventfd(0);
        let most = u64::MAX - 1;
        // SAFETY: eight bytes that outlive the call.
        unsafe { libc::write(fd.as_raw_fd(), (&raw const most).cast(), 8) };
        RealBell::new(fd).expect("an eventfd").ring();
        let zeroes = File::open("/dev/zero").expect("there");
        assert!(RealBell::new(zeroes.into()).is_err());
    }
}
