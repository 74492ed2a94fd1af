//! A simulated disk: operations in flight, their latency, their faults, and their effect on the image.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::block::StoredContent;
use super::disk_spec::{DiskCounts, SimDiskSpec, Timing, WriteCache};
use super::fault::{Fault, FaultPlan, Ops};
use super::image::{Change, CrashMode, Image, StoredDisk, digest, draw_landed_len};
use super::metadata_sectors::MetadataSectors;
use super::timer::Event;
use super::trace::{TraceOp, TracePhase};
use super::world::WorldState;
use super::{SimBlock, SimBlockMut, SimSeam};
use crate::block::pieces_len;
use crate::model::{Access, Ssd};
use crate::{
    AllocationExtent, Disk, DiskError, DiskOpen, DiskResult, Geometry, Lineage, Nanos, PendingRequest, PendingRequests,
    Piece, PieceMut, SECTOR_BYTES,
};

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Largest zero-range that a crash may land while it is in flight; a larger one is lost.
const ZERO_IN_FLIGHT_MAX: u64 = 64 << 20;

/// Kind and buffers of an operation.
enum Data {
    Read(Vec<PieceMut<SimBlockMut>>),
    Write(Vec<Piece<SimBlock>>),
    Flush { mark: u64 },
    Zero { unmap: bool },
}

impl Data {
    fn ops(&self) -> Ops {
        match self {
            Data::Read(_) => Ops::READ,
            Data::Write(_) => Ops::WRITE,
            Data::Flush { .. } => Ops::FLUSH,
            Data::Zero { .. } => Ops::ZERO,
        }
    }

    fn trace_op(&self) -> TraceOp {
        match self {
            Data::Read(_) => TraceOp::Read,
            Data::Write(_) => TraceOp::Write,
            Data::Flush { .. } => TraceOp::Flush,
            Data::Zero { .. } => TraceOp::Zero,
        }
    }
}

/// A submitted operation. It stays until it has completed *and* its caller has taken its data or has been dropped.
struct Operation {
    sequence: u64,
    at: u64,
    len: u64,
    data: Option<Data>,
    fault: Option<Fault>,
    digest: u64,
    result: Option<DiskResult<()>>,
    waker: Option<Waker>,
    abandoned: bool,
    _pending: PendingRequest,
}

#[derive(Default)]
struct Operations {
    slots: Vec<Option<Operation>>,
    free: Vec<u32>,
    sequence: u64,
}

/// Time of a change of a disk's mark.
const MARK_LATENCY: Nanos = Nanos::from_micros(50);

/// The disk itself, shared by all its openings.
pub(super) struct DiskInner {
    world: Rc<WorldState>,
    number: u32,
    name: PathBuf,
    geometry: Geometry,
    cache: WriteCache,
    pub(super) timing: Cell<Timing>,
    ssd: Option<RefCell<Ssd>>,
    /// Size at the last refresh; `true_size` may have changed since.
    size: Cell<u64>,
    true_size: Cell<u64>,
    pub(super) image: RefCell<Image>,
    pub(super) faults: RefCell<FaultPlan>,
    operations: RefCell<Operations>,
    pending: PendingRequests,
    scratch: RefCell<Vec<u64>>,
    pub(super) counts: Cell<DiskCounts>,
    connection_epoch: Cell<u64>,
    pub(super) vanished: Cell<bool>,
    /// Marked as lacking flushed writes; durable at once.
    pub(super) is_marked: Cell<bool>,
    /// The lineage of the ownership by this world's process.
    pub(super) lineage: RefCell<Option<Lineage>>,
    /// Openings with write access, at most 1.
    writers: Cell<u32>,
}

