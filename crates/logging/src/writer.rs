//! The thread that writes to standard error, and the bounded queue before it.
//!
//! Standard error may be a full pipe that is not read, a stuck journal or a file on a disk that hangs. No other thread
//! ever waits for it: a line that finds the queue full is dropped and counted, and the count is logged once the queue
//! is empty. The order of lines is that of the queue.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use seam::real::block_signals;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of lines in the queue.
const LINES_MAX: usize = 1024;
/// Pause between two attempts to put a flush into a full queue.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

thread_local! {
    /// The file, in the writing thread, whose own lines bypass the queue.
    static THREAD_FILE: RefCell<Option<File>> = const { RefCell::new(None) };
}

enum Entry {
    Line(Vec<u8>),
    /// The sender is dropped when all lines before it are written.
    Flush(SyncSender<()>),
}

/// The queue's end for all threads.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

/// A descriptor of standard error that bypasses the lock of the standard library's handle.
pub(crate) fn standard_error() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

impl Writer {
    /// Starts a thread that writes to `file`; it calls `log_dropped` with the number of missing lines to log.
    pub fn start(file: File, log_dropped: impl Fn(u64) + Send + 'static) -> io::Result<Writer> {
        let (queue, entries) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { queue, dropped: dropped.clone() };
        let body = move || {
            // The thread may be older than the one that takes signals: a signal must not end the process in this one.
            block_signals().expect("a thread can block signals for itself");
            THREAD_FILE.set(Some(file));
            write_all(&entries, &dropped, log_dropped);
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(body)?;
        Ok(writer)
    }

    /// Waits until all lines so far are written, for `timeout` at most.
    pub fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (sender, receiver) = sync_channel(0);
        let mut entry = Entry::Flush(sender);
        while let Err(TrySendError::Full(returned)) = self.queue.try_send(entry) {
            if Instant::now() >= deadline {
                return;
            }
            entry = returned;
            std::thread::sleep(FLUSH_PAUSE);
        }
        // Nothing is ever sent: the wait ends when the sender is dropped, or with a time-out.
        let _ = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn write_all(entries: &Receiver<Entry>, dropped: &AtomicU64, log_dropped: impl Fn(u64)) {
    let log_any_dropped = || match dropped.swap(0, Ordering::Relaxed) {
        0 => {}
        lines => log_dropped(lines),
    };
    loop {
        let entry = match entries.try_recv() {
            Ok(entry) => entry,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                log_any_dropped();
                let Ok(entry) = entries.recv() else { return };
                entry
            }
        };
        match entry {
            Entry::Line(line) => {
                if write_directly(&line).is_some_and(|written| written.is_err()) {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Entry::Flush(done) => {
                log_any_dropped();
                drop(done);
            }
        }
    }
}

/// Writes in the writing thread; `None` in all others.
fn write_directly(line: &[u8]) -> Option<io::Result<()>> {
    THREAD_FILE.with_borrow_mut(|file| file.as_mut().map(|file| file.write_all(line)))
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_lost = match write_directly(line) {
            Some(written) => written.is_err(),
            None => self.queue.try_send(Entry::Line(line.to_owned())).is_err(),
        };
        if is_lost {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn full_pipe_blocks_no_thread_and_lost_lines_are_counted() {
        let (reader, pipe) = io::pipe().expect("a pipe can be made");
        let log_dropped = |lines| drop(write_directly(format!("lost {lines}\n").as_bytes()));
        let mut writer = Writer::start(File::from(OwnedFd::from(pipe)), log_dropped).expect("a thread can be started");
        // A pipe holds 64 KiB: 4,000 lines of 100 bytes fill it and the queue.
        const LINES: usize = 4_000;
        let start = Instant::now();
        for number in 0..LINES {
            writer.write_all(format!("{number:099}\n").as_bytes()).expect("a line is accepted or dropped");
        }
        writer.flush(Duration::from_millis(50));
        assert!(start.elapsed() < TIMEOUT, "a flush waited for the full pipe");
        let lines = BufReader::new(reader).lines().map(|line| line.expect("it is text"));
        let mut last = None;
        let read: Vec<String> = lines
            .map_while(|line| match line.strip_prefix("lost ") {
                Some(lost) => {
                    last = lost.parse().ok();
                    None
                }
                None => Some(line),
            })
            .collect();
        let lost: usize = last.expect("the lost lines are counted");
        let numbers: Vec<usize> = read.iter().map(|line| line.parse().expect("a number")).collect();
        assert!(numbers.is_sorted(), "the lines are in order");
        assert_eq!((numbers.len() + lost, lost > 0), (LINES, true));
    }

    #[test]
    fn flush_returns_when_all_lines_are_written() {
        let mut file = tempfile::tempfile().expect("a file can be made");
        let mut writer = Writer::start(file.try_clone().expect("a second descriptor"), |_| ()).expect("a thread");
        for _ in 0..LINES_MAX / 2 {
            writer.write_all(b"line\n").expect("a line is accepted or dropped");
        }
        writer.flush(TIMEOUT);
        let mut text = String::new();
        io::Seek::rewind(&mut file).and_then(|()| io::Read::read_to_string(&mut file, &mut text)).expect("it is read");
        assert_eq!(text.lines().count(), LINES_MAX / 2);
    }
}
