//! Signals that stop the process or reload its configuration, received by a dedicated thread.

use std::io;
use std::mem::MaybeUninit;

/// A signal that the process handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    Hangup,
}

impl Signal {
    const ALL: [Signal; 3] = [Signal::Terminate, Signal::Interrupt, Signal::Hangup];

    /// The signal's name.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "SIGINT",
            Signal::Hangup => "SIGHUP",
        }
    }

    fn number(self) -> libc::c_int {
        match self {
            Signal::Terminate => libc::SIGTERM,
            Signal::Interrupt => libc::SIGINT,
            Signal::Hangup => libc::SIGHUP,
        }
    }
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: an initialised set and a valid signal number.
        unsafe { libc::sigaddset(&raw mut set, signal.number()) };
    }
    set
}

/// Blocks these signals in this thread and in threads that it starts later; [`wait_for_signal`] receives them.
pub fn block_signals() -> io::Result<()> {
    let set = set_of(&Signal::ALL);
    // SAFETY: an initialised set; the old mask is not requested.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for the next blocked signal.
pub fn wait_for_signal() -> Signal {
    let set = set_of(&Signal::ALL);
    loop {
        let mut number = 0;
        // SAFETY: an initialised set, and room for the result.
        let failed = unsafe { libc::sigwait(&raw const set, &raw mut number) };
        if let Some(signal) = Signal::ALL.into_iter().find(|signal| failed == 0 && signal.number() == number) {
            return signal;
        }
    }
}

/// Performs the signal's default action: it ends the process, unless the signal is ignored.
pub fn apply_default_action(signal: Signal) {
    let set = set_of(&[signal]);
    // SAFETY: an initialised set and a valid signal. The signal is delivered to this thread before the second call
    // returns.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal.number());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Ends the process at once: it flushes, closes and awaits nothing.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: the call does not return, and runs no code of this process.
    unsafe { libc::_exit(code) }
}
