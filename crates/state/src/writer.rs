//! Writer of the state file, on its own thread: a change waits for a bounded time, even if the directory hangs.
//!
//! A change fails after its time-out: it is cancelled before the new file takes the old one's name. If that rename is
//! already in progress, it may complete after its caller received the failure; the content in force is then written
//! over it before any other write. (After a crash in between, the change is in force. Callers tolerate that: before a
//! change that relaxes a guarantee, the data concerned has been drained, whether or not the change succeeds.) Until
//! the thread is free again, changes fail at once.
//!
//! A directory without writes is probed, so that a hung or full one is detected before a change needs it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::replace::{Step, probe, replace};

/// Maximum time that a change waits for its disk. A healthy and busy disk takes less.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of probes of a directory without writes.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// Pause between attempts to write the content in force again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Capacity of the queue: a probe, and a write behind it.
const JOBS_MAX: usize = 2;

/// Called before each step of a replacement; may make it fail.
pub type Hook = Box<dyn FnMut(Step) -> io::Result<()> + Send>;

/// Reason why a change is not durable.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A step failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The directory does not answer.
    #[error("no answer for {} s", .0.as_secs())]
    Hangs(Duration),
}

/// Stage of a write. Invariant: the file gets its new name only in [`Stage::Renaming`] or [`Stage::Overdue`].
enum Stage {
    /// The old file is in force in any case.
    Writing,
    /// The caller has timed out: the write stops before its next step.
    Cancelled,
    /// The new file takes the old file's name.
    Renaming,
    /// As `Renaming`, but the caller has timed out: these bytes are in force.
    Overdue(Vec<u8>),
    /// The write has ended, and its caller gets the result.
    Finished,
}

enum Work {
    Replace(Hook, Arc<Mutex<Stage>>),
    Probe,
}

struct Job {
    bytes: Vec<u8>,
    work: Work,
    done: SyncSender<io::Result<()>>,
}

/// The thread's current job, for which no caller waits any more.
struct PendingJob {
    since: Instant,
    /// True if a change was cancelled for it.
    is_cancelled: bool,
    done: Receiver<io::Result<()>>,
}

/// Handle to the thread.
pub(crate) struct Writer {
    jobs: SyncSender<Job>,
    timeout: Duration,
    pending: Option<PendingJob>,
    /// Time of the thread's last result.
    last_result: Instant,
    /// Error of the last write or probe.
    failed: Option<String>,
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    /// Starts the thread; it ends after the drop of the writer, once its disk answers.
    pub(crate) fn start(path: PathBuf, timeout: Duration) -> io::Result<Writer> {
        let (jobs, queue) = sync_channel::<Job>(JOBS_MAX);
        let run_jobs = move || {
            while let Ok(job) = queue.recv() {
                run(&path, job);
            }
        };
        std::thread::Builder::new().name("state".to_owned()).spawn(run_jobs)?;
        Ok(Writer { jobs, timeout, pending: None, last_result: Instant::now(), failed: None })
    }

    /// Busy time of the thread with a job that no caller waits for; `None` if it is free.
    fn busy_time(&mut self) -> Option<Duration> {
        let pending = self.pending.as_ref()?;
        let result = match pending.done.try_recv() {
            Err(TryRecvError::Empty) => return Some(pending.since.elapsed()),
            Err(TryRecvError::Disconnected) => Err(thread_ended()),
            Ok(result) => result,
        };
        // The result of a cancelled change is no evidence of the present state of the disk.
        let is_current = !pending.is_cancelled;
        self.pending = None;
        self.last_result = Instant::now();
        if is_current {
            self.failed = result.err().map(|error| error.to_string());
        } else {
            self.failed = None;
        }
        None
    }

    /// Time without an answer; `None` while a change may still succeed.
    fn unanswered_time(&mut self) -> Option<Duration> {
        let busy = self.busy_time()?;
        let is_cancelled = self.pending.as_ref().is_some_and(|pending| pending.is_cancelled);
        (is_cancelled || busy > self.timeout).then_some(busy)
    }

    /// Reason why a change would fail now, as far as known; `in_force` returns the file's content. Must be called about
    /// every second.
    pub(crate) fn write_error(&mut self, in_force: impl Fn() -> Vec<u8>) -> Option<String> {
        if let Some(time) = self.unanswered_time() {
            return Some(WriteError::Hangs(time).to_string());
        }
        if self.pending.is_none() && self.last_result.elapsed() >= PROBE_PAUSE {
            let (done, receiver) = sync_channel(1);
            if self.jobs.try_send(Job { bytes: in_force(), work: Work::Probe, done }).is_ok() {
                self.pending = Some(PendingJob { since: Instant::now(), is_cancelled: false, done: receiver });
            }
        }
        self.failed.clone()
    }

