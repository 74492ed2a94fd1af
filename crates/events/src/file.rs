//! The event files: one JSON object per line, appended and made durable in batches on a thread of its own.
//!
//! The reader skips a line that a crash cut short. A full file replaces the old file, and a new one is started.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use messages::report::{EventReport, EventsHealth};
use work_timer::WorkTimer;

/// Size past which a new file is started; at most two files exist.
pub const FILE_BYTES: u64 = 4 << 20;
/// Maximum number of lines that wait for the disk; beyond it the oldest are dropped and do not survive a restart.
pub const QUEUE_MAX: usize = 1_000;
/// Pause before a failed write is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The file that is appended to.
pub const NEW_FILE: &str = "events.jsonl";
/// The full file before it.
pub const OLD_FILE: &str = "events.old.jsonl";

/// A message to the writer thread.
pub enum Message {
    /// A line to write.
    Line(String),
    /// The sender is dropped once everything before this message has been tried.
    Flush(SyncSender<()>),
}

/// Reads the events in the files of `folder`, oldest first; at most the newest `events_max`. An open log is not needed.
pub fn read(folder: &Path, events_max: usize) -> VecDeque<EventReport> {
    let mut events: VecDeque<EventReport> = VecDeque::new();
    for name in [OLD_FILE, NEW_FILE] {
        // A file that cannot be read loses its own events only.
        let bytes = read_bounded(&folder.join(name)).unwrap_or_default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(event) = serde_json::from_slice::<EventReport>(line) else { continue };
            // A batch whose write failed is written again, so the file may contain its lines twice.
            if events.back().is_none_or(|last| last.number < event.number) {
                events.push_back(event);
            }
        }
    }
    events.drain(..events.len().saturating_sub(events_max));
    events
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    // A file of this writer exceeds its limit by one batch at most.
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(2 * FILE_BYTES)))?;
    file.take(2 * FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The writer thread: writes the lines it receives until every sender is dropped.
pub fn run_writer(messages: &Receiver<Message>, folder: &Path, health: &Arc<Mutex<EventsHealth>>, work: &WorkTimer) {
    let mut writer = Writer { folder: folder.to_owned(), open: None };
    let mut waiting: VecDeque<String> = VecDeque::new();
    loop {
        let first = match waiting.is_empty() {
            true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => messages.recv_timeout(RETRY_PAUSE),
        };
        let first = match first {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Messages that arrived meanwhile join the same batch.
        let queued = messages.try_iter().take(QUEUE_MAX);
        let (mut lost, mut flushes) = (0, Vec::new());
        for message in first.into_iter().chain(queued) {
            match message {
                Message::Line(line) => {
                    if waiting.len() == QUEUE_MAX {
                        waiting.pop_front();
                        lost += 1;
                    }
                    waiting.push_back(line);
                }
                Message::Flush(done) => flushes.push(done),
            }
        }
        let failed = match work.time(|| writer.append(waiting.iter())) {
            Ok(()) => {
                waiting.clear();
                None
            }
            Err(error) => Some(format!("{}: {error}", folder.display())),
        };
        let mut health = health.lock().unwrap_or_else(PoisonError::into_inner);
        health.lost += lost;
        health.failed = failed;
        drop(health);
        drop(flushes);
    }
}

struct Writer {
    folder: PathBuf,
    open: Option<File>,
}

impl Writer {
    /// Appends all of `lines` durably, or none of them.
    fn append<'a>(&mut self, lines: impl Iterator<Item = &'a String>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for line in lines {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let mut file = match self.open.take() {
            Some(file) => file,
            None => self.open_file()?,
        };
        let len_before = file.metadata()?.len();
        if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_data()) {
            // The batch is written again, so the partial one is cut off. If that fails, the reader skips it.
            let _ = file.set_len(len_before);
            return Err(error);
        }
        if len_before + bytes.len() as u64 > FILE_BYTES {
            std::fs::rename(self.folder.join(NEW_FILE), self.folder.join(OLD_FILE))?;
        } else {
            self.open = Some(file);
        }
        Ok(())
    }

    /// Opens the file, positioned at the beginning of a line.
    fn open_file(&self) -> io::Result<File> {
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(NEW_FILE);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        // The directory entry has to survive a power cut too.
        File::open(&self.folder)?.sync_all()?;
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(file)
    }
}
