//! Telling systemd how far we are: READY, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT. Without NOTIFY_SOCKET nothing happens.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where systemd listens, if it does.
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notifier {
    /// From the environment.
    pub fn from_environment() -> Notifier {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name).ok(),
            None => SocketAddr::from_pathname(path).ok(),
        });
        let to = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        Notifier { to }
    }

    /// As [`Notifier::from_environment`], for a data core: what a service manager has no room for is not said.
    pub fn that_never_waits() -> Notifier {
        let Notifier { to } = Notifier::from_environment();
        Notifier { to: to.filter(|(socket, _)| socket.set_nonblocking(true).is_ok()) }
    }

    /// The time within which the watchdog has to be fed, where one is on.
    pub fn watchdog_time() -> Option<Duration> {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Sends lines of the protocol.
    pub fn say(&self, lines: &str) {
        if let Some((socket, address)) = &self.to {
            // A service manager that does not listen must not stop the service.
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }

    /// What is being done, for `systemctl status`.
    pub fn status(&self, text: &str) {
        self.say(&format!("STATUS={text}"));
    }

    /// As [`Notifier::status`], for something that takes long.
    pub fn patience(&self, text: &str) {
        self.status(text);
        self.more_time();
    }

    /// Asks for another half minute.
    pub fn more_time(&self) {
        self.say("EXTEND_TIMEOUT_USEC=30000000");
    }
}