impl DiskInner {
    pub(super) fn new(world: &Rc<WorldState>, name: &Path, spec: SimDiskSpec) -> Rc<DiskInner> {
        let block = u64::from(spec.geometry.logical_block);
        assert!(matches!(block, 512 | 4096), "a logical block of {block} bytes: only 512 and 4096 exist");
        assert!(
            spec.geometry.physical_block.is_multiple_of(spec.geometry.logical_block),
            "physical below logical block"
        );
        assert!(spec.geometry.size_bytes.is_multiple_of(block), "a size that is no multiple of the logical block");
        let keep = world.spec.content == StoredContent::Tags;
        Rc::new(DiskInner {
            world: Rc::clone(world),
            number: world.assign_number(),
            name: name.to_owned(),
            size: Cell::new(spec.geometry.size_bytes),
            true_size: Cell::new(spec.geometry.size_bytes),
            image: RefCell::new(Image::new(spec.cache == WriteCache::Volatile, keep)),
            geometry: spec.geometry,
            timing: Cell::new(spec.timing),
            ssd: spec.timing.ssd.map(|spec| RefCell::new(Ssd::new(spec))),
            cache: spec.cache,
            faults: RefCell::default(),
            operations: RefCell::default(),
            pending: PendingRequests::default(),
            scratch: RefCell::default(),
            counts: Cell::default(),
            connection_epoch: Cell::new(1),
            vanished: Cell::new(false),
            is_marked: Cell::new(false),
            lineage: RefCell::default(),
            writers: Cell::new(0),
        })
    }

    /// A disk from the images of another world.
    pub(super) fn restore(world: &Rc<WorldState>, name: &Path, stored: StoredDisk) -> Rc<DiskInner> {
        let disk = DiskInner::new(world, name, stored.spec);
        disk.image.replace(stored.image);
        disk.connection_epoch.set(stored.connection_epoch + 1);
        disk.is_marked.set(stored.is_marked);
        disk
    }

    /// Moves out the state that outlives the world; an empty image stays behind.
    pub(super) fn take_stored_disk(&self) -> StoredDisk {
        let empty = Image::new(self.cache == WriteCache::Volatile, true);
        StoredDisk { image: self.image.replace(empty), ..self.stored_disk_without_image() }
    }

    fn stored_disk_without_image(&self) -> StoredDisk {
        let geometry = Geometry { size_bytes: self.true_size.get(), ..self.geometry };
        let spec = SimDiskSpec { geometry, timing: self.timing.get(), cache: self.cache };
        StoredDisk {
            spec,
            connection_epoch: self.connection_epoch.get(),
            is_marked: self.is_marked.get(),
            image: Image::new(false, true),
        }
    }

