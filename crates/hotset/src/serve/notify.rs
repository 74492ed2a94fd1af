//! Telling systemd how far we are: READY, STOPPING, STATUS, WATCHDOG. Without NOTIFY_SOCKET nothing happens.

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

    /// Half of the time within which the watchdog has to be fed, where one is on.
    pub fn watchdog_pause() -> Option<Duration> {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        (micros > 0).then(|| Duration::from_micros(micros / 2))
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

    /// As [`Notifier::status`], for something that takes long: asks for another half minute.
    pub fn patience(&self, text: &str) {
        self.say(&format!("STATUS={text}\nEXTEND_TIMEOUT_USEC=30000000"));
    }
}
