//! One core's part of the engine: its memory, its volumes, and the clock tick that dirty data needs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::{BLOCK_BYTES, Nanos, Seam};

use crate::memory::Memory;
use crate::{Backing, CoreSpec, CoreStats, RequestError, Volume, VolumeSpec};

/// How often volumes with dirty data look at the clock.
const TICK: Nanos = Nanos::from_millis(50);
/// How long to wait for a buffer before looking again.
const ALLOC_PAUSE: Nanos = Nanos::from_micros(200);

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another volume has that name.
    #[error("a volume named \"{0}\" exists already")]
    Exists(String),
    /// Another volume has that identity.
    #[error("a volume with the identity {0:016x} exists already")]
    SameIncarnation(u64),
}

struct Inner<S: Seam> {
    seam: S,
    spec: CoreSpec,
    memory: RefCell<Memory<S>>,
    volumes: RefCell<Vec<Volume<S>>>,
    next_number: Cell<u32>,
    ticking: Cell<bool>,
}

/// One core's engine. A clone is another handle to the same.
pub struct Core<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Core<S> {
    fn clone(&self) -> Self {
        Core(Rc::clone(&self.0))
    }
}

impl<S: Seam> Core<S> {
    /// An engine without volumes, over all of the seam's pool.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        let memory = RefCell::new(Memory::new(seam.clone()));
        let (volumes, next_number, ticking) = Default::default();
        Core(Rc::new(Inner { seam, spec, memory, volumes, next_number, ticking }))
    }

    /// The world it runs in.
    pub fn seam(&self) -> &S {
        &self.0.seam
    }

    /// What it was told to be.
    pub fn spec(&self) -> &CoreSpec {
        &self.0.spec
    }

    /// The cache that all its volumes share.
    pub(crate) fn memory(&self) -> &RefCell<Memory<S>> {
        &self.0.memory
    }

    /// Starts to serve a volume.
    pub fn attach(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        let volumes = &self.0.volumes;
        if volumes.borrow().iter().any(|other| other.name() == spec.name) {
            return Err(AttachError::Exists(spec.name));
        }
        if volumes.borrow().iter().any(|other| other.spec().incarnation == spec.incarnation) {
            return Err(AttachError::SameIncarnation(spec.incarnation));
        }
        let number = self.0.next_number.get();
        self.0.next_number.set(number + 1);
        let volume = Volume::new(self.clone(), number, spec, backing);
        volumes.borrow_mut().push(volume.clone());
        for volume in self.volumes() {
            volume.shard().refresh_throttle();
        }
        Ok(volume)
    }

    /// Stops serving a volume: waits for its requests, destages, flushes, forgets it. On an error it stays attached.
    pub async fn detach(&self, name: &str) -> Result<(), RequestError> {
        let volume = self.find(name).ok_or(RequestError::Invalid)?;
        volume.drain().await?;
        self.0.volumes.borrow_mut().retain(|other| other.name() != name);
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

    /// What it holds.
    pub fn stats(&self) -> CoreStats {
        let block = BLOCK_BYTES as u64;
        let (total, free) = (self.0.seam.blocks_total() as u64, self.0.seam.blocks_free() as u64);
        CoreStats {
            pool_bytes: total * block,
            pool_used_bytes: (total - free) * block,
            index_bytes: self.0.memory.borrow().index_bytes(),
        }
    }

    /// Blocks of all volumes that are not clean.
    pub(crate) fn unclean(&self) -> u64 {
        self.0.volumes.borrow().iter().map(|volume| volume.shard().state.borrow().unclean()).sum()
    }

    /// A buffer, as soon as there is one. Destage, which is what makes room, never waits here.
    pub(crate) async fn alloc(&self) -> S::BlockMut {
        loop {
            let block = self.0.memory.borrow_mut().alloc();
            match block {
                Some(block) => return block,
                None => self.pause_for_buffers().await,
            }
        }
    }

    /// `count` buffers together, so that nobody holds some and waits for others who do the same. Whoever is not `patient`
    /// gets `None` instead of waiting.
    pub(crate) async fn alloc_all(&self, count: usize, patient: bool) -> Option<Vec<S::BlockMut>> {
        loop {
            let blocks: Vec<_> = {
                let mut memory = self.0.memory.borrow_mut();
                std::iter::from_fn(|| memory.alloc()).take(count).collect()
            };
            if blocks.len() == count {
                return Some(blocks);
            }
            drop(blocks);
            if !patient {
                return None;
            }
            self.pause_for_buffers().await;
        }
    }

    async fn pause_for_buffers(&self) {
        self.keep_ticking();
        self.0.volumes.borrow().iter().for_each(|volume| volume.shard().work.notify());
        self.0.seam.sleep(ALLOC_PAUSE).await;
    }

    /// Ticks until nothing is dirty any more: an idle engine has no timer.
    pub(crate) fn keep_ticking(&self) {
        if self.0.ticking.replace(true) {
            return;
        }
        let core = self.clone();
        self.0.seam.spawn(async move {
            let mut more = true;
            while more {
                core.seam().sleep(TICK).await;
                more = false;
                for volume in core.volumes() {
                    let shard = volume.shard();
                    shard.tick_throttle();
                    if shard.state.borrow().unclean() > 0 {
                        shard.work.notify();
                        shard.progress.notify();
                        more = true;
                    }
                }
            }
            core.0.ticking.set(false);
        });
    }
}