    /// The durable state if the world ended now without any unflushed data, and the changes that may survive. These are
    /// the completed ones, then those in flight, in order of submission. Also returns the number of completed ones.
    pub(super) fn snapshot(&self) -> (StoredDisk, Vec<Change>, usize) {
        let mut image = self.image.borrow().clone();
        let mut changes = image.undo_all();
        let completed = changes.len();
        changes.extend(self.changes_in_flight());
        (StoredDisk { image, ..self.stored_disk_without_image() }, changes, completed)
    }

    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size.get(), ..self.geometry }
    }

    /// Panics on a misaligned request (a bug of the caller); returns an error for a range past the end.
    fn check(&self, at: u64, len: u64) -> DiskResult<()> {
        let block = u64::from(self.geometry.logical_block);
        assert!(
            at.is_multiple_of(block) && len.is_multiple_of(block),
            "{}: {at}+{len} is not aligned to the logical block of {block} bytes",
            self.name.display()
        );
        if at + len > self.true_size.get() {
            return Err(DiskError::Io(format!("{at}+{len} lies past the end of {}", self.name.display())));
        }
        Ok(())
    }

    /// Submits an operation and waits for its completion.
    async fn run(self: &Rc<Self>, at: u64, len: u64, mut data: Data) -> (DiskResult<()>, Data) {
        if let Err(error) = self.check(at, len) {
            return (Err(error), data);
        }
        if self.world.is_over() {
            std::future::pending::<()>().await;
        }
        if self.vanished.get() {
            return (Err(DiskError::Gone), data);
        }
        let op = data.ops();
        self.count(op, len);
        self.world.count_io();
        let digest = self.digest(&data);
        self.world.record(self.number, data.trace_op(), TracePhase::Start, at, len, digest);
        let drawn_fault = self.faults.borrow_mut().draw_fault(op, at, len, self.world.now(), &self.world.disk_rng);
        let (mut fault, mut stall) = (drawn_fault, Nanos::ZERO);
        match drawn_fault {
            Some(Fault::Vanish) => {
                self.vanish();
                return (Err(DiskError::Gone), data);
            }
            Some(Fault::Reconnect) => {
                self.reconnect();
                fault = self.world.disk_rng.coin().then_some(Fault::Error);
            }
            Some(Fault::Stall(time)) => (fault, stall) = (None, time),
            // Any latency above zero makes it an operation in flight.
            Some(Fault::Hang) => (fault, stall) = (None, Nanos(1)),
            _ => {}
        }
        let timing = self.timing.get();
        let latency = match data {
            Data::Read(_) => timing.read,
            Data::Write(_) | Data::Zero { .. } => timing.write,
            Data::Flush { .. } => timing.flush,
        };
        let time = match (&self.ssd, &data) {
            (Some(ssd), Data::Read(_) | Data::Write(_)) => {
                let access = if matches!(data, Data::Read(_)) { Access::Read } else { Access::Write };
                let now = self.world.now();
                ssd.borrow_mut().serve(now, access, at, len).since(now) + stall
            }
            _ => self.world.disk_rng.between(latency.min, latency.max) + stall,
        };
        if time == Nanos::ZERO {
            let result = self.perform(at, len, &mut data, fault, digest);
            return (result, data);
        }
        let operation = Operation {
            sequence: 0,
            at,
            len,
            data: Some(data),
            fault,
            digest,
            result: None,
            waker: None,
            abandoned: false,
            _pending: self.pending.begin(self.world.now()),
        };
        let (slot, sequence) = self.operations.borrow_mut().add(operation);
        if drawn_fault != Some(Fault::Hang) {
            self.schedule_end(slot, sequence, time);
        }
        Completion { disk: self, slot, done: false }.await
    }

    fn schedule_end(self: &Rc<Self>, slot: u32, sequence: u64, after: Nanos) {
        // Slots are reused, so a token holds the slot and 40 bits of the sequence number.
        let token = u64::from(slot) << 40 | (sequence & ((1 << 40) - 1));
        self.world.schedule(self.world.now() + after, Rc::clone(self) as Rc<dyn Event>, token);
    }

    /// Completes every unanswered operation after `after`: hung ones and ones in flight.
    pub(super) fn complete_hung(self: &Rc<Self>, after: Nanos) {
        let waiting: Vec<_> = {
            let operations = self.operations.borrow();
            let slots = (0..).zip(&operations.slots);
            let waiting = slots.filter_map(|(slot, operation)| Some((slot, operation.as_ref()?)));
            let waiting = waiting.filter(|(_, operation)| operation.result.is_none());
            waiting.map(|(slot, operation)| (slot, operation.sequence)).collect()
        };
        waiting.into_iter().for_each(|(slot, sequence)| self.schedule_end(slot, sequence, after));
    }

    /// Applies the operation and its fault to the image.
    fn perform(&self, at: u64, len: u64, data: &mut Data, fault: Option<Fault>, digest: u64) -> DiskResult<()> {
        self.world.count_io();
        let rng = &self.world.disk_rng;
        let mut image = self.image.borrow_mut();
        let result = match (&mut *data, fault) {
            (Data::Write(pieces), Some(Fault::Error)) => {
                let tags = self.gather(pieces);
                let landed = draw_landed_len(&tags, rng);
                image.write(at / SECTOR, &tags[..landed]);
                Err(DiskError::Io("injected write error".to_owned()))
            }
            (_, Some(Fault::Error)) => Err(DiskError::Io("injected error".to_owned())),
            (Data::Write(_) | Data::Zero { .. }, Some(Fault::NoSpace)) => Err(DiskError::NoSpace),
            (Data::Write(_) | Data::Zero { .. }, Some(Fault::Lost)) => Ok(()),
            (Data::Read(_), _) if self.world.spec.content == StoredContent::MetadataOnly && image.is_empty() => Ok(()),
            (Data::Read(pieces), fault) => {
                let mut tags = self.scratch.take();
                tags.resize((len / SECTOR) as usize, 0);
                image.read(at / SECTOR, &mut tags);
                if fault == Some(Fault::BitFlip) {
                    self.flip(&mut tags);
                }
                let mut read_bytes = 0;
                for piece in pieces.iter_mut() {
                    let count = piece.len() / SECTOR_BYTES;
                    let first = piece.start() / SECTOR_BYTES;
                    piece.block.set_tags(first, &tags[read_bytes..read_bytes + count]);
                    read_bytes += count;
                }
                self.scratch.replace(tags);
                Ok(())
            }
            (Data::Write(pieces), fault) => {
                let mut tags = self.gather(pieces);
                if super::image::digest(0, &tags) != digest {
                    let message = format!("R1: {at}+{len} changed while {} was writing it", self.name.display());
                    self.world.record_violation(message);
                }
                let mut sector = at / SECTOR;
                match fault {
                    Some(Fault::BitFlip) => self.flip(&mut tags),
                    Some(Fault::Torn) => tags.truncate(rng.below(tags.len() as u64) as usize),
                    Some(Fault::Misdirected) => {
                        let shifted = sector + u64::from(self.geometry.logical_block) / SECTOR;
                        let fits = (shifted + tags.len() as u64) * SECTOR <= self.true_size.get();
                        sector = if fits { shifted } else { sector };
                    }
                    _ => {}
                }
                image.write(sector, &tags);
                self.scratch.replace(tags);
                Ok(())
            }
            (Data::Zero { unmap }, _) => {
                image.zero(at / SECTOR, len / SECTOR, *unmap);
                Ok(())
            }
            (Data::Flush { mark }, fault) => {
                if fault != Some(Fault::FlushLies) {
                    image.flush(*mark);
                }
                Ok(())
            }
        };
        drop(image);
        if result.is_err() {
            self.update_counts(|counts| counts.errors += 1);
        }
        let phase = if result.is_ok() { TracePhase::Done } else { TracePhase::Failed };
        self.world.record(self.number, data.trace_op(), phase, at, len, self.digest(data));
        result
    }

    /// The tags of a write, in the disk's scratch vector. Putting the vector back is optional: it saves an allocation.
    fn gather(&self, pieces: &[Piece<SimBlock>]) -> Vec<u64> {
        let mut tags = self.scratch.take();
        tags.clear();
        for piece in pieces {
            let first = piece.start() / SECTOR_BYTES;
            tags.extend_from_slice(&piece.block.tags()[first..first + piece.len() / SECTOR_BYTES]);
        }
        tags
    }

    fn digest(&self, data: &Data) -> u64 {
        if self.world.spec.content == StoredContent::MetadataOnly {
            return digest(0, &[]);
        }
        let part = |hash, tags: [u64; 8], start: usize, len: usize| {
            digest(hash, &tags[start / SECTOR_BYTES..(start + len) / SECTOR_BYTES])
        };
        match data {
            Data::Read(pieces) => {
                pieces.iter().fold(0, |hash, piece| part(hash, piece.block.tags(), piece.start(), piece.len()))
            }
            Data::Write(pieces) => {
                pieces.iter().fold(0, |hash, piece| part(hash, piece.block.tags(), piece.start(), piece.len()))
            }
            Data::Flush { mark } => *mark,
            Data::Zero { unmap } => u64::from(*unmap),
        }
    }

    fn count(&self, op: Ops, len: u64) {
        self.update_counts(|counts| match op {
            Ops::READ => (counts.reads, counts.read_bytes) = (counts.reads + 1, counts.read_bytes + len),
            Ops::WRITE => (counts.writes, counts.write_bytes) = (counts.writes + 1, counts.write_bytes + len),
            Ops::FLUSH => counts.flushes += 1,
            _ => counts.zeroes += 1,
        });
    }

    fn update_counts(&self, change: impl FnOnce(&mut DiskCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Ends every operation in flight with the result of `end`, which may land a write's data.
    fn end_in_flight(&self, mut end: impl FnMut(&mut Operation) -> DiskResult<()>) {
        let slots = self.operations.borrow().slots.len();
        for slot in 0..slots {
            // Taken out, because landing a write borrows other fields of the disk.
            let taken = self.operations.borrow_mut().slots[slot].take();
            let Some(mut operation) = taken else { continue };
            if operation.result.is_none() {
                operation.result = Some(end(&mut operation));
            }
            let waker = operation.waker.take();
            let mut operations = self.operations.borrow_mut();
            if operation.abandoned {
                operations.free.push(slot as u32);
            } else {
                operations.slots[slot] = Some(operation);
            }
            drop(operations);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) fn vanish(&self) {
        self.vanished.set(true);
        self.end_in_flight(|operation| {
            self.land_part(operation);
            Err(DiskError::Gone)
        });
    }

    pub(super) fn reconnect(&self) {
        self.connection_epoch.set(self.connection_epoch.get() + 1);
        let rng = &self.world.disk_rng;
        let block_sectors = self.physical_block_sectors();
        // Any mode except the first, `Kill`: volatile memory of the other side is lost as in a power cut.
        let mode = CrashMode::ALL[1 + rng.below(CrashMode::ALL.len() as u64 - 1) as usize];
        self.image.borrow_mut().crash(mode, Vec::new(), block_sectors, rng);
        self.end_in_flight(|operation| {
            if rng.coin() {
                self.land_part(operation);
                return Err(DiskError::Io("the connection to the disk was lost".to_owned()));
            }
            let (at, len, fault, digest) = (operation.at, operation.len, operation.fault, operation.digest);
            let data = operation.data.as_mut().expect("an operation without a result still has its data");
            self.perform(at, len, data, fault, digest)
        });
    }

    /// Flips one bit of one sector.
    fn flip(&self, tags: &mut [u64]) {
        let rng = &self.world.disk_rng;
        if !tags.is_empty() {
            let tag = &mut tags[rng.below(tags.len() as u64) as usize];
            *tag = self.world.metadata.flipped(*tag, rng.below(8 * SECTOR) as usize);
        }
    }

    /// Writes the drawn part of an unfinished write to the image.
    fn land_part(&self, operation: &Operation) {
        if let Some(Data::Write(pieces)) = &operation.data {
            let tags = self.gather(pieces);
            let landed = draw_landed_len(&tags, &self.world.disk_rng);
            self.image.borrow_mut().write(operation.at / SECTOR, &tags[..landed]);
        }
    }

    /// Operations submitted and not completed.
    pub(super) fn in_flight(&self) -> usize {
        let operations = self.operations.borrow();
        operations.slots.iter().flatten().filter(|operation| operation.result.is_none()).count()
    }

    fn physical_block_sectors(&self) -> u64 {
        u64::from(self.geometry.physical_block) / SECTOR
    }

    /// Changes the true size; data past a smaller size is lost.
    pub(super) fn resize(&self, size_bytes: u64) {
        if size_bytes < self.true_size.get() {
            self.image.borrow_mut().truncate(size_bytes / SECTOR);
        }
        self.true_size.set(size_bytes);
    }

    /// Ends the world: the image keeps what `mode` lets survive.
    pub(super) fn crash(&self, mode: CrashMode) {
        let changes = self.changes_in_flight();
        self.discard_operations();
        self.image.borrow_mut().crash(mode, changes, self.physical_block_sectors(), &self.world.disk_rng);
    }

    /// The changes of all operations in flight, in order of submission.
    fn changes_in_flight(&self) -> Vec<Change> {
        let operations = self.operations.borrow();
        let mut waiting: Vec<_> =
            operations.slots.iter().flatten().filter(|operation| operation.result.is_none()).collect();
        waiting.sort_by_key(|operation| operation.sequence);
        let changes = waiting.iter().filter_map(|operation| {
            let tags = match operation.data.as_ref()? {
                Data::Write(pieces) => self.gather(pieces),
                Data::Zero { .. } if operation.len <= ZERO_IN_FLIGHT_MAX => vec![0; (operation.len / SECTOR) as usize],
                _ => return None,
            };
            Some(Change { sector: operation.at / SECTOR, tags })
        });
        changes.collect()
    }

    /// The world's table of metadata sectors.
    pub(super) fn metadata(&self) -> &MetadataSectors {
        &self.world.metadata
    }

    /// Drops the operations in flight with their buffers and wakers.
    pub(super) fn discard_operations(&self) {
        drop(self.operations.take());
    }
}

impl Operations {
    fn add(&mut self, mut operation: Operation) -> (u32, u64) {
        self.sequence += 1;
        operation.sequence = self.sequence;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(operation);
                (slot, self.sequence)
            }
            None => {
                self.slots.push(Some(operation));
                (u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations fit in memory"), self.sequence)
            }
        }
    }
}

impl Event for DiskInner {
    fn fire(self: Rc<Self>, token: u64) {
        let slot = (token >> 40) as usize;
        let (at, len, fault, digest, mut data) = {
            let mut operations = self.operations.borrow_mut();
            let Some(Some(operation)) = operations.slots.get_mut(slot) else { return };
            if operation.sequence & ((1 << 40) - 1) != token & ((1 << 40) - 1) || operation.result.is_some() {
                return;
            }
            let data = operation.data.take().expect("an operation without a result still has its data");
            (operation.at, operation.len, operation.fault, operation.digest, data)
        };
        let result = self.perform(at, len, &mut data, fault, digest);
        let mut operations = self.operations.borrow_mut();
        let operation = operations.slots[slot].as_mut().expect("only this event empties a slot without a result");
        let waker = operation.waker.take();
        operation.result = Some(result);
        operation.data = Some(data);
        let abandoned = if operation.abandoned {
            operations.free.push(slot as u32);
            operations.slots[slot].take()
        } else {
            None
        };
        drop(operations);
        drop(abandoned);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Waits for the completion of a submitted operation.
struct Completion<'a> {
    disk: &'a Rc<DiskInner>,
    slot: u32,
    done: bool,
}

impl Future for Completion<'_> {
    type Output = (DiskResult<()>, Data);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self.slot;
        let disk = self.disk;
        let mut operations = disk.operations.borrow_mut();
        let Some(Some(operation)) = operations.slots.get_mut(slot as usize) else {
            // Only the end of the world takes a slot from its waiter.
            return Poll::Pending;
        };
        let Some(result) = operation.result.take() else {
            if operation.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                operation.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        };
        let data = operation.data.take().expect("an ended operation returns its data once");
        operations.slots[slot as usize] = None;
        operations.free.push(slot);
        drop(operations);
        self.done = true;
        Poll::Ready((result, data))
    }
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // The operation completes without its caller and keeps its buffers until then.
        let mut operations = self.disk.operations.borrow_mut();
        let Some(Some(operation)) = operations.slots.get_mut(self.slot as usize) else { return };
        if operation.result.is_none() {
            operation.abandoned = true;
            return;
        }
        let ended = operations.slots[self.slot as usize].take();
        operations.free.push(self.slot);
        drop(operations);
        drop(ended);
    }
}

