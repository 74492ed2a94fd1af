//! Writing the state file on a thread of its own: whoever waits for a change waits for a bounded time, also where the directory hangs.
//!
//! A change that was waited for in vain has failed: it is given up before the new file takes the old one's name. Where that step itself was
//! under way, it may be done later than its caller was told that it failed; then what is in force is written over it before anything else is.
//! (A crash in between leaves the change made. Callers bear that: where a note permits less care than before, what it is about has been
//! drained by then, whether the note succeeds or not.)
//! Until the thread is free again, changes fail at once.
//!
//! A directory that is seldom written is probed, so that one that hangs or is full is known before a change needs it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::replace::{Step, probe, replace};

/// Longest time that a change waits for its disk. A healthy one that is busy takes less.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at a directory that nothing is written to.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// Pause before what is in force is written again, where that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A probe, and a write behind it.
const JOBS_MAX: usize = 2;

/// Asked before each step of a replacement; may fail it.
pub type Hook = Box<dyn FnMut(Step) -> io::Result<()> + Send>;

/// Why a change is not durable.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A step failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The directory does not answer.
    #[error("no answer for {} s", .0.as_secs())]
    Hangs(Duration),
}

/// How far a write is. Invariant: the file gets its new name only in [`Stage::Naming`] or [`Stage::Overdue`].
enum Stage {
    /// The old file is in force whatever happens.
    Writing,
    /// Its caller has waited in vain: it goes no further.
    GivenUp,
    /// The new file takes the old one's name.
    Naming,
    /// So it does, and its caller has waited in vain: these bytes are in force.
    Overdue(Vec<u8>),
    /// Its caller is told.
    Told,
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

/// What the thread does, and for which nobody waits any more.
struct UnderWay {
    since: Instant,
    /// A change has been given up for it.
    is_given_up: bool,
    done: Receiver<io::Result<()>>,
}

/// The way to the thread.
pub(crate) struct Writer {
    jobs: SyncSender<Job>,
    patience: Duration,
    under_way: Option<UnderWay>,
    /// When it was last known to answer.
    answered: Instant,
    /// Why the last write or probe failed.
    failed: Option<String>,
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    /// Starts the thread; it ends when this is dropped and its disk lets it.
    pub(crate) fn start(path: PathBuf, patience: Duration) -> io::Result<Writer> {
        let (jobs, queue) = sync_channel::<Job>(JOBS_MAX);
        let body = move || {
            while let Ok(job) = queue.recv() {
                run(&path, job);
            }
        };
        std::thread::Builder::new().name("state".to_owned()).spawn(body)?;
        Ok(Writer { jobs, patience, under_way: None, answered: Instant::now(), failed: None })
    }

    /// For how long the thread has been busy with what nobody waits for, where that is not over.
    fn busy_for(&mut self) -> Option<Duration> {
        let under_way = self.under_way.as_ref()?;
        let result = match under_way.done.try_recv() {
            Err(TryRecvError::Empty) => return Some(under_way.since.elapsed()),
            Err(TryRecvError::Disconnected) => Err(ended()),
            Ok(result) => result,
        };
        // What was given up has failed by being given up, and says nothing of the disk as it is now.
        let is_told = !under_way.is_given_up;
        self.under_way = None;
        self.answered = Instant::now();
        if is_told {
            self.failed = result.err().map(|error| error.to_string());
        } else {
            self.failed = None;
        }
        None
    }

    /// For how long a change has waited in vain.
    fn hangs_for(&mut self) -> Option<Duration> {
        let busy = self.busy_for()?;
        let is_given_up = self.under_way.as_ref().is_some_and(|under_way| under_way.is_given_up);
        (is_given_up || busy > self.patience).then_some(busy)
    }

    /// Why a change would fail now, as far as that is known; `in_force` is what the file holds. To be called every second or so.
    pub(crate) fn look(&mut self, in_force: impl Fn() -> Vec<u8>) -> Option<String> {
        if let Some(time) = self.hangs_for() {
            return Some(WriteError::Hangs(time).to_string());
        }
        if self.under_way.is_none() && self.answered.elapsed() >= PROBE_PAUSE {
            let (done, is_done) = sync_channel(1);
            if self.jobs.try_send(Job { bytes: in_force(), work: Work::Probe, done }).is_ok() {
                self.under_way = Some(UnderWay { since: Instant::now(), is_given_up: false, done: is_done });
            }
        }
        self.failed.clone()
    }

