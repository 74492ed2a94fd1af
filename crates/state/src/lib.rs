//! The state directory: everything that must outlive the daemon, except the data of volumes.
//!
//! It holds identities (a volume ID, bound to its backing's identity), marks of unclean stops, and changes
//! made by command. One daemon holds it at a time. Invariants:
//!
//! 1. The file is replaced atomically: after a crash at any step it is the old one or the new one.
//! 2. A volume ID is drawn once and belongs to one backing. The backing determines it, never the name.
//! 3. A file of a later format is refused and never interpreted.
//! 4. A change waits for its disk for a bounded time. A change reported as failed is not in force, then or later
//!    (`writer.rs`).

mod content;
mod error;
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

pub use content::{
    ContentRecord, ContentVerdict, CopyVerdict, Evidence, MissingProof, compare_content, end_block,
    is_partial_block_dirty, sampled_blocks, show_samples,
};
pub use error::{READ_ONLY_REMEDY, StateError};
pub use fields::show_volume_id;
pub use identity::{Acceptance, Admission, Claim, UndestagedBlocks, random_identity, random_number};
pub use loss::{acknowledges_durable_writes, loss_to_report, recovers_under_file_policy, unflushed_loss};
pub use manifest::{Holding, RebuildError, StoreInventory, devices_in_copy, rebuild, volume_in_copy};
pub use overrides::{
    DECLARED_LOST, FLASH_MAX, FLASH_MIN, MEMORY_MAX, MEMORY_MIN, MODE, PINNED, POLICY, effective, effective_mode,
    effective_policy,
};
pub use record::{
    AddedVolume, BootRecord, DeviceWear, FlashDevices, LossRecord, MemoryImageRecord, Override, STATE_VERSION, State,
    TokenRecord, VolumeRecord,
};
pub use replace::Step;
pub use store_record::StoreRecord;
pub use stores::{DeviceOfStore, FoundStore, StoreUse, absolute_device, show_uuid, uuid_of};
pub use trust::{
    BACKING_HUNG, BACKING_SHRANK, Loss, OlderThan, Refusal, Sabotage, SeenStore, Shrink, UNDESTAGED_ELSEWHERE,
    UnusedStore, is_of_new_volume, may_have_shrunk, may_lack_marks,
};
pub use units::{UnitError, UnitRecord};
pub use writer::{Hook, WRITE_TIMEOUT};
use writer::{WriteError, Writer};

/// Pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
const FILE: &str = "state.json";
/// Maximum number of backups of the file that rebuilds leave beside it.
const BACKUPS_MAX: u32 = 1_000;
const LOCK: &str = "lock";
/// Width of the process id in the lock file: the longest number has ten digits.
const HOLDER_WIDTH: usize = 10;

/// The directory, held by this process, with its state.
pub struct StateDir {
    directory: PathBuf,
    state: State,
    /// Holds the lock while it is open.
    _lock: File,
    /// Started with the first change.
    writer: Option<Writer>,
}

impl StateDir {
    /// Locks `directory`, which is created if it is missing, and reads the state.
    pub fn open(directory: &Path) -> Result<StateDir, StateError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { doing, path, error }
        };
        std::fs::create_dir_all(directory).map_err(io("create it", directory))?;
        let lock_path = directory.join(LOCK);
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock_directory(directory, lock.map_err(io("open its lock", &lock_path))?)?;
        let state = State::load(&directory.join(FILE))?.unwrap_or_default();
        Ok(StateDir::locked(directory, state, lock))
    }

    fn locked(directory: &Path, state: State, lock: File) -> StateDir {
        StateDir { directory: directory.to_owned(), state, _lock: lock, writer: None }
    }

    /// Like [`StateDir::open`], but waits for at most `timeout` while another daemon, about to end, holds the
    /// directory. Calls `on_wait` once with that process before it waits.
    pub async fn open_within(
        directory: &Path,
        timeout: Duration,
        on_wait: impl FnOnce(&str),
    ) -> Result<StateDir, StateError> {
        let deadline = Instant::now() + timeout;
        let mut on_wait = Some(on_wait);
        loop {
            match StateDir::open(directory) {
                Err(StateError::Locked { holder, .. }) if Instant::now() < deadline => {
                    if let Some(on_wait) = on_wait.take() {
                        on_wait(&holder);
                    }
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Like [`StateDir::open`], for a rebuild: a damaged file counts as missing, and an existing file is backed up.
    /// Returns the path of the backup.
    pub fn open_for_rebuild(directory: &Path) -> Result<(StateDir, Option<PathBuf>), StateError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { doing, path, error }
        };
        std::fs::create_dir_all(directory).map_err(io("create it", directory))?;
        let lock_path = directory.join(LOCK);
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock_directory(directory, lock.map_err(io("open its lock", &lock_path))?)?;
        let path = directory.join(FILE);
        let state = match State::load(&path) {
            Err(StateError::Damaged { .. }) => State::default(),
            other => other?.unwrap_or_default(),
        };
        let backup = (0..BACKUPS_MAX)
            .map(|number| directory.join(format!("{FILE}.before-{number}")))
            .find(|path| !path.exists());
        let backup = backup.filter(|_| path.exists());
        if let Some(backup) = &backup {
            std::fs::copy(&path, backup).map_err(io("back up its file", backup))?;
        }
        Ok((StateDir::locked(directory, state, lock), backup))
    }

    /// Reads the state in `directory` without locking it, for display; `None` if there is no file yet.
    pub fn peek(directory: &Path) -> Result<Option<State>, StateError> {
        State::load(&directory.join(FILE))
    }

    /// True if a daemon has locked `directory` at any time, even if it recorded nothing.
    pub fn was_ever_locked(directory: &Path) -> bool {
        // An error counts as true: the directory may have been held.
        directory.join(LOCK).try_exists().unwrap_or(true)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The recorded state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Reason why no change can be recorded now, as far as known. Must be called about every second: it also probes a
    /// directory without writes from time to time.
    pub fn write_error(&mut self) -> Option<String> {
        let state = &self.state;
        self.writer.as_mut()?.write_error(|| state.to_bytes())
    }

    /// Changes the state. On success the change is durable; on an error the state is unchanged. Waits for
    /// [`WRITE_TIMEOUT`] at most.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        self.change_with(Box::new(|_| Ok(())), change)
    }

    /// Like [`StateDir::change`]; `before` is called before each step and may make it fail.
    pub fn change_with<T>(&mut self, before: Hook, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        let mut state = self.state.clone();
        let result = change(&mut state);
        if state != self.state {
            let path = self.directory.join(FILE);
            let io = |error| StateError::Io { doing: "write its file", path: path.clone(), error };
            let writer = match &mut self.writer {
                Some(writer) => writer,
                empty => empty.insert(Writer::start(path.clone(), WRITE_TIMEOUT).map_err(io)?),
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

fn lock_directory(directory: &Path, mut lock: File) -> Result<File, StateError> {
    let path = directory.to_owned();
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let read = lock.read_to_string(&mut holder);
            let holder =
                if read.is_ok() && !holder.trim().is_empty() { holder.trim().to_owned() } else { "?".to_owned() };
            return Err(StateError::Locked { path, holder });
        }
        Err(TryLockError::Error(error)) => return Err(StateError::Io { doing: "lock it", path, error }),
    }
    // The content is only for messages; the file lock itself decides. It is overwritten in place, because a full file
    // system has no free block.
    let written = lock.write_all_at(format!("{:<HOLDER_WIDTH$}\n", std::process::id()).as_bytes(), 0);
    match written {
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
