//! Signals that a service manager or a terminal sends to all processes of the daemon.

/// Ignores SIGTERM and SIGINT: this process ends with its daemon, which still destages when they arrive.
pub fn ignore_stop_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: SIG_IGN runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
