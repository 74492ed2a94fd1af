//! Persisted memory: the file of this daemon, and the files of earlier daemons.
//!
//! Each start creates a new file, after it has recorded it in the state directory; a clean stop deletes both. A
//! recorded file that still exists was left by a killed daemon. Each volume is recovered before a client can reach it,
//! from the oldest file that contains it. Newer files may hold only a part, left by a start that was killed during its
//! own recovery. The volume's content is therefore erased from the newest file first. A file without needed content is
//! deleted.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use engine::VolumeId;
use messages::{ErrorKind, Failure};
use seam::real::{PersistFile, PersistedPool, PersistedPoolError, tmpfs_free_bytes};

use super::cores::{CoreLocal, Cores, core_ended};
use super::records::Records;
use config::{Config, KeepIn};
use logging::{self as log, MEMORY};
use state::{MemoryImageRecord, Refusal, StateDir, VolumeRecord, draw_number};
use units::show_bytes;

/// Default directory of the file.
const DIRECTORY: &str = "/dev/shm";
/// Minimum of free space for a new file, in bytes.
const FREE_BYTES_MIN: u64 = 32 << 20;

/// The location of this daemon's memory.
#[derive(Default)]
pub struct MemoryPlan {
    /// The file; `None` if memory does not survive the daemon.
    pub file: Option<PersistFile>,
    /// The reason why memory is not persisted although it should be; raises an alert.
    pub unavailable_reason: Option<String>,
}

/// Chooses this daemon's file, recorded in the state directory. A file system without room is no error if an earlier
/// daemon's file has to be recovered from it: the daemon then starts without a file of its own.
pub fn plan(config: &Config, state: &mut StateDir) -> Result<MemoryPlan, String> {
    // Earlier files occupy space only until they are recovered, which happens before the new file fills.
    let former_file_bytes =
        state.state().memory_images.iter().filter_map(|record| std::fs::metadata(&record.path).ok());
    let former_file_bytes: Vec<u64> = former_file_bytes.map(|file| file.blocks() * 512).collect();
    let needed_bytes = config.memory_bytes.saturating_sub(former_file_bytes.iter().sum()).max(FREE_BYTES_MIN);
    let (directory, is_configured) = match &config.keep_in {
        KeepIn::Nowhere => return Ok(MemoryPlan::default()),
        KeepIn::Auto => (Path::new(DIRECTORY), false),
        KeepIn::Directory(directory) => (directory.as_path(), true),
    };
    if let Err(error) = check_free_space(directory, needed_bytes).and_then(|()| check_writable(directory)) {
        if is_configured && former_file_bytes.is_empty() {
            return Err(format!("[memory] keep_in: {error}"));
        }
        log::warn!(
            target: MEMORY,
            "{error}: if this daemon is killed, unflushed writes are lost, and the next flush of each client fails \
             once; free space there, name another tmpfs in [memory] keep_in, or accept this with keep_in = \"none\""
        );
        let unavailable_reason = (!former_file_bytes.is_empty())
            .then(|| format!("{error}. The memory image of an earlier daemon is recovered"));
        return Ok(MemoryPlan { file: None, unavailable_reason });
    }
    let id = draw_number().map_err(|error| format!("[memory] keep_in: {error}"))?;
    let path = directory.join(format!("hotset-{id:016x}"));
    let record = MemoryImageRecord { path: path.clone(), id, generation: state.state().generation };
    state.change(|state| state.memory_images.push(record)).map_err(|error| error.to_string())?;
    Ok(MemoryPlan { file: Some(PersistFile { path, id }), unavailable_reason: None })
}

/// Checks that the directory is writable, with a temporary file.
fn check_writable(directory: &Path) -> Result<(), String> {
    let created = tempfile::NamedTempFile::new_in(directory);
    created.map(drop).map_err(|error| format!("{} cannot be written ({error})", directory.display()))
}

fn check_free_space(directory: &Path, bytes: u64) -> Result<(), String> {
    let shown = directory.display();
    match tmpfs_free_bytes(directory) {
        Err(error) => Err(format!("{shown} cannot be used ({error})")),
        Ok(None) => Err(format!("{shown} is not on tmpfs, and other file systems are too slow")),
        Ok(Some(room)) if room < bytes => {
            let (room, bytes) = (show_bytes(room), show_bytes(bytes));
            Err(format!("{shown} has {room} free, but [memory] size needs {bytes}; enlarge it, or lower [memory] size"))
        }
        Ok(Some(_)) => Ok(()),
    }
}

