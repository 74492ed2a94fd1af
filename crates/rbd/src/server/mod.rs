//! The NBD server: the daemon's connection, and a second one for a moment when it asks for the size.

mod connection;
mod handshake;
mod in_flight;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use self::connection::Connection;
use super::control::Control;
use super::ffi::Image;
use super::ownership::Ownership;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 4;

/// Serves the image at the listening socket that is standard input, until the daemon closes the control channel. Then
/// all requests have ended.
pub fn serve_until_closed(image: &Arc<Image>, ownership: &Arc<Ownership>, control: &Control) -> io::Result<()> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let control = control.socket()?;
    let mut connections: Vec<(UnixStream, JoinHandle<()>)> = Vec::new();
    while wait_for_client(&listener, &control)? {
        let stream = listener.accept()?.0;
        connections.retain(|(_, thread)| !thread.is_finished());
        if connections.len() >= CONNECTIONS_MAX {
            continue;
        }
        let handle = stream.try_clone()?;
        let (image, ownership) = (Arc::clone(image), Arc::clone(ownership));
        connections.push((handle, std::thread::spawn(move || Connection::serve(stream, image, ownership))));
    }
    for (stream, thread) in connections {
        let (Ok(()) | Err(_)) = stream.shutdown(std::net::Shutdown::Read);
        thread.join().expect("the thread of a connection does not panic");
    }
    Ok(())
}

/// Waits for a client; false when the daemon has closed the control channel.
fn wait_for_client(listener: &UnixListener, control: &UnixStream) -> io::Result<bool> {
    let interest = PollFlags::IN;
    loop {
        let mut sockets = [PollFd::new(listener, interest), PollFd::new(control, interest)];
        match poll(&mut sockets, None) {
            Ok(_) if !sockets[1].revents().is_empty() => return Ok(false),
            Ok(_) if !sockets[0].revents().is_empty() => return Ok(true),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
