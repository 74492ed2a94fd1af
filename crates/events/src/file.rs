//! The files of events: a JSON object a line, appended and made durable batch by batch on a thread of its own.
//!
//! A line that a crash broke off is passed over. When the file is full it becomes the old one, and the old one goes.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::report::{EventReport, EventsHealth};

/// Bytes of a file, past which another one is begun; there are two.
pub const FILE_BYTES: u64 = 4 << 20;
/// Lines that wait for their disk; past that the oldest are not kept over a restart.
pub const WAITING_MAX: usize = 1_000;
/// Pause before a disk that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
pub const NEW: &str = "events.jsonl";
pub const OLD: &str = "events.old.jsonl";

/// What the thread is sent.
pub enum Message {
    /// To be written.
    Line(String),
    /// Answered, by hanging up, when everything before it was tried.
    Flush(SyncSender<()>),
}

/// The events that the files in `folder` have, the oldest first, the newest `kept` at most. Nobody needs to hold the log.
pub fn read(folder: &Path, kept: usize) -> VecDeque<EventReport> {
    let mut events: VecDeque<EventReport> = VecDeque::new();
    for name in [OLD, NEW] {
        // What cannot be read is missed, and nothing else.
        let bytes = read_bounded(&folder.join(name)).unwrap_or_default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(event) = serde_json::from_slice::<EventReport>(line) else { continue };
            // A batch whose end was not told is written again: its lines may stand there twice.
            if events.back().is_none_or(|last| last.number < event.number) {
                events.push_back(event);
            }
        }
    }
    events.drain(..events.len().saturating_sub(kept));
    events
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    // One of ours is past its bound by a batch at most.
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(2 * FILE_BYTES)))?;
    file.take(2 * FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the thread does: writes what comes, until nobody sends any more.
pub fn write(messages: &Receiver<Message>, folder: &Path, health: &Arc<Mutex<EventsHealth>>) {
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
        // What has come meanwhile is made durable with it.
        let more = messages.try_iter().take(WAITING_MAX);
        let (mut lost, mut asked) = (0, Vec::new());
        for message in first.into_iter().chain(more) {
            match message {
                Message::Line(line) => {
                    if waiting.len() == WAITING_MAX {
                        waiting.pop_front();
                        lost += 1;
                    }
                    waiting.push_back(line);
                }
                Message::Flush(done) => asked.push(done),
            }
        }
        let failed = match writer.append(waiting.iter()) {
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
        drop(asked);
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
            None => self.begin()?,
        };
        let before = file.metadata()?.len();
        if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_data()) {
            // Half a batch helps nobody; where it cannot be taken back it is passed over when it is read.
            let _ = file.set_len(before);
            return Err(error);
        }
        if before + bytes.len() as u64 > FILE_BYTES {
            std::fs::rename(self.folder.join(NEW), self.folder.join(OLD))?;
        } else {
            self.open = Some(file);
        }
        Ok(())
    }

    /// The file, at the beginning of a line.
    fn begin(&self) -> io::Result<File> {
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(NEW);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        // Its name has to outlive a power cut as well.
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
