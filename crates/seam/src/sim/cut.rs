//! A world cut at an instant: what its disks hold for certain and what each unflushed write may have left, so that one life can be
//! followed to its end and every crash that it could have met on the way looked at besides. Images share what they have in common.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::image::{Change, DiskImages, Image, Stored};
use super::interned::Interned;
use super::world::World;

/// What a crash leaves of one unflushed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of it.
    Whole,
    /// Nothing.
    Lost,
    /// The first so many sectors.
    First(usize),
    /// Everything but the first so many sectors.
    AllBut(usize),
    /// The sectors whose bits are set, the 64 bits used over and over.
    Scattered(u64),
}

/// One change that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutChange<'a> {
    /// The disk's name.
    pub disk: &'a Path,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub count: usize,
    /// Its operation had completed.
    pub completed: bool,
    /// No later change of that disk is unflushed.
    pub last_of_disk: bool,
}

struct CutDisk {
    name: PathBuf,
    stored: Stored,
    changes: Vec<Change>,
    completed: usize,
}

/// The disks of a world at one instant.
pub struct Cut {
    disks: Vec<CutDisk>,
    interned: Rc<Interned>,
}

impl World {
    /// The disks as they are now; the world goes on.
    pub fn snapshot(&self) -> Cut {
        let disks = self.shared.disks.borrow();
        let cut = |(name, disk): (&PathBuf, &Rc<super::disk::DiskInner>)| {
            let (stored, changes, completed) = disk.cut();
            CutDisk { name: name.clone(), stored, changes, completed }
        };
        Cut { disks: disks.iter().map(cut).collect(), interned: Rc::clone(&self.shared.interned) }
    }
}

impl Cut {
    /// The unflushed changes, disk by disk, in each in the order of submission.
    pub fn changes(&self) -> impl Iterator<Item = CutChange<'_>> {
        self.disks.iter().flat_map(|disk| {
            disk.changes.iter().enumerate().map(|(index, change)| CutChange {
                disk: &disk.name,
                sector: change.sector,
                count: change.tags.len(),
                completed: index < disk.completed,
                last_of_disk: index + 1 == disk.changes.len(),
            })
        })
    }

    /// The disks after a crash that left of each change, by its number in [`Cut::changes`], what `survival` says.
    pub fn images(&self, mut survival: impl FnMut(usize) -> Survival) -> DiskImages {
        let mut number = 0;
        let mut images = DiskImages { interned: Rc::clone(&self.interned), ..DiskImages::default() };
        for disk in &self.disks {
            let mut image = disk.stored.image.clone();
            for change in &disk.changes {
                land(&mut image, change, survival(number));
                number += 1;
            }
            let stored = Stored { spec: disk.stored.spec.clone(), incarnation: disk.stored.incarnation, image };
            images.disks.insert(disk.name.clone(), stored);
        }
        images
    }
}

fn land(image: &mut Image, change: &Change, survival: Survival) {
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