/// A file of an earlier daemon that cannot be read. Its content and its volumes are unknown.
#[derive(Clone, Debug)]
pub struct UnreadableImage {
    record: MemoryImageRecord,
    reason: Rc<PersistedPoolError>,
}

/// Persisted memory: the file of this daemon, and the files that earlier daemons left.
pub struct PersistedMemory {
    cores: Rc<Cores>,
    records: Rc<Records>,
    /// This daemon's file, and the reason why it has none although it should.
    plan: MemoryPlan,
    /// Generations of earlier daemons of which no acknowledged write is lost.
    intact_generations: RefCell<Vec<u64>>,
    /// Files of earlier daemons that cannot be read.
    unreadable: RefCell<Vec<UnreadableImage>>,
}

impl PersistedMemory {
    /// The memory that `plan` gives this daemon; earlier files are not open yet.
    pub fn new(plan: MemoryPlan, cores: Rc<Cores>, records: Rc<Records>) -> PersistedMemory {
        PersistedMemory { cores, records, plan, intact_generations: RefCell::default(), unreadable: RefCell::default() }
    }

    /// True when memory survives this daemon.
    pub fn survives_restart(&self) -> bool {
        self.plan.file.is_some()
    }

    /// The reason why memory is not persisted although it should be.
    pub fn unavailable_reason(&self) -> Option<String> {
        self.plan.unavailable_reason.clone()
    }

    /// True when no write that the earlier daemon of that generation acknowledged is lost.
    pub fn is_intact(&self, generation: u64) -> bool {
        self.intact_generations.borrow().contains(&generation)
    }

    /// The files with content of a volume that was not recovered.
    pub async fn persisted_images_of(&self, name: &str) -> Result<Vec<String>, Failure> {
        let Some(owner) = self.records.view().by_name(name).map(|record| record.volume_id) else {
            return Ok(Vec::new());
        };
        let list_files = async move |local: Rc<CoreLocal>| {
            let files = local.images_with_content_of(owner);
            files.iter().map(|file| file.file().path.display().to_string()).collect::<Vec<_>>()
        };
        let mut files = self.cores.first().call(list_files).await.map_err(core_ended)?;
        let state = self.records.view();
        // This daemon has lost nothing, however often it attached the volume.
        let is_intact = |generation: u64| generation == state.generation || self.is_intact(generation);
        let record = state.by_name(name).filter(|record| !record.clean && !is_intact(record.generation));
        let unreadable = record.and_then(|record| self.unreadable_of(record));
        files.extend(unreadable.map(|file| file.record.path.display().to_string()));
        Ok(files)
    }

    /// An unreadable file that may hold content of a volume: the file of the daemon that served it last, or of an
    /// earlier one.
    fn unreadable_of(&self, record: &VolumeRecord) -> Option<UnreadableImage> {
        self.unreadable.borrow().iter().find(|file| file.record.generation <= record.generation).cloned()
    }

    /// The refusal of a volume that was not cleanly stopped, if its persisted memory cannot be read.
    pub fn unreadable_image_refusal(&self, record: &VolumeRecord) -> Option<Failure> {
        let UnreadableImage { record: file, reason } = self.unreadable_of(record)?;
        if let PersistedPoolError::Newer(newer) = *reason {
            let refusal = Refusal::MemoryNewer { name: record.name.clone(), file: file.path, newer };
            return Some(Failure::refused(refusal.code(), refusal.to_string()));
        }
        let (name, path) = (&record.name, file.path.display());
        let text = format!(
            "it was not cleanly stopped, and {path}, which may hold acknowledged writes of it, cannot be read: \
             {reason}. To accept the loss of these writes: hotset volume adopt {name}"
        );
        Some(Failure::new(ErrorKind::Conflict, text))
    }

