//! The engine of one core, with the volumes that it serves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use flash::{
    BlockAddress, BlockNo, Content, Epoch, MapLoadOutcome, Pages, Record, RecoveredContent, RecoveredRecord, Store,
    StoreError, VolumeId,
};
use seam::persist::ShmImage;
use seam::{BLOCK_BYTES, Disk, DiskError, Nanos, Seam};

use crate::log::pieces_of;
use crate::shard::core_state::CoreState;
use crate::spec::Sabotage;
use crate::volume::transfer::RetainedBlocks;
use crate::{
    Backing, CacheMode, CoreSpec, CoreStats, DatastoreSpec, DatastoreStats, RequestError, Volume, VolumeSpec,
    WritePolicy, WriteSource,
};
use task_sync::within;

/// Number of buffers that [`Core::with_free_buffers`] keeps free.
const FREE_BUFFERS_MIN: usize = 64;
/// Interval at which it evicts blocks for them.
const FREE_BUFFERS_PAUSE: Nanos = Nanos::from_millis(1);

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another volume has the name.
    #[error("a volume named \"{0}\" exists already")]
    Exists(String),
    /// Another volume has the identity.
    #[error("a volume with the identity {0:016x} exists already")]
    DuplicateVolumeId(VolumeId),
    /// The flash log holds data of the volume, but the volume would not use the log.
    #[error(
        "the flash log holds dirty data of \"{0}\": attach it with policy write-back and mode active, then change the \
         policy or mode"
    )]
    DirtyOnFlash(String),
    /// The volume's records in the flash log could not be recovered.
    #[error("the records of \"{0}\" in the flash log could not be recovered: {1}; the log keeps them")]
    Recovery(String, RequestError),
    /// The volume's persisted memory could not be recovered.
    #[error("the persisted memory of \"{0}\" could not be recovered: {1}; the memory file keeps it")]
    PersistedMemory(String, RequestError),
    /// Data of the volume past the end of its backing could not be discarded.
    #[error("the flash log could not record that data of \"{0}\" past the end of its backing is discarded: {1}")]
    Discard(String, String),
    /// The backing could not be marked as lacking flushed writes.
    #[error(
        "the backing of \"{0}\" could not be marked as lacking data that is in the flash log alone: {1}; check its \
         storage"
    )]
    Mark(String, DiskError),
    /// An earlier recovery was partial, and the flash log has changed since.
    #[error("the dirty data of \"{0}\" was recovered only in part: it is kept for the next start")]
    PartiallyRecovered(String),
}

/// State of an engine.
struct Inner<S: Seam> {
    core_state: Rc<CoreState<S>>,
    /// Attached volumes, in the order they were attached.
    volumes: RefCell<Vec<Volume<S>>>,
    /// Unclaimed records: the flash log's records of volumes that are not attached yet, sorted by address.
    unclaimed_records: RefCell<Vec<RecoveredRecord>>,
    /// Partially recovered volumes: the log has records of them that are not among `unclaimed_records`.
    partially_recovered: RefCell<BTreeSet<VolumeId>>,
    /// Number of the next volume on this core.
    next_volume_number: Cell<u32>,
}

/// The engine of one core. A clone is another handle to the same engine.
///
/// Ownership points down: `Core` owns its volumes, the volumes share [`CoreState`], and `CoreState` holds only weak
/// references. So dropping the engine and its tasks frees everything.
pub struct Core<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Core<S> {
    fn clone(&self) -> Self {
        Core(Rc::clone(&self.0))
    }
}