/// An open simulated disk. A clone is another handle to the same opening.
#[derive(Clone)]
pub struct SimDisk(Rc<DiskHandle>);

struct DiskHandle {
    disk: Rc<DiskInner>,
    read_only: bool,
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        if !self.read_only {
            self.disk.writers.set(self.disk.writers.get() - 1);
        }
    }
}

/// Opens the named disk as described by [`crate::Seam::open_disk`].
pub(super) async fn open(world: &Rc<WorldState>, spec: &DiskOpen) -> DiskResult<SimDisk> {
    let existing_disk = world.disks.borrow().get(&spec.path).cloned();
    let disk = match (existing_disk, spec.create_bytes) {
        (Some(disk), _) => disk,
        (None, Some(size_bytes)) => {
            let disk = DiskInner::new(world, &spec.path, SimDiskSpec::new(size_bytes));
            world.disks.borrow_mut().insert(spec.path.clone(), Rc::clone(&disk));
            disk
        }
        (None, None) => return Err(DiskError::Open(format!("{}: no such simulated disk", spec.path.display()))),
    };
    if !spec.read_only {
        let deadline = world.now() + Nanos::from_millis(spec.lock_wait_ms);
        while disk.writers.get() > 0 {
            if world.now() >= deadline {
                return Err(DiskError::Busy(format!("{} is open", spec.path.display())));
            }
            super::timer::Sleep::new(Rc::clone(world), world.now() + Nanos::from_millis(1)).await;
        }
        disk.writers.set(1);
    }
    Ok(SimDisk(Rc::new(DiskHandle { disk, read_only: spec.read_only })))
}

