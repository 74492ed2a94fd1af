//! Persisted memory: the memory image of this daemon, and the images of earlier daemons. A memory image is a file.
//!
//! Each start creates a new image, after it has recorded it in the state directory; a clean stop deletes both. A
//! recorded image that still exists was left by a killed daemon. Each volume is recovered before a client can reach it,
//! from the oldest image that contains it. Newer images may hold only a part, left by a start that was killed during
//! its own recovery. The volume's content is therefore erased from the newest image first. An image without needed
//! content is deleted. Records that may be an older copy do not decide what is needed: while the state directory is
//! refused as older, no image is changed.

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
use state::{MemoryImageRecord, Refusal, StateDir, VolumeRecord, random_number};
use units::show_bytes;

/// Bytes per block in the block count of `stat`.
const STAT_BLOCK_BYTES: u64 = 512;
/// Minimum of free space for a new memory image, in bytes.
const FREE_BYTES_MIN: u64 = 32 << 20;

/// The path of this daemon's memory image, or the reason why there is none.
#[derive(Default)]
pub struct MemoryPlan {
    /// The memory image; `None` if memory does not survive the daemon.
    pub image: Option<PersistFile>,
    /// The reason why memory is not persisted although it should be; raises an alert.
    pub unavailable_reason: Option<String>,
}