    /// Opens the files of earlier daemons. An unreadable file stays in place, and volumes of which it may hold content
    /// are not served.
    pub async fn open(&self) -> Result<(), Failure> {
        let records = self.records.view().memory_images.clone();
        let files: Vec<_> =
            records.iter().map(|record| PersistFile { path: record.path.clone(), id: record.id }).collect();
        let files: Vec<_> = files.into_iter().filter(|file| self.plan.file.as_ref() != Some(file)).collect();
        let known: Vec<VolumeId> = self.records.view().volumes.iter().map(|record| record.volume_id).collect();
        let open = async move |local: Rc<CoreLocal>| {
            let (mut intact, mut unreadable) = (Vec::new(), Vec::new());
            for file in files {
                let opened = match PersistedPool::open(&file) {
                    Ok(Some(opened)) => opened,
                    Ok(None) => continue,
                    Err(error) => {
                        unreadable.push((file.id, error));
                        continue;
                    }
                };
                opened
                    .owners()
                    .into_iter()
                    .filter(|owner| !known.contains(&VolumeId(*owner)))
                    .for_each(|owner| opened.remove_tags_of(owner));
                if opened.is_complete() {
                    intact.push(file.id);
                }
                local.memory_images.borrow_mut().push(Rc::new(opened));
            }
            (intact, unreadable)
        };
        let (intact, unreadable) = self.cores.first().call(open).await.map_err(core_ended)?;
        for (id, reason) in unreadable {
            let record = records.iter().find(|record| record.id == id).expect("each opened file has a record").clone();
            log::error!(
                target: MEMORY,
                "{}, which holds acknowledged writes of a killed daemon, cannot be read: {reason}. The file is kept, \
                 and volumes of which it may hold content are not served",
                record.path.display()
            );
            self.unreadable.borrow_mut().push(UnreadableImage { record, reason: Rc::new(reason) });
        }
        let is_intact = |record: &&MemoryImageRecord| intact.contains(&record.id);
        *self.intact_generations.borrow_mut() =
            records.iter().filter(is_intact).map(|record| record.generation).collect();
        Ok(())
    }

    /// Deletes files without needed content, and removes the records of files that no longer exist.
    pub async fn delete_unneeded_files(&self) -> Result<(), Failure> {
        let retain = async |local: Rc<CoreLocal>| {
            local.memory_images.borrow_mut().retain(|file| !file.owners().is_empty());
            local.memory_images.borrow().iter().map(|file| file.file().id).collect::<Vec<_>>()
        };
        let remaining = self.cores.first().call(retain).await.map_err(core_ended)?;
        let own = self.plan.file.as_ref().map(|kept| kept.id);
        let unreadable: Vec<u64> = self.unreadable.borrow().iter().map(|file| file.record.id).collect();
        let is_obsolete = |id: u64| Some(id) != own && !remaining.contains(&id) && !unreadable.contains(&id);
        self.delete_files(|record| is_obsolete(record.id))
    }

    /// Deletes this daemon's own file: the backings or the flash log hold everything.
    pub fn delete_own_file(&self) {
        let own = self.plan.file.as_ref().map(|kept| kept.id);
        if let Err(failure) = self.delete_files(|record| Some(record.id) == own) {
            log::error!(target: MEMORY, "{}", failure.message);
        }
    }

    fn delete_files(&self, is_obsolete: impl Fn(&MemoryImageRecord) -> bool) -> Result<(), Failure> {
        let obsolete: Vec<_> =
            self.records.view().memory_images.iter().filter(|record| is_obsolete(record)).cloned().collect();
        // Delete the file before its record: a file without a record would never be found again. A reboot deletes
        // the file.
        for record in &obsolete {
            if let Err(error) = std::fs::remove_file(&record.path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                log::warn!(target: MEMORY, "{} is obsolete and cannot be removed: {error}", record.path.display());
            }
        }
        let intact = self.intact_generations.borrow();
        self.records.change(|state| {
            state.memory_images.retain(|record| !obsolete.contains(record));
            // An intact file without content of a volume proves that no write of the volume is lost. Deleting it
            // deletes the only proof, so the volume is marked clean.
            let proving =
                obsolete.iter().filter(|record| intact.contains(&record.generation)).map(|record| record.generation);
            let proven: BTreeSet<u64> = proving.collect();
            let complete = state.volumes.iter_mut().filter(|volume| proven.contains(&volume.generation));
            complete.for_each(|volume| volume.clean = true);
        })
    }
}