impl SimDisk {
    fn writable(&self) -> DiskResult<()> {
        if self.0.read_only { Err(DiskError::ReadOnly) } else { Ok(()) }
    }
}

impl Disk<SimSeam> for SimDisk {
    fn geometry(&self) -> Geometry {
        self.0.disk.geometry()
    }

    fn identity(&self) -> String {
        format!("sim:{}", self.0.disk.name.display())
    }

    fn connection_epoch(&self) -> u64 {
        self.0.disk.connection_epoch.get()
    }

    fn lineage(&self) -> Option<Lineage> {
        self.0.disk.lineage.borrow().clone()
    }

    async fn mark_undestaged(&self, is_marked: bool) -> DiskResult<()> {
        let disk = &self.0.disk;
        let fault = disk.faults.borrow_mut().draw_fault(Ops::MARK, 0, 0, disk.world.now(), &disk.world.disk_rng);
        super::timer::Sleep::new(Rc::clone(&disk.world), disk.world.now() + MARK_LATENCY).await;
        match fault {
            None => disk.is_marked.set(is_marked),
            Some(Fault::Error) => return Err(DiskError::Io("injected error of the mark".to_owned())),
            Some(Fault::Hang) => {
                let _pending = disk.pending.begin(disk.world.now());
                std::future::pending::<()>().await;
            }
            Some(other) => panic!("{other:?} is no fault of a mark"),
        }
        Ok(())
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        self.0.disk.pending.oldest_started_at()
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<SimBlockMut>>) -> (DiskResult<()>, Vec<PieceMut<SimBlockMut>>) {
        let len = pieces_len(&into) as u64;
        match self.0.disk.run(at, len, Data::Read(into)).await {
            (result, Data::Read(pieces)) => (result, pieces),
            _ => unreachable!("an operation returns its own kind of data"),
        }
    }

