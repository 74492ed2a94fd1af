//! The control channel to the daemon: a Unix socket as standard output. When the daemon closes it or ends, this process
//! ends too.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use rbd::Status;

/// The channel.
pub struct Control(Mutex<UnixStream>);

impl Control {
    /// The channel at standard output.
    pub fn at_stdout() -> io::Result<Control> {
        let socket = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Control(Mutex::new(UnixStream::from(socket))))
    }

    /// Sends a message. A failure means that the daemon has ended, which [`Control::socket`] reports too.
    pub fn send(&self, status: &Status) {
        let line = status.encode() + "\n";
        let mut socket = self.0.lock().expect("no holder of the lock panics");
        let (Ok(()) | Err(_)) = socket.write_all(line.as_bytes());
    }

    /// A second handle to the socket, which becomes readable when the daemon closes it or ends.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.0.lock().expect("no holder of the lock panics").try_clone()
    }
}
