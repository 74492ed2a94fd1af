//! The state directory: what must outlive the daemon and belongs to no volume's data.
//!
//! Identities (a volume's incarnation, bound to its backing's identity), what was not cleanly stopped, changes made by
//! command. One daemon holds it at a time. Invariants:
//!
//! 1. The file is replaced whole: after a crash at any step it is the old one or the new one.
//! 2. An incarnation is drawn once and belongs to one backing; a name never decides which.
//! 3. A file of a later format is refused, never guessed at.
//! 4. A change waits for its disk for a bounded time, and what was told to have failed is not in force, then or later (`writer.rs`).

mod content;
mod fields;
mod identity;
mod loss;
mod manifest;
mod overrides;
mod record;
mod replace;
mod store_record;
mod stores;
mod trust;
mod units;
mod writer;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use format_version::NewerFormat;

pub use content::{ContentRecord, ContentVerdict, Evidence, end_block, judge_content, sample_places, show_samples};
pub use fields::show_incarnation;
pub use identity::{Acceptance, Admission, Claim, Waiting, draw_identity, draw_incarnation};
pub use loss::{owed_loss, unflushed_loss};
pub use manifest::{Holding, RebuildError, StoreInventory, rebuild};
pub use overrides::{
    DECLARED_LOST, FLASH_MAX, FLASH_MIN, MEMORY_MAX, MEMORY_MIN, MODE, PINNED, POLICY, effective, effective_mode,
    effective_policy,
};
pub use record::{
    AddedVolume, BootRecord, DeviceWear, FlashDevices, KeptRecord, LossRecord, Override, STATE_VERSION, State,
    TokenRecord, VolumeRecord,
};
pub use replace::Step;
pub use store_record::StoreRecord;
pub use stores::{StoreFound, StoreUse, show_uuid, uuid_of};
pub use trust::{BACKING_SHRANK, Loss, OlderThan, Refusal, Sabotage, SeenStore};
pub use units::{UnitError, UnitRecord};
pub use writer::{Hook, PATIENCE};
use writer::{WriteError, Writer};

/// Pause between two attempts at the lock.
const HELD_PAUSE: Duration = Duration::from_millis(50);
const FILE: &str = "state.json";
/// Copies of the file that rebuilds leave beside it.
const ASIDE_MAX: u32 = 1_000;
const LOCK: &str = "lock";
/// Letters of a process id in the lock: the longest number has ten.
const HOLDER_WIDTH: usize = 10;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A call of the operating system failed.
    #[error("state directory {path}: cannot {doing}: {error}")]
    Io {
        /// What was to be done.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// It does not answer: a disk that hangs, a server that is gone.
    #[error(
        "state directory {path} does not answer (for {} s): what has to be noted there first is not done; look at its disk", .time.as_secs()
    )]
    Hangs {
        /// The directory.
        path: PathBuf,
        /// For how long.
        time: Duration,
    },
    /// Another daemon holds it.
    #[error(
        "state directory {path} is in use by another hotset (process {holder}); stop that one, or give this one a directory of its \
         own in [state]"
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// Who holds it, as far as it said.
        holder: String,
    },
    /// Written by a newer version; it is left as it is.
    #[error("{path} was {newer}; start that version, or restore a copy of the file that this one has written")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        newer: NewerFormat,
    },
    /// Not what was written.
    #[error(
        "{path} is damaged ({detail}): restore its newest copy, or make its records anew from the flash devices: hotset state rebuild"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the reader met.
        detail: String,
    },
}

/// The directory, held by this process, and what it says.
pub struct StateDir {
    directory: PathBuf,
    state: State,
    /// Holds the lock as long as it is open.
    _lock: File,
    /// From the first change on.
    writer: Option<Writer>,
}