    /// Makes `bytes` the file's content in place of `in_force`. On an error that is what the file holds, or will hold again.
    pub(crate) fn write(
        &mut self,
        bytes: Vec<u8>,
        in_force: impl Fn() -> Vec<u8>,
        hook: Hook,
    ) -> Result<(), WriteError> {
        if let Some(time) = self.hangs_for() {
            return Err(WriteError::Hangs(time));
        }
        let (done, is_done) = sync_channel(1);
        let stage = Arc::new(Mutex::new(Stage::Writing));
        let since = Instant::now();
        let job = Job { bytes, work: Work::Replace(hook, stage.clone()), done };
        // A probe may be under way: there is room for this one behind it.
        self.jobs.try_send(job).map_err(|_| ended())?;
        let result = match is_done.recv_timeout(self.patience) {
            Err(RecvTimeoutError::Timeout) if give_up(&stage, in_force) => {
                self.under_way = Some(UnderWay { since, is_given_up: true, done: is_done });
                return Err(WriteError::Hangs(since.elapsed()));
            }
            // It ended in this very moment.
            Err(RecvTimeoutError::Timeout) => is_done.recv().unwrap_or_else(|_| Err(ended())),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
            Ok(result) => result,
        };
        self.answered = Instant::now();
        self.failed = result.as_ref().err().map(io::Error::to_string);
        Ok(result?)
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that writes it has ended")
}

/// Has a write go no further, or be undone; false where it has ended.
fn give_up(stage: &Mutex<Stage>, in_force: impl Fn() -> Vec<u8>) -> bool {
    let mut stage = lock(stage);
    match &*stage {
        Stage::Writing => *stage = Stage::GivenUp,
        Stage::Naming => *stage = Stage::Overdue(in_force()),
        Stage::Told => return false,
        Stage::GivenUp | Stage::Overdue(_) => unreachable!("only its caller gives it up, and once"),
    }
    true
}

fn run(path: &Path, job: Job) {
    let Job { bytes, work, done } = job;
    let result = match work {
        Work::Probe => probe(path, &bytes),
        Work::Replace(mut hook, stage) => {
            let result = replace(path, &bytes, &mut |step| {
                go_on(step, &stage)?;
                hook(step)
            });
            let before = std::mem::replace(&mut *lock(&stage), Stage::Told);
            if let Stage::Overdue(in_force) = before {
                while replace(path, &in_force, &mut |_| Ok(())).is_err() {
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            result
        }
    };
    // Whoever asked may be gone.
    let _ = done.send(result);
}

/// Begins a step of a write that was not given up.
fn go_on(step: Step, stage: &Mutex<Stage>) -> io::Result<()> {
    let mut stage = lock(stage);
    match (&*stage, step) {
        (Stage::GivenUp, _) => return Err(io::Error::other("it was given up")),
        (Stage::Writing, Step::Rename) => *stage = Stage::Naming,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(50);

    struct Fixture {
        folder: tempfile::TempDir,
        writer: Writer,
    }

    impl Fixture {
        fn new() -> Fixture {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let writer = Writer::start(folder.path().join("state.json"), PATIENCE).expect("a thread");
            Fixture { folder, writer }
        }

        fn write(&mut self, text: &str, hook: Hook) -> Result<(), WriteError> {
            self.writer.write(text.as_bytes().to_vec(), || b"old".to_vec(), hook)
        }

        fn text(&self) -> String {
            let text = std::fs::read_to_string(self.folder.path().join("state.json")).expect("it was written");
            text.trim_end().to_owned()
        }

        fn wait_until_free(&mut self) {
            while self.writer.busy_for().is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn no_hook() -> Hook {
        Box::new(|_| Ok(()))
    }

    #[test]
    fn a_write_that_hangs_at_any_step_fails_in_time_and_leaves_the_old_content() {
        for hanging in Step::ALL {
            let mut all = Fixture::new();
            all.write("old", no_hook()).expect("written");
            let (go_on, goes_on) = channel::<()>();
            let hook: Hook = Box::new(move |step| {
                if step == hanging {
                    // Closed where the test has failed.
                    let _ = goes_on.recv();
                }
                Ok(())
            });
            assert!(matches!(all.write("new", hook), Err(WriteError::Hangs(_))), "{hanging:?}");
            let again = all.write("newer", no_hook());
            assert!(matches!(again, Err(WriteError::Hangs(_))), "{hanging:?}: it waited for a thread that hangs");
            assert!(all.writer.look(|| b"old".to_vec()).is_some_and(|why| why.contains("no answer for")));
            go_on.send(()).expect("it waits");
            all.wait_until_free();
            assert_eq!(all.text(), "old", "{hanging:?}");
            assert_eq!(all.writer.look(|| b"old".to_vec()), None, "{hanging:?}");
            all.write("newest", no_hook()).expect("it answers again");
            assert_eq!(all.text(), "newest");
        }
    }

    #[test]
    fn a_failure_is_told_until_a_write_succeeds() {
        let mut all = Fixture::new();
        let failing: Hook = Box::new(|step| match step {
            Step::SyncFile => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        });
        assert!(matches!(all.write("new", failing), Err(WriteError::Io(_))));
        assert_eq!(all.writer.look(Vec::new).as_deref(), Some("the disk is gone"));
        all.write("new", no_hook()).expect("written");
        assert_eq!(all.writer.look(Vec::new), None);
    }

    #[test]
    fn a_directory_that_is_not_written_is_probed() {
        let mut all = Fixture::new();
        all.write("old", no_hook()).expect("written");
        all.writer.answered -= PROBE_PAUSE;
        assert_eq!(all.writer.look(|| b"old".to_vec()), None);
        all.wait_until_free();
        assert!(all.writer.answered.elapsed() < PROBE_PAUSE);
        std::fs::remove_dir_all(all.folder.path()).expect("it is there");
        all.writer.answered -= PROBE_PAUSE;
        all.writer.look(|| b"old".to_vec());
        all.wait_until_free();
        assert!(all.writer.look(|| b"old".to_vec()).is_some());
    }
}