    /// Makes `bytes` the file's content in place of `in_force`. On an error the file holds `in_force`, or will hold it
    /// again.
    pub(crate) fn write(
        &mut self,
        bytes: Vec<u8>,
        in_force: impl Fn() -> Vec<u8>,
        hook: Hook,
    ) -> Result<(), WriteError> {
        if let Some(time) = self.unanswered_time() {
            return Err(WriteError::Hangs(time));
        }
        let (done, receiver) = sync_channel(1);
        let stage = Arc::new(Mutex::new(Stage::Writing));
        let since = Instant::now();
        let job = Job { bytes, work: Work::Replace(hook, stage.clone()), done };
        // A probe may be running: the queue has room for this write behind it.
        self.jobs.try_send(job).map_err(|_| thread_ended())?;
        let result = match receiver.recv_timeout(self.timeout) {
            Err(RecvTimeoutError::Timeout) if cancel(&stage, in_force) => {
                self.pending = Some(PendingJob { since, is_cancelled: true, done: receiver });
                return Err(WriteError::Hangs(since.elapsed()));
            }
            // The write has just ended.
            Err(RecvTimeoutError::Timeout) => receiver.recv().unwrap_or_else(|_| Err(thread_ended())),
            Err(RecvTimeoutError::Disconnected) => Err(thread_ended()),
            Ok(result) => result,
        };
        self.last_result = Instant::now();
        self.failed = result.as_ref().err().map(io::Error::to_string);
        Ok(result?)
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that writes it has ended")
}

/// Cancels a write or schedules its reversal; false if it has ended.
fn cancel(stage: &Mutex<Stage>, in_force: impl Fn() -> Vec<u8>) -> bool {
    let mut stage = lock(stage);
    match &*stage {
        Stage::Writing => *stage = Stage::Cancelled,
        Stage::Renaming => *stage = Stage::Overdue(in_force()),
        Stage::Finished => return false,
        Stage::Cancelled | Stage::Overdue(_) => unreachable!("only its caller cancels it, and only once"),
    }
    true
}

fn run(path: &Path, job: Job) {
    let Job { bytes, work, done } = job;
    let result = match work {
        Work::Probe => probe(path, &bytes),
        Work::Replace(mut hook, stage) => {
            let result = replace(path, &bytes, &mut |step| {
                start_step(step, &stage)?;
                hook(step)
            });
            let before = std::mem::replace(&mut *lock(&stage), Stage::Finished);
            if let Stage::Overdue(in_force) = before {
                while replace(path, &in_force, &mut |_| Ok(())).is_err() {
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            result
        }
    };
    // The caller may have timed out.
    let _ = done.send(result);
}

/// Starts the next step of a write, unless it was cancelled.
fn start_step(step: Step, stage: &Mutex<Stage>) -> io::Result<()> {
    let mut stage = lock(stage);
    match (&*stage, step) {
        (Stage::Cancelled, _) => return Err(io::Error::other("the write was cancelled")),
        (Stage::Writing, Step::Rename) => *stage = Stage::Renaming,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    struct Fixture {
        folder: tempfile::TempDir,
        writer: Writer,
    }

    impl Fixture {
        fn new() -> Fixture {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let writer = Writer::start(folder.path().join("state.json"), TIMEOUT).expect("a thread");
            Fixture { folder, writer }
        }

        fn write(&mut self, text: &str, hook: Hook) -> Result<(), WriteError> {
            self.writer.write(text.as_bytes().to_vec(), || b"old".to_vec(), hook)
        }

        fn text(&self) -> String {
            let text = std::fs::read_to_string(self.folder.path().join("state.json")).expect("the file was written");
            text.trim_end().to_owned()
        }

        fn wait_until_free(&mut self) {
            while self.writer.busy_time().is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn no_hook() -> Hook {
        Box::new(|_| Ok(()))
    }

    #[test]
    fn write_that_hangs_at_any_step_times_out_with_the_old_content() {
        for hanging in Step::ALL {
            let mut fixture = Fixture::new();
            fixture.write("old", no_hook()).expect("written");
            let (resume, resumed) = channel::<()>();
            let hook: Hook = Box::new(move |step| {
                if step == hanging {
                    // Closed if the test has failed.
                    let _ = resumed.recv();
                }
                Ok(())
            });
            assert!(matches!(fixture.write("new", hook), Err(WriteError::Hangs(_))), "{hanging:?}");
            let again = fixture.write("newer", no_hook());
            assert!(matches!(again, Err(WriteError::Hangs(_))), "{hanging:?}: it must not wait for a hung thread");
            assert!(
                fixture.writer.write_error(|| b"old".to_vec()).is_some_and(|reason| reason.contains("no answer for"))
            );
            resume.send(()).expect("the hook waits");
            fixture.wait_until_free();
            assert_eq!(fixture.text(), "old", "{hanging:?}");
            assert_eq!(fixture.writer.write_error(|| b"old".to_vec()), None, "{hanging:?}");
            fixture.write("newest", no_hook()).expect("the disk answers again");
            assert_eq!(fixture.text(), "newest");
        }
    }

    #[test]
    fn failure_is_reported_until_a_write_succeeds() {
        let mut fixture = Fixture::new();
        let failing: Hook = Box::new(|step| match step {
            Step::SyncFile => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        });
        assert!(matches!(fixture.write("new", failing), Err(WriteError::Io(_))));
        assert_eq!(fixture.writer.write_error(Vec::new).as_deref(), Some("the disk is gone"));
        fixture.write("new", no_hook()).expect("written");
        assert_eq!(fixture.writer.write_error(Vec::new), None);
    }

    #[test]
    fn directory_without_writes_is_probed() {
        let mut fixture = Fixture::new();
        fixture.write("old", no_hook()).expect("written");
        fixture.writer.last_result -= PROBE_PAUSE;
        assert_eq!(fixture.writer.write_error(|| b"old".to_vec()), None);
        fixture.wait_until_free();
        assert!(fixture.writer.last_result.elapsed() < PROBE_PAUSE);
        std::fs::remove_dir_all(fixture.folder.path()).expect("the folder exists");
        fixture.writer.last_result -= PROBE_PAUSE;
        fixture.writer.write_error(|| b"old".to_vec());
        fixture.wait_until_free();
        assert!(fixture.writer.write_error(|| b"old".to_vec()).is_some());
    }
}