impl StateDir {
    /// Takes hold of `directory` (created if missing) and reads it.
    pub fn open(directory: &Path) -> Result<StateDir, StateError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { doing, path, error }
        };
        std::fs::create_dir_all(directory).map_err(io("create it", directory))?;
        let lock_path = directory.join(LOCK);
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
        let lock = hold(directory, lock.map_err(io("open its lock", &lock_path))?)?;
        let state = State::load(&directory.join(FILE))?.unwrap_or_default();
        Ok(StateDir::held(directory, state, lock))
    }

    fn held(directory: &Path, state: State, lock: File) -> StateDir {
        StateDir { directory: directory.to_owned(), state, _lock: lock, writer: None }
    }

    /// As [`StateDir::open`], and waits for `patience` where another daemon, about to end, still holds it.
    pub async fn open_within(directory: &Path, patience: Duration) -> Result<StateDir, StateError> {
        let deadline = Instant::now() + patience;
        loop {
            match StateDir::open(directory) {
                Err(StateError::Held { .. }) if Instant::now() < deadline => tokio::time::sleep(HELD_PAUSE).await,
                result => return result,
            }
        }
    }

    /// As [`StateDir::open`], for a rebuild: a file that is damaged counts as none, and whatever is there is copied aside first. Returns the copy.
    pub fn open_set_aside(directory: &Path) -> Result<(StateDir, Option<PathBuf>), StateError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { doing, path, error }
        };
        std::fs::create_dir_all(directory).map_err(io("create it", directory))?;
        let lock_path = directory.join(LOCK);
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
        let lock = hold(directory, lock.map_err(io("open its lock", &lock_path))?)?;
        let path = directory.join(FILE);
        let state = match State::load(&path) {
            Err(StateError::Damaged { .. }) => State::default(),
            other => other?.unwrap_or_default(),
        };
        let aside =
            (0..ASIDE_MAX).map(|number| directory.join(format!("{FILE}.before-{number}"))).find(|path| !path.exists());
        let aside = aside.filter(|_| path.exists());
        if let Some(aside) = &aside {
            std::fs::copy(&path, aside).map_err(io("copy its file aside", aside))?;
        }
        Ok((StateDir::held(directory, state, lock), aside))
    }

    /// Reads `directory` without holding it, for showing; nothing where there is none yet.
    pub fn peek(directory: &Path) -> Result<Option<State>, StateError> {
        State::load(&directory.join(FILE))
    }

    /// True once a daemon has taken hold of `directory`, whatever it got to note there.
    pub fn was_held(directory: &Path) -> bool {
        // What cannot be looked at may have been.
        directory.join(LOCK).try_exists().unwrap_or(true)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// What it says.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Why nothing can be noted there, as far as that is known. To be called every second or so: a directory that nothing is written to is
    /// looked at now and then.
    pub fn look(&mut self) -> Option<String> {
        let state = &self.state;
        self.writer.as_mut()?.look(|| state.to_bytes())
    }

    /// Changes what it says. When this returns the change is durable; on an error nothing has changed. Waits for [`PATIENCE`] at most.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        self.change_with(Box::new(|_| Ok(())), change)
    }

    /// As [`StateDir::change`]; `before` is asked before each step and may fail it.
    pub fn change_with<T>(&mut self, before: Hook, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        let mut state = self.state.clone();
        let result = change(&mut state);
        if state != self.state {
            let path = self.directory.join(FILE);
            let io = |error| StateError::Io { doing: "write its file", path: path.clone(), error };
            let writer = match &mut self.writer {
                Some(writer) => writer,
                none => none.insert(Writer::start(path.clone(), PATIENCE).map_err(io)?),
            };
            let in_force = || self.state.to_bytes();
            writer.write(state.to_bytes(), in_force, before).map_err(|error| match error {
                WriteError::Io(error) => io(error),
                WriteError::Hangs(time) => StateError::Hangs { path: self.directory.clone(), time },
            })?;
            self.state = state;
        }
        Ok(result)
    }
}

fn hold(directory: &Path, mut lock: File) -> Result<File, StateError> {
    let path = directory.to_owned();
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let read = lock.read_to_string(&mut holder);
            let holder =
                if read.is_ok() && !holder.trim().is_empty() { holder.trim().to_owned() } else { "?".to_owned() };
            return Err(StateError::Held { path, holder });
        }
        Err(TryLockError::Error(error)) => return Err(StateError::Io { doing: "lock it", path, error }),
    }
    // Only for messages: the lock is what counts. Written over what is there, for a full file system has no other block.
    let said = lock.write_all_at(format!("{:<HOLDER_WIDTH$}\n", std::process::id()).as_bytes(), 0);
    match said {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => {
            Err(StateError::Io { doing: "write its lock", path, error })
        }
        _ => Ok(lock),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod golden;
