//! Signals that stop the process or have it read its configuration again, taken one by one by a thread that waits for nothing else.

use std::io;
use std::mem::MaybeUninit;

/// What a signal asks for.
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

    /// Its name, as people know it.
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
    // SAFETY: the call fills it.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: a set that was just made, and a number that exists.
        unsafe { libc::sigaddset(&raw mut set, signal.number()) };
    }
    set
}

/// Holds these signals back from this thread and those that it starts from now on: they are for whoever calls [`wait_for_signal`].
pub fn hold_signals() -> io::Result<()> {
    let set = set_of(&Signal::ALL);
    // SAFETY: a set that was just made; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for the next of the signals that are held back.
pub fn wait_for_signal() -> Signal {
    let set = set_of(&Signal::ALL);
    loop {
        let mut number = 0;
        // SAFETY: a set that was just made, and room for the answer.
        let failed = unsafe { libc::sigwait(&raw const set, &raw mut number) };
        if let Some(signal) = Signal::ALL.into_iter().find(|signal| failed == 0 && signal.number() == number) {
            return signal;
        }
    }
}

/// Does what the system does with a signal that nobody takes: it ends the process, unless it is ignored.
pub fn obey_default(signal: Signal) {
    let set = set_of(&[signal]);
    // SAFETY: a set that was just made, and a signal that exists. It comes to this thread before the second call returns.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal.number());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Ends the process at once: nothing is written, closed or waited for.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: it does not return, and runs nothing of this process's.
    unsafe { libc::_exit(code) }
}
