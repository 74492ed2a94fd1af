//! Simulated disks from behind: putting them into a world, breaking them, looking at what is really on them.

use std::path::Path;
use std::rc::Rc;

use super::disk::DiskInner;
use super::disk_spec::{DiskCounts, SimDiskSpec, Timing};
use super::fault::Rule;
use super::world::World;
use crate::Nanos;

impl World {
    /// Puts a new disk into the world, to be opened by its name.
    pub fn add_disk(&self, name: impl AsRef<Path>, spec: SimDiskSpec) -> DiskControl {
        let disk = DiskInner::new(&self.shared, name.as_ref(), spec);
        let old = self.shared.disks.borrow_mut().insert(name.as_ref().to_owned(), Rc::clone(&disk));
        assert!(old.is_none(), "two disks of one name: {}", name.as_ref().display());
        DiskControl(disk)
    }

    /// The disk of that name from behind, where there is one.
    pub fn disk(&self, name: impl AsRef<Path>) -> Option<DiskControl> {
        self.shared.disks.borrow().get(name.as_ref()).cloned().map(DiskControl)
    }
}

/// A disk from behind: for a test to break it, and to look at what is really on it.
#[derive(Clone)]
pub struct DiskControl(Rc<DiskInner>);

impl DiskControl {
    /// Adds a line to its fault plan.
    pub fn add_fault(&self, rule: Rule) {
        self.0.faults.borrow_mut().add(rule);
    }

    /// Empties its fault plan.
    pub fn clear_faults(&self) {
        self.0.faults.borrow_mut().clear();
    }

    /// The disk is gone, what is in flight too.
    pub fn vanish(&self) {
        self.0.vanish();
    }

    /// A disk that had vanished is back, with what it held.
    pub fn come_back(&self) {
        if self.0.gone.replace(false) {
            self.0.reconnect();
        }
    }

    /// Answers, `after` from now, all operations that it has not answered; see [`Fault::Hang`](super::Fault::Hang).
    pub fn answer_hung(&self, after: Nanos) {
        self.0.answer_hung(after);
    }

    /// The connection is lost and back at once; see [`Fault::Reconnect`].
    pub fn reconnect(&self) {
        self.0.reconnect();
    }

    /// Changes its size behind its users' backs; they see it when they look again.
    pub fn resize(&self, size_bytes: u64) {
        self.0.resize(size_bytes);
    }

    /// Changes how long operations take from now on.
    pub fn set_timing(&self, timing: Timing) {
        self.0.timing.set(timing);
    }

    /// What a sector holds now.
    pub fn tag(&self, sector: u64) -> u64 {
        let mut tag = [0];
        self.0.image.borrow().read(sector, &mut tag);
        tag[0]
    }

    /// What a sector holds if nothing survives that was not flushed.
    pub fn durable_tag(&self, sector: u64) -> u64 {
        self.0.image.borrow().durable_tag(sector)
    }

    /// Changes sectors behind everybody's back, unflushed like any write.
    pub fn set_tags(&self, sector: u64, tags: &[u64]) {
        self.0.image.borrow_mut().write(sector, tags);
    }

    /// Flips one bit of a sector behind everybody's back, as silent damage that outlives every crash: bits count from 0 to 4095.
    pub fn flip_bit(&self, sector: u64, bit: usize) {
        let flipped = self.0.interned().flipped(self.tag(sector), bit);
        self.0.image.borrow_mut().store(sector, &[flipped]);
    }

    /// Writes that completed and were not flushed.
    pub fn unflushed(&self) -> usize {
        self.0.image.borrow().unflushed()
    }

    /// Operations that were submitted and have not completed.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// What it has been asked and done in this world.
    pub fn counts(&self) -> DiskCounts {
        self.0.counts.get()
    }
}
