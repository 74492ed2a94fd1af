//! Clients of a pool, each with a volume of its own: writes across slices, zero-ranges, reads, flushes, reservations;
//! and a mover beside them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pool::{Flow, GroupNo, MoveError, Pace, PoolDisk, SliceAddress, VolumeId};
use seam::sim::{Rng, SimDisk, SimSeam};
use seam::{BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use crate::model::{Model, read_sectors};
use crate::world::{SLICE, SLICE_SECTORS, SimPool};

/// The clients of an open pool, and their model.
#[derive(Clone)]
pub struct Workload {
    pub seam: SimSeam,
    pub pool: SimPool,
    pub model: Rc<RefCell<Model>>,
    /// The first error that no fault explains.
    pub first_error: Rc<RefCell<Option<String>>>,
    /// Errors of disks are expected.
    pub has_faults: bool,
    /// Requests that found the pool full.
    pub full: Rc<Cell<u64>>,
    /// The last connection epoch that a client of each volume has noted.
    pub epochs: Rc<RefCell<BTreeMap<String, u64>>>,
}

/// One client.
struct Client {
    workload: Workload,
    name: String,
    disk: PoolDisk<SimSeam, SimDisk>,
    rng: Rng,
    epoch: u64,
}

impl Workload {
    pub fn report(&self, error: String) {
        self.first_error.borrow_mut().get_or_insert(error);
    }

    /// Creates a volume of this many bytes.
    pub async fn create(&self, spec: pool::VolumeSpec) -> Option<VolumeId> {
        let name = spec.name.clone();
        self.model.borrow_mut().create(&name, spec.size_bytes / 512);
        match self.pool.create_volume(spec).await {
            Ok(volume) => {
                self.model.borrow_mut().created(&name);
                Some(volume)
            }
            Err(error) => {
                if !self.has_faults {
                    self.report(format!("{name}: {error}"));
                }
                None
            }
        }
    }

    /// Removes a volume.
    pub async fn remove(&self, name: &str) {
        self.delete_snapshots(name).await;
        let Some(volume) = self.pool.volume_named(name) else { return };
        self.model.borrow_mut().remove(name);
        match self.pool.remove_volume(volume).await {
            Ok(()) => self.model.borrow_mut().removed(name),
            Err(error) if !self.has_faults => self.report(format!("{name}: {error}")),
            Err(_) => {}
        }
    }

    /// Changes the size of a volume.
    pub async fn resize(&self, name: &str, size_bytes: u64) {
        let Some(volume) = self.pool.volume_named(name) else { return };
        let disk = self.pool.volume(volume).expect("the volume exists");
        self.model.borrow_mut().resize(name, size_bytes / 512);
        match disk.set_size(size_bytes).await {
            Ok(()) => self.model.borrow_mut().resized(name, size_bytes / 512),
            Err(error) if !self.has_faults && error != DiskError::NoSpace => self.report(format!("{name}: {error}")),
            Err(_) => self.model.borrow_mut().resize_failed(name, size_bytes / 512),
        }
    }

    /// Runs a client for each volume, with `steps` each, and `moves` moves and half as many steps with snapshots beside
    /// them.
    pub async fn run(&self, seed: u64, names: &[&str], steps: u64, moves: u64) {
        let running = Rc::new(Cell::new(names.len() + 2));
        for (number, name) in (0..).zip(names) {
            let Some(volume) = self.pool.volume_named(name) else {
                running.set(running.get() - 1);
                continue;
            };
            let disk = self.pool.volume(volume).expect("the volume exists");
            let epoch = *self.epochs.borrow().get(*name).unwrap_or(&disk.connection_epoch());
            let (workload, name, rng) = (self.clone(), (*name).to_owned(), Rng::new(seed, number));
            let running = Rc::clone(&running);
            self.seam.spawn(async move {
                workload.epochs.borrow_mut().insert(name.clone(), epoch);
                let mut client = Client { workload, name, disk, rng, epoch };
                for _ in 0..steps {
                    if client.workload.first_error.borrow().is_some() {
                        break;
                    }
                    client.step().await;
                }
                running.set(running.get() - 1);
            });
        }
        let (workload, rng) = (self.clone(), Rng::new(seed, 90));
        let (flag, names): (_, Vec<_>) = (Rc::clone(&running), names.iter().map(|name| (*name).to_owned()).collect());
        let volumes = names.clone();
        self.seam.spawn(async move {
            for _ in 0..moves {
                workload.move_any(&names, &rng).await;
            }
            flag.set(flag.get() - 1);
        });
        let (workload, rng, flag) = (self.clone(), Rng::new(seed, 91), Rc::clone(&running));
        self.seam.spawn(async move {
            for _ in 0..moves / 2 {
                workload.step_snapshot(&volumes[rng.below(volumes.len() as u64) as usize], "clone", &rng).await;
            }
            flag.set(flag.get() - 1);
        });
        while running.get() > 0 {
            self.seam.sleep(Nanos::from_micros(50)).await;
        }
    }

    /// Moves a random slice to a random group, or cancels that move.
    async fn move_any(&self, names: &[String], rng: &Rng) {
        self.seam.sleep(Nanos::from_micros(rng.below(1_000))).await;
        let name = &names[rng.below(names.len() as u64) as usize];
        let Some(volume) = self.pool.volume_named(name) else { return };
        let slices = self.pool.slices_of(volume);
        if slices.is_empty() {
            return;
        }
        let slice = SliceAddress { volume, slice: slices[rng.below(slices.len() as u64) as usize].0 };
        let target = GroupNo(rng.below(self.pool.groups().len() as u64) as u16);
        let cancels_at = (rng.below(8) == 0).then(|| rng.below(3));
        let copies = Cell::new(0);
        let pace: Pace = Rc::new(move |_| {
            copies.set(copies.get() + 1);
            let flow = if cancels_at.is_some_and(|at| copies.get() > at) { Flow::Cancel } else { Flow::Continue };
            Box::pin(async move { flow })
        });
        match self.pool.move_slice(slice, target, pace).await {
            Ok(_) | Err(MoveError::Cancelled | MoveError::NoSlot(_) | MoveError::Busy | MoveError::TooManyWrites) => {}
            Err(error) if !self.has_faults => self.report(format!("move of {slice} to {target}: {error}")),
            Err(_) => {}
        }
    }
}

impl Client {
    /// Notes a change of the connection epoch: unflushed writes may be lost.
    fn note_epoch(&mut self) {
        let epoch = self.disk.connection_epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            self.workload.epochs.borrow_mut().insert(self.name.clone(), epoch);
            self.workload.model.borrow_mut().lose_unflushed(&self.name);
        }
    }

    fn note_error(&self, what: &str, error: &DiskError) {
        match error {
            DiskError::NoSpace => self.workload.full.set(self.workload.full.get() + 1),
            _ if self.workload.has_faults => {}
            error => self.workload.report(format!("{}: {what}: {error}", self.name)),
        }
    }

    async fn step(&mut self) {
        self.note_epoch();
        let sectors = self.disk.geometry().size_bytes / 512;
        match self.rng.below(16) {
            0..6 => {
                let first = self.rng.below(sectors);
                let count = (1 + self.rng.below(24)).min(sectors - first);
                self.write(first, count).await;
            }
            6 => {
                // Across the boundary of two slices.
                let boundary = SLICE_SECTORS * (1 + self.rng.below((sectors / SLICE_SECTORS).max(1)));
                let first = boundary.min(sectors) - (1 + self.rng.below(12));
                self.write(first, (1 + self.rng.below(24)).min(sectors - first)).await;
            }
            7 => {
                let slice = self.rng.below(sectors.div_ceil(SLICE_SECTORS));
                let first = slice * SLICE_SECTORS;
                self.zero(first, SLICE_SECTORS.min(sectors - first)).await;
            }
            8 => {
                let first = self.rng.below(sectors);
                let count = (1 + self.rng.below(SLICE_SECTORS + 100)).min(sectors - first);
                self.zero(first, count).await;
            }
            9 => {
                let slice = self.rng.below(sectors.div_ceil(SLICE_SECTORS));
                self.reserve(slice).await;
            }
            10 | 11 => {
                let first = self.rng.below(sectors);
                self.read(first, (1 + self.rng.below(600)).min(sectors - first)).await;
            }
            12 if self.rng.below(4) == 0 => {
                if let Err(error) = self.workload.pool.checkpoint().await
                    && !self.workload.has_faults
                {
                    self.workload.report(format!("checkpoint: {error}"));
                }
            }
            _ => self.flush().await,
        }
        self.note_epoch();
    }

    async fn write(&mut self, first: u64, count: u64) {
        let tag = self.workload.model.borrow_mut().tag();
        self.workload.model.borrow_mut().write(&self.name, first..first + count, tag);
        let (mut pieces, mut left) = (Vec::new(), count as usize);
        while left > 0 {
            let sectors = left.min(8);
            let mut block = self.workload.seam.alloc().expect("the clients' buffers fit into the pool");
            (0..8).for_each(|sector| block.set_tag(sector, tag));
            pieces.push(Piece::new(block.freeze(), 0, sectors * 512));
            left -= sectors;
        }
        match self.disk.write(first * 512, pieces).await {
            Ok(()) => self.workload.model.borrow_mut().wrote(&self.name, first..first + count),
            Err(error) => self.note_error("write", &error),
        }
    }

    async fn zero(&mut self, first: u64, count: u64) {
        self.workload.model.borrow_mut().write(&self.name, first..first + count, 0);
        match self.disk.zero(first * 512, count * 512, true).await {
            Ok(()) => self.workload.model.borrow_mut().wrote(&self.name, first..first + count),
            Err(error) => self.note_error("zero", &error),
        }
    }

    async fn reserve(&mut self, slice: u64) {
        let size_bytes = self.disk.geometry().size_bytes;
        let at = slice * SLICE;
        let copies = self.workload.model.borrow().copies(&self.name);
        match self.disk.reserve(at, SLICE.min(size_bytes - at)).await {
            // A snapshot shares the slice again.
            Ok(()) if copies.is_none() || self.workload.model.borrow().copies(&self.name) != copies => {}
            Ok(()) => self.workload.model.borrow_mut().reserved(&self.name, slice as u32),
            Err(error) => self.note_error("reserve", &error),
        }
    }

    async fn read(&mut self, first: u64, count: u64) {
        match read_sectors(&self.workload.seam, &self.disk, first, count).await {
            Ok(tags) => {
                self.note_epoch();
                if let Err(error) = self.workload.model.borrow().check_read(&self.name, first, &tags) {
                    self.workload.report(error);
                }
            }
            Err(_) if self.workload.has_faults => {}
            Err(error) => self.workload.report(format!("{}: read: {error}", self.name)),
        }
    }

    async fn flush(&mut self) {
        let mark = self.workload.model.borrow().mark(&self.name);
        let result = self.disk.flush().await;
        let has_reconnected = self.disk.connection_epoch() != self.epoch;
        match result {
            // After a reconnect the flush promises nothing about the writes before it.
            Ok(()) if !has_reconnected => self.workload.model.borrow_mut().flushed(&self.name, mark),
            Ok(()) => {}
            Err(error) => self.note_error("flush", &error),
        }
    }
}
