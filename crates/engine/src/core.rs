//! One core's part of the engine: the volumes that it serves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use flash::{MapLoaded, Pages, Recovered, Store};
use seam::kept::Left;
use seam::{BLOCK_BYTES, Seam};

use crate::shard::common::Common;
use crate::{
    Backing, CacheMode, CoreSpec, CoreStats, DatastoreSpec, DatastoreStats, RequestError, Volume, VolumeSpec,
    WritePolicy, WriteSource,
};

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another volume has that name.
    #[error("a volume named \"{0}\" exists already")]
    Exists(String),
    /// Another volume has that identity.
    #[error("a volume with the identity {0:016x} exists already")]
    SameIncarnation(u64),
    /// The flash log holds data of it that a volume without the log would not see.
    #[error(
        "the flash log holds data of \"{0}\" that is not on its backing: attach it with policy write-back and active, then change that"
    )]
    DirtyOnFlash(String),
    /// What the flash log holds of it could not be taken over.
    #[error("what the flash log holds of \"{0}\" could not be read: {1}; it stays there")]
    Recovery(String, RequestError),
    /// What a killed process left of it in memory could not be taken back.
    #[error("what was left in memory of \"{0}\" could not be taken back: {1}; it stays there")]
    LeftInMemory(String, RequestError),
    /// That was tried, and the flash log is not any more as it was found.
    #[error("what was left in memory of \"{0}\" could be taken back in part only: it stays there for the next start")]
    TakenInPart(String),
}

struct Inner<S: Seam> {
    common: Rc<Common<S>>,
    volumes: RefCell<Vec<Volume<S>>>,
    /// What the flash log holds of volumes that were not attached yet, in the owners' order.
    found: RefCell<Vec<Recovered>>,
    /// Volumes that were begun to be taken back, of which the log has more by now than was found.
    spoilt: RefCell<BTreeSet<u64>>,
    next_number: Cell<u32>,
}

/// One core's engine. A clone is another handle to the same.
///
/// It owns its volumes; they own what they share ([`Common`]), which knows them only weakly. So an engine that was dropped, with
/// the tasks of its world, leaves nothing behind.
pub struct Core<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Core<S> {
    fn clone(&self) -> Self {
        Core(Rc::clone(&self.0))
    }
}

