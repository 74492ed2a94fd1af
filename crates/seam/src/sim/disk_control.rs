//! Control of simulated disks: adding them to a world, injecting faults, inspecting their content.

use std::path::Path;
use std::rc::Rc;

use super::disk::DiskInner;
use super::disk_spec::{DiskCounts, SimDiskSpec, Timing};
use super::fault::Rule;
use super::world::World;
use crate::{Lineage, Nanos};

impl World {
    /// Adds a new disk to the world, to be opened by its name.
    pub fn add_disk(&self, name: impl AsRef<Path>, spec: SimDiskSpec) -> DiskControl {
        let disk = DiskInner::new(&self.shared, name.as_ref(), spec);
        let old = self.shared.disks.borrow_mut().insert(name.as_ref().to_owned(), Rc::clone(&disk));
        assert!(old.is_none(), "two disks of one name: {}", name.as_ref().display());
        DiskControl(disk)
    }

    /// The control of the named disk, if it exists.
    pub fn disk(&self, name: impl AsRef<Path>) -> Option<DiskControl> {
        self.shared.disks.borrow().get(name.as_ref()).cloned().map(DiskControl)
    }
}

/// Control of a disk: injects faults and inspects its true content.
#[derive(Clone)]
pub struct DiskControl(Rc<DiskInner>);

impl DiskControl {
    /// Adds a rule to the fault plan.
    pub fn add_fault(&self, rule: Rule) {
        self.0.faults.borrow_mut().add(rule);
    }

    /// Removes all rules of the fault plan.
    pub fn clear_faults(&self) {
        self.0.faults.borrow_mut().clear();
    }

    /// Removes the disk; operations in flight fail.
    pub fn vanish(&self) {
        self.0.vanish();
    }

    /// Brings a vanished disk back with its content.
    pub fn come_back(&self) {
        if self.0.vanished.replace(false) {
            self.0.reconnect();
        }
    }

    /// Completes, `after` from now, all unanswered operations; see [`Fault::Hang`](super::Fault::Hang).
    pub fn complete_hung(&self, after: Nanos) {
        self.0.complete_hung(after);
    }

    /// Loses the connection and restores it at once; see [`Fault::Reconnect`].
    pub fn reconnect(&self) {
        self.0.reconnect();
    }

    /// Changes the size without a notification; users see it at their next refresh.
    pub fn resize(&self, size_bytes: u64) {
        self.0.resize(size_bytes);
    }

    /// Changes the latency of future operations.
    pub fn set_timing(&self, timing: Timing) {
        self.0.timing.set(timing);
    }

    /// Current content of a sector.
    pub fn tag(&self, sector: u64) -> u64 {
        let mut tag = [0];
        self.0.image.borrow().read(sector, &mut tag);
        tag[0]
    }

    /// Content of a sector if no unflushed write survives.
    pub fn durable_tag(&self, sector: u64) -> u64 {
        self.0.image.borrow().durable_tag(sector)
    }

    /// True if the disk is marked as lacking flushed writes ([`Disk::mark_undestaged`](crate::Disk::mark_undestaged)).
    pub fn is_marked(&self) -> bool {
        self.0.is_marked.get()
    }

    /// Makes this process's ownership a part of a lineage: several machines may own the disk one after the other.
    pub fn set_lineage(&self, id: &str) {
        self.0.lineage.replace(Some(Lineage { id: id.to_owned(), reason: String::new() }));
    }

    /// Changes sectors without any user's knowledge; the change is unflushed like any write.
    pub fn set_tags(&self, sector: u64, tags: &[u64]) {
        self.0.image.borrow_mut().write(sector, tags);
    }

    /// Flips one bit of a sector (bits 0 to 4095) without any user's knowledge: silent damage that survives every
    /// crash.
    pub fn flip_bit(&self, sector: u64, bit: usize) {
        let flipped = self.0.metadata().flipped(self.tag(sector), bit);
        self.0.image.borrow_mut().store(sector, &[flipped]);
    }

    /// Writes completed and not flushed.
    pub fn unflushed(&self) -> usize {
        self.0.image.borrow().unflushed()
    }

    /// Operations submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// Counters of this world.
    pub fn counts(&self) -> DiskCounts {
        self.0.counts.get()
    }
}