    async fn write(&self, at: u64, from: Vec<Piece<SimBlock>>) -> DiskResult<()> {
        self.writable()?;
        let len = pieces_len(&from) as u64;
        self.0.disk.run(at, len, Data::Write(from)).await.0
    }

    async fn flush(&self) -> DiskResult<()> {
        let mark = self.0.disk.image.borrow().mark();
        self.0.disk.run(0, 0, Data::Flush { mark }).await.0
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        self.writable()?;
        self.0.disk.run(at, len, Data::Zero { unmap: may_unmap }).await.0
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        let disk = &self.0.disk;
        disk.check(at, len)?;
        if disk.vanished.get() {
            return Err(DiskError::Gone);
        }
        let (image, mut sector, end) = (disk.image.borrow(), at / SECTOR, (at + len) / SECTOR);
        let mut runs = Vec::new();
        while sector < end {
            let (count, hole, zero) = image.allocation_run(sector, end - sector);
            runs.push(AllocationExtent { len_bytes: count * SECTOR, hole, zero });
            sector += count;
        }
        Ok(runs)
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        let disk = &self.0.disk;
        disk.size.set(disk.true_size.get());
        Ok(disk.size.get())
    }

    async fn set_size(&self, size_bytes: u64) -> DiskResult<()> {
        self.writable()?;
        let disk = &self.0.disk;
        let block = u64::from(disk.geometry.logical_block);
        assert!(size_bytes.is_multiple_of(block), "a size that is no multiple of the logical block: {size_bytes}");
        disk.resize(size_bytes);
        disk.size.set(size_bytes);
        Ok(())
    }
}
