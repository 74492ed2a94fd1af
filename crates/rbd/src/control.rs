//! The control channel to the daemon: a Unix socket as standard output. When the daemon closes it or ends, this process
//! ends too.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rbd::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time for which a message waits for a daemon that reads none.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two reports of progress.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);

/// Ends reports of progress when it is dropped.
pub struct ProgressGuard(#[expect(dead_code, reason = "its end is the message")] Sender<()>);

/// The channel.
pub struct Control(Mutex<UnixStream>);

impl Control {
    /// The channel at standard output, which then becomes standard error: a library may print.
    pub fn at_stdout() -> io::Result<Control> {
        let socket = io::stdout().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
        let socket = UnixStream::from(socket);
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Control(Mutex::new(socket)))
    }

    /// Sends a message. A daemon that takes none has ended, or counts as ended, which [`Control::socket`] reports too:
    /// the end of an expired lease must not wait for it.
    pub fn send(&self, status: &Status) {
        let line = status.encode() + "\n";
        let mut socket = self.0.lock().expect("no holder of the lock panics");
        if socket.write_all(line.as_bytes()).is_err() {
            let (Ok(()) | Err(_)) = socket.shutdown(Shutdown::Both);
        }
    }

    /// Reports progress every second until the returned guard is dropped, for at most `time_max`: the daemon must not
    /// end this process in a call that takes long.
    pub fn report_progress(self: &Arc<Self>, text: &str, time_max: Duration) -> ProgressGuard {
        let (ended, end) = channel();
        let (control, text, deadline) = (Arc::clone(self), text.to_owned(), Instant::now() + time_max);
        std::thread::spawn(move || {
            while Instant::now() < deadline && end.recv_timeout(PROGRESS_PAUSE) == Err(RecvTimeoutError::Timeout) {
                control.send(&Status::Progress(text.clone()));
            }
        });
        ProgressGuard(ended)
    }

    /// True after the daemon has closed the channel or ended.
    pub fn is_closed(&self) -> bool {
        let socket = self.0.lock().expect("no holder of the lock panics");
        let mut fds = [PollFd::new(&*socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the daemon closes the channel or ends, for a limited time.
    pub fn wait_for_close(&self, limit: Duration) {
        let Ok(socket) = self.socket() else { return std::thread::sleep(limit) };
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An interruption shortens one pause.
        let (Ok(_) | Err(_)) = poll(&mut fds, Some(&limit));
    }

    /// A second handle to the socket, which becomes readable when the daemon closes it or ends.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.0.lock().expect("no holder of the lock panics").try_clone()
    }
}
