//! The NBD server: the daemon's connection, and a second one for a moment when it asks for the size.

mod connection;
mod handshake;
mod in_flight;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::connection::Connection;
use super::control::Control;
use super::ffi::Image;
use super::ownership::Ownership;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 4;
/// Pause between two looks at connections that are to end, in milliseconds.
const DRAIN_PAUSE_MS: i64 = 5;

/// Serves the image at the listening socket that is standard input, until the daemon closes the control channel. Then
/// all requests have ended.
pub fn serve_until_closed(image: &Arc<Image>, ownership: &Arc<Ownership>, control: &Control) -> io::Result<()> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let control = control.socket()?;
    let mut connections: Vec<(UnixStream, JoinHandle<()>)> = Vec::new();
    while wait_for_client(&listener, &control)? && wait_until_drained(&mut connections, &control)? {
        let stream = listener.accept()?.0;
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

/// Waits until the requests of connections that their client has closed have ended: the client repeats its writes on
/// the next connection, and a former write must not land after a repeated one. False when the daemon has closed the
/// control channel.
fn wait_until_drained(connections: &mut Vec<(UnixStream, JoinHandle<()>)>, control: &UnixStream) -> io::Result<bool> {
    loop {
        connections.retain(|(_, thread)| !thread.is_finished());
        let mut is_drained = true;
        for (stream, _) in &*connections {
            is_drained &= !has_event(stream, PollFlags::RDHUP, 0)?;
        }
        if is_drained {
            return Ok(true);
        }
        if has_event(control, PollFlags::RDHUP, DRAIN_PAUSE_MS)? {
            return Ok(false);
        }
    }
}

/// True if the socket reports an event within this time.
fn has_event(socket: &UnixStream, event: PollFlags, wait_ms: i64) -> io::Result<bool> {
    let mut sockets = [PollFd::new(socket, event)];
    let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
    match poll(&mut sockets, Some(&wait)) {
        Ok(_) => Ok(!sockets[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for a client; false when the daemon has closed the control channel.
fn wait_for_client(listener: &UnixListener, control: &UnixStream) -> io::Result<bool> {
    loop {
        let mut sockets = [PollFd::new(listener, PollFlags::IN), PollFd::new(control, PollFlags::RDHUP)];
        match poll(&mut sockets, None) {
            Ok(_) if !sockets[1].revents().is_empty() => return Ok(false),
            Ok(_) if !sockets[0].revents().is_empty() => return Ok(true),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn next_connection_waits_for_the_requests_of_a_closed_one() {
        let (control, daemon) = UnixStream::pair().expect("a descriptor is free");
        let (stream, client) = UnixStream::pair().expect("a descriptor is free");
        let (finish, in_flight) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || in_flight.recv().unwrap_or_default());
        let mut connections = vec![(stream, thread)];
        assert!(wait_until_drained(&mut connections, &control).expect("a poll"), "the client is still connected");
        drop(client);
        drop(daemon);
        assert!(!wait_until_drained(&mut connections, &control).expect("a poll"), "its request is still in flight");
        finish.send(()).expect("the thread waits");
        while !connections[0].1.is_finished() {
            std::thread::yield_now();
        }
        assert!(wait_until_drained(&mut connections, &control).expect("a poll"));
        assert!(connections.is_empty());
    }
}