/// Chooses this daemon's memory image, recorded in the state directory. An unusable directory is an error only if it is
/// configured and no earlier daemon's image has to be recovered; otherwise the daemon starts without an image.
pub fn plan(config: &Config, state: &mut StateDir) -> Result<MemoryPlan, String> {
    // Earlier images occupy space only until they are recovered, which happens before the new image fills.
    let former_image_bytes =
        state.state().memory_images.iter().filter_map(|record| std::fs::metadata(&record.path).ok());
    let former_image_bytes: Vec<u64> = former_image_bytes.map(|file| file.blocks() * STAT_BLOCK_BYTES).collect();
    let needed_bytes = config.memory_bytes.saturating_sub(former_image_bytes.iter().sum()).max(FREE_BYTES_MIN);
    let Some(directory) = config.keep_in.directory() else { return Ok(MemoryPlan::default()) };
    let is_configured = config.keep_in != KeepIn::Auto;
    if let Err(error) = check_free_space(directory, needed_bytes).and_then(|()| check_writable(directory)) {
        if is_configured && former_image_bytes.is_empty() {
            return Err(format!("[memory] keep_in: {error}"));
        }
        log::warn!(
            target: MEMORY,
            "{error}: if this daemon is killed, unflushed writes are lost, and the next flush of each client fails \
             once; free space there, name another tmpfs in [memory] keep_in, or accept this with keep_in = \"none\""
        );
        let unavailable_reason = (!former_image_bytes.is_empty())
            .then(|| format!("{error}. The memory image of an earlier daemon is recovered"));
        return Ok(MemoryPlan { image: None, unavailable_reason });
    }
    let id = random_number().map_err(|error| format!("[memory] keep_in: {error}"))?;
    let path = directory.join(format!("hotset-{id:016x}"));
    let record = MemoryImageRecord { path: path.clone(), id, generation: state.state().generation };
    state.change(|state| state.memory_images.push(record)).map_err(|error| error.to_string())?;
    Ok(MemoryPlan { image: Some(PersistFile { path, id }), unavailable_reason: None })
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

/// A memory image of an earlier daemon that cannot be read. Its content and its volumes are unknown.
#[derive(Clone, Debug)]
pub struct UnreadableImage {
    record: MemoryImageRecord,
    reason: Rc<PersistedPoolError>,
}

/// Persisted memory: the memory image of this daemon, and the images that earlier daemons left.
pub struct PersistedMemory {
    cores: Rc<Cores>,
    records: Rc<Records>,
    /// This daemon's memory image, and the reason why it has none although it should.
    plan: MemoryPlan,
    /// Generations of earlier daemons of which no acknowledged write is lost.
    intact_generations: RefCell<Vec<u64>>,
    /// Memory images of earlier daemons that cannot be read.
    unreadable: RefCell<Vec<UnreadableImage>>,
}

impl PersistedMemory {
    /// The memory that `plan` gives this daemon; earlier images are not open yet.
    pub fn new(plan: MemoryPlan, cores: Rc<Cores>, records: Rc<Records>) -> PersistedMemory {
        PersistedMemory { cores, records, plan, intact_generations: RefCell::default(), unreadable: RefCell::default() }
    }

    /// True when memory survives this daemon.
    pub fn survives_restart(&self) -> bool {
        self.plan.image.is_some()
    }

    /// The reason why memory is not persisted although it should be.
    pub fn unavailable_reason(&self) -> Option<String> {
        self.plan.unavailable_reason.clone()
    }

    /// True when no write that the earlier daemon of that generation acknowledged is lost.
    pub fn is_intact(&self, generation: u64) -> bool {
        self.intact_generations.borrow().contains(&generation)
    }

    /// Paths of the memory images that hold unrecovered content of the volume, and of an unreadable image that may.
    pub async fn persisted_images_of(&self, name: &str) -> Result<Vec<String>, Failure> {
        let Some(volume_id) = self.records.view().by_name(name).map(|record| record.volume_id) else {
            return Ok(Vec::new());
        };
        let list_images = async move |local: Rc<CoreLocal>| {
            let images = local.images_with_content_of(volume_id);
            images.iter().map(|image| image.file().path.display().to_string()).collect::<Vec<_>>()
        };
        let mut images = self.cores.first().call(list_images).await.map_err(core_ended)?;
        let state = self.records.view();
        // This daemon has lost nothing, however often it attached the volume.
        let is_intact = |generation: u64| generation == state.generation || self.is_intact(generation);
        let record = state.by_name(name).filter(|record| !record.clean && !is_intact(record.generation));
        let unreadable = record.and_then(|record| self.unreadable_of(record));
        images.extend(unreadable.map(|image| image.record.path.display().to_string()));
        Ok(images)
    }

    /// An unreadable memory image that may hold content of a volume: the image of the daemon that served it last, or of
    /// an earlier one.
    fn unreadable_of(&self, record: &VolumeRecord) -> Option<UnreadableImage> {
        self.unreadable.borrow().iter().find(|image| image.record.generation <= record.generation).cloned()
    }

    /// The refusal of a volume that was not cleanly stopped, if its persisted memory cannot be read.
    pub fn unreadable_image_refusal(&self, record: &VolumeRecord) -> Option<Failure> {
        let UnreadableImage { record: image, reason } = self.unreadable_of(record)?;
        if let PersistedPoolError::Newer(newer) = *reason {
            let refusal = Refusal::MemoryNewer { name: record.name.clone(), file: image.path, newer };
            return Some(Failure::refused(refusal.code(), refusal.to_string()));
        }
        let (name, path) = (&record.name, image.path.display());
        let text = format!(
            "it was not cleanly stopped, and {path}, which may hold acknowledged writes of it, cannot be read: \
             {reason}. To accept the loss of these writes: hotset volume adopt {name}"
        );
        Some(Failure::new(ErrorKind::Conflict, text))
    }

    /// Opens the memory images of earlier daemons. An unreadable image stays in place, and volumes of which it may hold
    /// content are not served. Nothing is erased: the flash store, which may prove that the records are an older copy,
    /// is not checked yet.
    pub async fn open(&self) -> Result<(), Failure> {
        let records = self.records.view().memory_images.clone();
        let images: Vec<_> =
            records.iter().map(|record| PersistFile { path: record.path.clone(), id: record.id }).collect();
        let images: Vec<_> = images.into_iter().filter(|image| self.plan.image.as_ref() != Some(image)).collect();
        let open = async move |local: Rc<CoreLocal>| {
            let (mut intact, mut unreadable) = (Vec::new(), Vec::new());
            for image in images {
                let pool = match PersistedPool::open(&image) {
                    Ok(Some(pool)) => pool,
                    Ok(None) => continue,
                    Err(error) => {
                        unreadable.push((image.id, error));
                        continue;
                    }
                };
                if pool.is_complete() {
                    intact.push(image.id);
                }
                local.memory_images.borrow_mut().push(Rc::new(pool));
            }
            (intact, unreadable)
        };
        let (intact, unreadable) = self.cores.first().call(open).await.map_err(core_ended)?;
        for (id, reason) in unreadable {
            let record = records.iter().find(|record| record.id == id).expect("each opened image has a record").clone();
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

    /// Erases content of volumes that were removed from the records. Call it after the check of the flash store;
    /// `is_store_checked` is false if a configured store is not in use ([`state::State::may_need_memory`]).
    pub async fn erase_unneeded_content(&self, is_store_checked: bool) -> Result<(), Failure> {
        let list_owners = async |local: Rc<CoreLocal>| {
            local.memory_images.borrow().iter().flat_map(|image| image.tagged_volumes()).collect::<BTreeSet<u64>>()
        };
        let mut unneeded = self.cores.first().call(list_owners).await.map_err(core_ended)?;
        {
            let state = self.records.view();
            unneeded.retain(|volume_id| !state.may_need_memory(VolumeId(*volume_id), is_store_checked));
        }
        let erase = async move |local: Rc<CoreLocal>| {
            for image in local.memory_images.borrow().iter() {
                let owners = image.tagged_volumes().into_iter().filter(|volume_id| unneeded.contains(volume_id));
                owners.for_each(|volume_id| image.remove_tags_of(volume_id));
            }
        };
        self.cores.first().call(erase).await.map_err(core_ended)
    }

    /// Deletes memory images without needed content, and removes the records of images that no longer exist. An older
    /// copy of the state directory changes nothing: an image without content proves to the newest one that no write was
    /// lost.
    pub async fn delete_unneeded_images(&self) -> Result<(), Failure> {
        if self.records.view().older_than.is_some() {
            return Ok(());
        }
        let retain = async |local: Rc<CoreLocal>| {
            local.memory_images.borrow_mut().retain(|image| !image.tagged_volumes().is_empty());
            local.memory_images.borrow().iter().map(|image| image.file().id).collect::<Vec<_>>()
        };
        let remaining = self.cores.first().call(retain).await.map_err(core_ended)?;
        let own = self.plan.image.as_ref().map(|image| image.id);
        let unreadable: Vec<u64> = self.unreadable.borrow().iter().map(|image| image.record.id).collect();
        let is_obsolete = |id: u64| Some(id) != own && !remaining.contains(&id) && !unreadable.contains(&id);
        self.delete_images(|record| is_obsolete(record.id))
    }

    /// Deletes this daemon's own memory image: the backings or the flash log hold everything.
    pub fn delete_own_image(&self) {
        let own = self.plan.image.as_ref().map(|image| image.id);
        if let Err(failure) = self.delete_images(|record| Some(record.id) == own) {
            log::error!(target: MEMORY, "{}", failure.message);
        }
    }

    fn delete_images(&self, is_obsolete: impl Fn(&MemoryImageRecord) -> bool) -> Result<(), Failure> {
        let obsolete: Vec<_> =
            self.records.view().memory_images.iter().filter(|record| is_obsolete(record)).cloned().collect();
        // Delete the image before its record: an image without a record would never be found again. A reboot deletes
        // the image.
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
            // An intact image without content of a volume proves that no write of the volume is lost. Deleting it
            // deletes the only proof, so the volume is marked clean.
            let proving =
                obsolete.iter().filter(|record| intact.contains(&record.generation)).map(|record| record.generation);
            let proven: BTreeSet<u64> = proving.collect();
            let without_loss = state.volumes.iter_mut().filter(|volume| proven.contains(&volume.generation));
            without_loss.for_each(|volume| volume.clean = true);
        })
    }
}