impl<S: Seam> Core<S> {
    /// An engine without volumes, over all of the seam's pool.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        let (volumes, found, spoilt, next_number) = Default::default();
        Core(Rc::new(Inner { common: Rc::new(Common::new(seam, spec)), volumes, found, spoilt, next_number }))
    }

    /// The world it runs in.
    pub fn seam(&self) -> &S {
        self.0.common.seam()
    }

    /// What it was told to be.
    pub fn spec(&self) -> &CoreSpec {
        self.0.common.spec()
    }

    /// From now on the flash log answers the flushes of volumes that are attached later; `found` is what it holds of them, as the
    /// store's opening gave it, each taken over by [`Core::attach_recovered`].
    pub fn open_log(&self, store: Store<S>, found: Vec<Recovered>) {
        self.0.common.open_store(store);
        *self.0.found.borrow_mut() = found;
    }

    /// The flash log.
    pub fn log(&self) -> Option<Store<S>> {
        self.0.common.log()
    }

    /// The clean pages on flash.
    pub fn pages(&self) -> Option<Pages<S>> {
        self.0.common.pages()
    }

    /// Promotion may write so many bytes to flash in a day, and a day's at once; 0: no limit.
    pub fn limit_promotion(&self, bytes_a_day: u64) {
        self.0.common.promoter().budget().set_bytes_a_day(bytes_a_day);
    }

    /// What reading the map of clean pages has brought, once that has ended.
    pub fn map_loaded(&self) -> Option<MapLoaded> {
        self.0.common.loaded()
    }

    /// Identities of volumes of which the flash log holds something that nobody has asked for yet.
    pub fn unclaimed(&self) -> BTreeSet<u64> {
        let (found, mut volumes, mut at) = (self.0.found.borrow(), BTreeSet::new(), 0);
        while let Some(first) = found.get(at) {
            let incarnation = first.owner.incarnation;
            volumes.insert(incarnation);
            at = found.partition_point(|record| record.owner.incarnation <= incarnation);
        }
        volumes
    }

    /// Shows each record that the flash log holds of a volume which was not attached yet.
    pub(crate) fn each_found(&self, incarnation: u64, mut look: impl FnMut(&Recovered)) {
        self.0.found.borrow()[self.found_of(incarnation)].iter().for_each(&mut look);
    }

    /// Waits until the map of clean pages is read.
    pub(crate) async fn wait_for_pages(&self) {
        self.0.common.pages_loaded().await;
    }

    /// Starts to serve a volume, with what the flash log holds of it. On an error the log keeps that.
    pub async fn attach_recovered(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volume = self.recover(spec, backing, &Left::default())?;
        self.recovered(&volume);
        Ok(volume)
    }

    /// Starts to serve a volume of which the flash log holds nothing.
    pub fn attach(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volume = self.make_new(spec, backing)?;
        self.0.volumes.borrow_mut().push(volume.clone());
        Ok(volume)
    }

    /// As [`Core::attach_recovered`], and makes dirty again what a killed process left of the volume in memory, before anybody can find it:
    /// `source` gives the content of the block at a place. Says how many blocks and zero-ranges that were, too. On an error nothing is
    /// forgotten that was left.
    pub async fn attach_left<W: WriteSource<S>>(
        &self,
        spec: VolumeSpec,
        backing: Backing<S>,
        left: &Left,
        source: impl FnMut(usize) -> W,
    ) -> Result<(Volume<S>, u64), AttachError> {
        let volume = self.recover(spec, backing, left)?;
        let taken = volume.take_back(left, source).await.map_err(|error| {
            if volume.shard().state.borrow().ledger.has_records() {
                self.0.spoilt.borrow_mut().insert(volume.spec().incarnation);
            }
            volume.give_up();
            // Who takes it back another time makes notes of his own: these would be older, and come back over what was written then.
            volume.shard().forget();
            AttachError::LeftInMemory(volume.name().to_owned(), error)
        })?;
        self.recovered(&volume);
        Ok((volume, taken))
    }

    /// A volume with what the flash log holds of it, which nobody can find yet.
    fn recover(&self, spec: VolumeSpec, backing: Backing<S>, left: &Left) -> Result<Volume<S>, AttachError> {
        if self.0.spoilt.borrow().contains(&spec.incarnation) {
            return Err(AttachError::TakenInPart(spec.name));
        }
        let mine = self.found_of(spec.incarnation);
        if mine.is_empty() {
            return self.make(spec, backing);
        }
        if spec.policy != WritePolicy::WriteBack || spec.mode != CacheMode::Active {
            return Err(AttachError::DirtyOnFlash(spec.name));
        }
        let volume = self.make(spec, backing)?;
        let recovered = volume.recover(&self.0.found.borrow()[mine], left);
        recovered.map(|()| volume.clone()).map_err(|error| {
            volume.give_up();
            AttachError::Recovery(volume.name().to_owned(), error)
        })
    }

    /// Lets a volume be found, and nobody else have what was found of it.
    fn recovered(&self, volume: &Volume<S>) {
        let mine = self.found_of(volume.spec().incarnation);
        let mut found = self.0.found.borrow_mut();
        if !mine.is_empty() {
            found.drain(mine);
            found.shrink_to_fit();
        }
        self.0.volumes.borrow_mut().push(volume.clone());
    }

    /// Where among what was found in the flash log that of a volume lies.
    fn found_of(&self, incarnation: u64) -> Range<usize> {
        let found = self.0.found.borrow();
        let first = found.partition_point(|record| record.owner.incarnation < incarnation);
        first..found.partition_point(|record| record.owner.incarnation <= incarnation)
    }

    fn make_new(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        if self.unclaimed().contains(&spec.incarnation) || self.0.spoilt.borrow().contains(&spec.incarnation) {
            return Err(AttachError::DirtyOnFlash(spec.name));
        }
        self.make(spec, backing)
    }

    fn make(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volumes = &self.0.volumes;
        if volumes.borrow().iter().any(|other| other.name() == spec.name) {
            return Err(AttachError::Exists(spec.name));
        }
        if volumes.borrow().iter().any(|other| other.spec().incarnation == spec.incarnation) {
            return Err(AttachError::SameIncarnation(spec.incarnation));
        }
        let number = self.0.next_number.get();
        self.0.next_number.set(number + 1);
        let volume = Volume::new(Rc::clone(&self.0.common), number, spec, backing);
        self.0.common.add(volume.shard());
        Ok(volume)
    }

    /// Stops serving a volume: waits for its requests, destages, flushes, forgets it. On an error it stays attached.
    pub async fn detach(&self, name: &str) -> Result<(), RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.drain().await?;
        self.0.volumes.borrow_mut().retain(|other| other.name() != name);
        volume.shard().level.give_up_share();
        volume.leave_datastore();
        self.0.common.remove(volume.shard());
        Ok(())
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<Volume<S>> {
        self.0.volumes.borrow().iter().find(|volume| volume.name() == name).cloned()
    }

    /// All volumes, in the order they were attached.
    pub fn volumes(&self) -> Vec<Volume<S>> {
        self.0.volumes.borrow().clone()
    }

    /// A datastore, or other settings of one; volumes that name it and come later share it, those that are here when they are told
    /// ([`Volume::set_datastore`]).
    pub fn set_datastore(&self, spec: &DatastoreSpec) {
        self.0.common.set_datastore(spec);
    }

    /// No volume that comes shares that datastore any more; those that do already go on until they are told of another.
    pub fn remove_datastore(&self, name: &str) {
        self.0.common.remove_datastore(name);
    }

    /// What datastores do, by name; flash last, where volumes share it.
    pub fn datastores(&self) -> Vec<DatastoreStats> {
        let common = &self.0.common;
        let flash = common.pages().map(|_| common.flash_turns().stats());
        common.datastores().iter().map(|datastore| datastore.stats()).chain(flash).collect()
    }

    /// What it holds.
    pub fn stats(&self) -> CoreStats {
        let block = BLOCK_BYTES as u64;
        let (total, free) = (self.seam().blocks_total() as u64, self.seam().blocks_free() as u64);
        CoreStats {
            pool_bytes: total * block,
            pool_used_bytes: (total - free) * block,
            index_bytes: self.0.common.memory().borrow().index_bytes(),
            promotion: self.0.common.promotion_stats(),
        }
    }
}