impl<S: Seam> Core<S> {
    /// An engine without volumes, with all of the seam's pool.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        Core(Rc::new(Inner {
            core_state: Rc::new(CoreState::new(seam, spec)),
            volumes: Default::default(),
            unclaimed_records: Default::default(),
            partially_recovered: Default::default(),
            next_volume_number: Default::default(),
        }))
    }

    /// The seam.
    pub fn seam(&self) -> &S {
        self.0.core_state.seam()
    }

    /// The settings.
    pub fn spec(&self) -> &CoreSpec {
        self.0.core_state.spec()
    }

    /// Opens the flash log for volumes that are attached later: it then answers their flushes. `records` is the log's
    /// content as returned by the store's opening; [`Core::attach_recovered`] takes it over, volume by volume.
    pub fn open_log(&self, store: Store<S>, records: Vec<RecoveredRecord>) {
        self.0.core_state.install_store(store);
        *self.0.unclaimed_records.borrow_mut() = records;
    }

    /// Runs `work`, which takes its buffers from the pool alone, and keeps some free for it by evicting clean blocks.
    /// Otherwise a store that is opened beside served volumes would wait for ever for a buffer of a full cache.
    pub async fn with_free_buffers<T>(&self, work: impl Future<Output = T>) -> T {
        let core_state = &self.0.core_state;
        let mut work = pin!(work);
        loop {
            core_state.free_buffers(FREE_BUFFERS_MIN);
            if let Some(done) = within(core_state.seam().sleep(FREE_BUFFERS_PAUSE), work.as_mut()).await {
                return done;
            }
        }
    }

    /// The flash log.
    pub fn log(&self) -> Option<Store<S>> {
        self.0.core_state.log()
    }

    /// The clean pages on flash.
    pub fn pages(&self) -> Option<Pages<S>> {
        self.0.core_state.pages()
    }

    /// Sets the promotion budget in bytes per day, with a burst of one day; 0: no limit.
    pub fn limit_promotion(&self, bytes_a_day: u64) {
        self.0.core_state.promoter().budget().set_bytes_a_day(bytes_a_day);
    }

    /// The result of reading the map of clean pages; `None` until that is done.
    pub fn map_loaded(&self) -> Option<MapLoadOutcome> {
        self.0.core_state.map_loaded()
    }

    /// True if the log holds data that a backing lacks: of an attached volume, or of one that is not attached.
    pub fn needs_log(&self) -> bool {
        !self.unclaimed().is_empty() || self.0.volumes.borrow().iter().any(Volume::needs_log)
    }

    /// Identities of volumes with unclaimed records in the flash log.
    pub fn unclaimed(&self) -> BTreeSet<VolumeId> {
        let (records, mut volumes, mut index) = (self.0.unclaimed_records.borrow(), BTreeSet::new(), 0);
        while let Some(first) = records.get(index) {
            let volume_id = first.address.volume_id;
            volumes.insert(volume_id);
            index = records.partition_point(|record| record.address.volume_id <= volume_id);
        }
        volumes
    }

    /// Calls `visit` for each unclaimed record of a volume that is not attached.
    pub(crate) fn for_each_unclaimed(&self, volume_id: VolumeId, mut visit: impl FnMut(&RecoveredRecord)) {
        self.0.unclaimed_records.borrow()[self.unclaimed_range(volume_id)].iter().for_each(&mut visit);
    }

    /// Discards the unclaimed records of a volume from block `first` on. On return the log has durable tombstones of
    /// them, so they stay discarded whether or not the volume is attached. A full log keeps them. After another error
    /// the log may have the tombstones, and the volume cannot be attached before the next start.
    pub async fn discard_unclaimed(&self, name: &str, volume_id: VolumeId, first: BlockNo) -> Result<(), AttachError> {
        let ends = |record: &RecoveredRecord| record.blocks().end;
        let end = self.0.unclaimed_records.borrow()[self.unclaimed_range(volume_id)].iter().map(ends).max();
        let (Some(store), Some(end)) = (self.log(), end.filter(|end| *end > first)) else { return Ok(()) };
        // The records of a partially recovered volume may be retired already.
        if !self.0.partially_recovered.borrow_mut().insert(volume_id) {
            return Err(AttachError::PartiallyRecovered(name.to_owned()));
        }
        let tombstone = |piece: Range<BlockNo>| Record {
            address: BlockAddress { volume_id, block: piece.start },
            epoch: Epoch::OLDEST,
            content: Content::Tombstone { blocks: BlockNo::count(&piece) as u32 },
        };
        match store.append_tombstones(pieces_of(first..end).map(tombstone).collect()).await {
            // Unrecorded tombstones are durable as well.
            Ok(_) | Err(StoreError::Unrecorded { .. }) => {}
            Err(error) => {
                if error == StoreError::Full {
                    self.0.partially_recovered.borrow_mut().remove(&volume_id);
                }
                return Err(AttachError::Discard(name.to_owned(), error.to_string()));
            }
        }
        let own_range = self.unclaimed_range(volume_id);
        let mut records = self.0.unclaimed_records.borrow_mut();
        let (mut kept, mut retired) = (Vec::new(), Vec::new());
        for mut record in records.drain(own_range.clone()) {
            if record.address.block >= first {
                retired.push(record.position);
                continue;
            }
            if let RecoveredContent::Zero { blocks, .. } = &mut record.content {
                *blocks = (*blocks).min(u32::try_from(first.distance_from(record.address.block)).unwrap_or(u32::MAX));
            }
            kept.push(record);
        }
        records.splice(own_range.start..own_range.start, kept);
        store.retire(&retired);
        self.0.partially_recovered.borrow_mut().remove(&volume_id);
        Ok(())
    }

    /// Waits until the map of clean pages is read.
    pub(crate) async fn wait_for_pages(&self) {
        self.0.core_state.wait_for_map().await;
    }

    /// Attaches a volume with its records from the flash log. On an error the log keeps them.
    pub async fn attach_recovered(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volume = self.make_recovered(spec, backing, &ShmImage::default()).await?;
        self.register_recovered(&volume);
        Ok(volume)
    }

    /// Attaches a volume without records in the flash log, and without a mark on its backing
    /// ([`Disk::mark_undestaged`]).
    pub fn attach(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volume = self.make_without_records(spec, backing)?;
        self.0.volumes.borrow_mut().push(volume.clone());
        Ok(volume)
    }

    /// Like [`Core::attach_recovered`], but first recovers persisted memory: blocks that a killed process left of the
    /// volume become dirty again, before the volume is registered. `source` returns the content for an index listed in
    /// [`ShmImage::blocks`]. Also returns the number of recovered blocks and zero-ranges. On an error the persisted
    /// memory stays complete.
    pub async fn attach_with_memory<W: WriteSource<S>>(
        &self,
        spec: VolumeSpec,
        backing: Backing<S>,
        image: &ShmImage,
        source: impl FnMut(usize) -> W,
    ) -> Result<(Volume<S>, u64), AttachError> {
        let volume = self.make_recovered(spec, backing, image).await?;
        let recovered = volume.recover_memory(image, source).await.map_err(|error| {
            self.abandon_recovery(&volume);
            AttachError::PersistedMemory(volume.name().to_owned(), error)
        })?;
        if recovered > 0 {
            volume.end_transfer();
        }
        self.register_recovered(&volume);
        Ok((volume, recovered))
    }

    /// Abandons a volume whose recovery failed.
    fn abandon_recovery(&self, volume: &Volume<S>) {
        volume.abandon();
        // A later attempt tags the blocks anew. The tags of this attempt would be older, and would restore old content
        // over writes of that time.
        volume.shard().drop_all_blocks();
    }

    /// Makes a volume with its records from the flash log, without registering it.
    async fn make_recovered(
        &self,
        spec: VolumeSpec,
        backing: Backing<S>,
        image: &ShmImage,
    ) -> Result<Volume<S>, AttachError> {
        self.update_mark(&spec, &backing).await?;
        // Other attaches take their records meanwhile: everything is looked up from here on.
        if self.0.partially_recovered.borrow().contains(&spec.volume_id) {
            return Err(AttachError::PartiallyRecovered(spec.name));
        }
        let own_range = self.unclaimed_range(spec.volume_id);
        if own_range.is_empty() {
            return self.make_volume(spec, backing);
        }
        if spec.policy != WritePolicy::WriteBack || spec.mode != CacheMode::Active {
            return Err(AttachError::DirtyOnFlash(spec.name));
        }
        let volume = self.make_volume(spec, backing)?;
        // The records are newer than the former owner's blocks, and are not among the changes since the attach.
        volume.end_transfer();
        // From here on records may be retired. Unless the volume is registered they cannot be adopted again before the
        // next start, also if the caller drops the attach.
        self.0.partially_recovered.borrow_mut().insert(volume.spec().volume_id);
        let has_records_past_end = volume.recover(&self.0.unclaimed_records.borrow()[own_range], image);
        if has_records_past_end {
            volume.append_tombstones_past_end().await.map_err(|error| {
                self.abandon_recovery(&volume);
                AttachError::Recovery(volume.name().to_owned(), error)
            })?;
        }
        Ok(volume)
    }

    /// Marks the backing of a volume as lacking flushed writes if the flash log has records of it or may answer its
    /// flushes, and removes the mark otherwise.
    async fn update_mark(&self, spec: &VolumeSpec, backing: &Backing<S>) -> Result<(), AttachError> {
        let needs_mark = || {
            let uses_log = self.0.core_state.has_log() && spec.allows_log && spec.policy == WritePolicy::WriteBack;
            uses_log && !spec.read_only || !self.unclaimed_range(spec.volume_id).is_empty()
        };
        loop {
            let is_marked = needs_mark();
            let is_sabotaged = self.0.core_state.spec().sabotage.is(Sabotage::NoUndestagedMark);
            let marked = backing.disk.mark_undestaged(is_marked && !is_sabotaged).await;
            marked.map_err(|error| AttachError::Mark(spec.name.clone(), error))?;
            // A flash device may have joined meanwhile.
            if needs_mark() == is_marked {
                return Ok(());
            }
        }
    }

    /// Registers a volume and drops its unclaimed records.
    fn register_recovered(&self, volume: &Volume<S>) {
        self.0.partially_recovered.borrow_mut().remove(&volume.spec().volume_id);
        let own_range = self.unclaimed_range(volume.spec().volume_id);
        let mut records = self.0.unclaimed_records.borrow_mut();
        if !own_range.is_empty() {
            records.drain(own_range);
            records.shrink_to_fit();
        }
        self.0.volumes.borrow_mut().push(volume.clone());
    }

    /// Range of a volume's records among the unclaimed ones.
    fn unclaimed_range(&self, volume_id: VolumeId) -> Range<usize> {
        let records = self.0.unclaimed_records.borrow();
        let first = records.partition_point(|record| record.address.volume_id < volume_id);
        first..records.partition_point(|record| record.address.volume_id <= volume_id)
    }

    /// Makes a volume that has no records in the flash log, without registering it.
    fn make_without_records(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        if self.unclaimed().contains(&spec.volume_id) || self.0.partially_recovered.borrow().contains(&spec.volume_id) {
            return Err(AttachError::DirtyOnFlash(spec.name));
        }
        self.make_volume(spec, backing)
    }

    /// Makes a volume, without registering it. Its name and its identity must be new.
    fn make_volume(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volumes = &self.0.volumes;
        if volumes.borrow().iter().any(|other| other.name() == spec.name) {
            return Err(AttachError::Exists(spec.name));
        }
        if volumes.borrow().iter().any(|other| other.spec().volume_id == spec.volume_id) {
            return Err(AttachError::DuplicateVolumeId(spec.volume_id));
        }
        let number = self.0.next_volume_number.get();
        self.0.next_volume_number.set(number + 1);
        let volume = Volume::new(Rc::clone(&self.0.core_state), number, spec, backing);
        self.0.core_state.add_shard(volume.shard());
        Ok(volume)
    }

    /// Detaches a volume: waits for its requests, destages, flushes and removes it. On an error it stays attached.
    pub async fn detach(&self, name: &str) -> Result<(), RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.drain().await?;
        self.remove(&volume);
        Ok(())
    }

    /// As [`Core::detach`] for a volume that the next owner of its backing will serve: its blocks stay in memory.
    pub async fn detach_retaining(&self, name: &str) -> Result<RetainedBlocks<S>, RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.drain_retaining().await?;
        self.remove(&volume);
        // The blocks hold the volume's state, and with it the disk.
        volume.shard().disk.abandon();
        Ok(RetainedBlocks::new(volume.shard().clone()))
    }

    /// As [`Core::detach_retaining`] for a volume whose clients stay connected: their requests wait for the successor
    /// of the volume that is returned.
    pub async fn detach_for_successor(&self, name: &str) -> Result<(Volume<S>, RetainedBlocks<S>), RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.expect_successor();
        let detached = self.detach_retaining(name).await;
        let retained = detached.inspect_err(|_| volume.cancel_succession())?;
        Ok((volume, retained))
    }

    /// Ends a volume on standby, whose clients stay connected as in [`Core::detach_for_successor`]; `None` if there is
    /// none of that name.
    pub async fn end_standby(&self, name: &str) -> Option<Volume<S>> {
        let volume = self.find(name).filter(|volume| volume.spec().is_standby)?;
        volume.expect_successor();
        volume.end_standby().await;
        self.remove(&volume);
        volume.shard().disk.abandon();
        Some(volume)
    }

    /// Detaches a volume whose backing is lost, and discards its dirty data, also that in the flash log. On an error it
    /// stays attached.
    pub async fn detach_lost(&self, name: &str) -> Result<(), RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.discard_and_stop().await?;
        self.remove(&volume);
        Ok(())
    }

    /// Removes a stopped volume from the core, its datastores and the quotas of flash.
    fn remove(&self, volume: &Volume<S>) {
        let name = volume.name();
        self.0.volumes.borrow_mut().retain(|other| other.name() != name);
        volume.shard().flash_tier.release_quota();
        volume.remove_from_datastores();
        self.0.core_state.remove_shard(volume.shard());
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<Volume<S>> {
        self.0.volumes.borrow().iter().find(|volume| volume.name() == name).cloned()
    }

    /// All volumes but those on standby, in the order they were attached.
    pub fn volumes(&self) -> Vec<Volume<S>> {
        self.0.volumes.borrow().iter().filter(|volume| !volume.spec().is_standby).cloned().collect()
    }

    /// All volumes that clients can use, in the order they were attached.
    pub fn volumes_and_standbys(&self) -> Vec<Volume<S>> {
        self.0.volumes.borrow().clone()
    }

    /// Adds a datastore or changes its settings. Volumes that are attached later and name it share it; attached volumes
    /// need [`Volume::set_datastore`].
    pub fn set_datastore(&self, spec: &DatastoreSpec) {
        self.0.core_state.set_datastore(spec);
    }

    /// Removes a datastore for volumes that are attached later. Its present volumes keep it until they are moved to
    /// another one.
    pub fn remove_datastore(&self, name: &str) {
        self.0.core_state.remove_datastore(name);
    }

    /// State of the datastores, by name; flash is last, if there is any.
    pub fn datastores(&self) -> Vec<DatastoreStats> {
        let core_state = &self.0.core_state;
        let flash = core_state.pages().map(|_| core_state.flash_datastore().stats());
        core_state.datastores().iter().map(|datastore| datastore.stats()).chain(flash).collect()
    }

    /// Memory and promotion state of the core.
    pub fn stats(&self) -> CoreStats {
        let block = BLOCK_BYTES as u64;
        let (total, free) = (self.seam().blocks_total() as u64, self.seam().blocks_free() as u64);
        CoreStats {
            pool_bytes: total * block,
            pool_used_bytes: (total - free) * block,
            index_bytes: self.0.core_state.memory().borrow().overhead_bytes(),
            promotion: self.0.core_state.promotion_stats(),
        }
    }
}
