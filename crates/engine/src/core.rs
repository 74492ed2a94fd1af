//! One core's part of the engine: its volumes and what they share.

use std::cell::RefCell;
use std::rc::Rc;

use seam::Seam;

use crate::{Backing, CoreSpec, CoreStats, RequestError, Volume, VolumeSpec};

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another volume has that name.
    #[error("a volume named \"{0}\" exists already")]
    Exists(String),
}

struct Inner<S: Seam> {
    seam: S,
    spec: CoreSpec,
    volumes: RefCell<Vec<Volume<S>>>,
}

/// One core's engine. A clone is another handle to the same.
pub struct Core<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Core<S> {
    fn clone(&self) -> Self {
        Core(Rc::clone(&self.0))
    }
}

impl<S: Seam> Core<S> {
    /// An engine without volumes.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        Core(Rc::new(Inner { seam, spec, volumes: RefCell::default() }))
    }

    /// The world it runs in.
    pub fn seam(&self) -> &S {
        &self.0.seam
    }

    /// What it was told to be.
    pub fn spec(&self) -> &CoreSpec {
        &self.0.spec
    }

    /// Starts to serve a volume.
    pub fn attach(&self, spec: VolumeSpec, backing: Backing<S>) -> Result<Volume<S>, AttachError> {
        if self.find(&spec.name).is_some() {
            return Err(AttachError::Exists(spec.name));
        }
        let volume = Volume::new(self.clone(), spec, backing);
        self.0.volumes.borrow_mut().push(volume.clone());
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
        let block = seam::BLOCK_BYTES as u64;
        let (total, free) = (self.0.seam.blocks_total() as u64, self.0.seam.blocks_free() as u64);
        CoreStats { pool_bytes: total * block, pool_used_bytes: (total - free) * block, index_bytes: 0 }
    }
}
