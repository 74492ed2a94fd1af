//! A snapshot of a world's disks: their durable content and all unflushed changes, each of which a crash may keep, lose
//! or tear. One run can thus test every crash point. Images share memory for equal content.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::image::{Change, DiskImages, Image, StoredDisk};
use super::metadata_sectors::MetadataSectors;
use super::world::World;

/// The part of one unflushed change that survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// The whole change.
    Whole,
    /// Nothing.
    Lost,
    /// This number of leading sectors.
    First(usize),
    /// Everything except this number of leading sectors.
    AllBut(usize),
    /// Some sectors: sector i of the change is kept if bit i % 64 is set.
    Scattered(u64),
}

/// One unflushed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedChange<'a> {
    /// The disk's name.
    pub disk: &'a Path,
    /// First sector.
    pub sector: u64,
    /// Number of sectors.
    pub count: usize,
    /// True if its operation had completed.
    pub completed: bool,
    /// True for the disk's last unflushed change.
    pub last_of_disk: bool,
}

struct SnapshotDisk {
    name: PathBuf,
    stored: StoredDisk,
    changes: Vec<Change>,
    completed: usize,
}

/// The disks of a world at one instant.
pub struct Snapshot {
    disks: Vec<SnapshotDisk>,
    metadata: Rc<MetadataSectors>,
}

impl World {
    /// The disks' state now; the world continues.
    pub fn snapshot(&self) -> Snapshot {
        let disks = self.shared.disks.borrow();
        let snapshot = |(name, disk): (&PathBuf, &Rc<super::disk::DiskInner>)| {
            let (stored, changes, completed) = disk.snapshot();
            SnapshotDisk { name: name.clone(), stored, changes, completed }
        };
        Snapshot { disks: disks.iter().map(snapshot).collect(), metadata: Rc::clone(&self.shared.metadata) }
    }
}

impl Snapshot {
    /// The unflushed changes by disk, each disk's in order of submission.
    pub fn changes(&self) -> impl Iterator<Item = UnflushedChange<'_>> {
        self.disks.iter().flat_map(|disk| {
            disk.changes.iter().enumerate().map(|(index, change)| UnflushedChange {
                disk: &disk.name,
                sector: change.sector,
                count: change.tags.len(),
                completed: index < disk.completed,
                last_of_disk: index + 1 == disk.changes.len(),
            })
        })
    }

    /// The disks after a crash. `survival(n)` decides which part of change n of [`Snapshot::changes`] remains.
    pub fn images(&self, mut survival: impl FnMut(usize) -> Survival) -> DiskImages {
        let mut number = 0;
        let mut images = DiskImages { metadata: Rc::clone(&self.metadata), ..DiskImages::default() };
        for disk in &self.disks {
            let mut image = disk.stored.image.clone();
            for change in &disk.changes {
                apply_part(&mut image, change, survival(number));
                number += 1;
            }
            let StoredDisk { ref spec, connection_epoch, is_marked, .. } = disk.stored;
            let stored = StoredDisk { spec: spec.clone(), connection_epoch, is_marked, image };
            images.disks.insert(disk.name.clone(), stored);
        }
        images
    }
}

fn apply_part(image: &mut Image, change: &Change, survival: Survival) {
    let count = change.tags.len();
    match survival {
        Survival::Whole => image.store(change.sector, &change.tags),
        Survival::Lost => {}
        Survival::First(first) => image.store(change.sector, &change.tags[..first.min(count)]),
        Survival::AllBut(first) => {
            let first = first.min(count);
            image.store(change.sector + first as u64, &change.tags[first..]);
        }
        Survival::Scattered(bits) => {
            for (index, tag) in change.tags.iter().enumerate().filter(|(index, _)| bits >> (index % 64) & 1 == 1) {
                image.store(change.sector + index as u64, &[*tag]);
            }
        }
    }
}
