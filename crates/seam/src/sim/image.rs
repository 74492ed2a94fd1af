//! Content of a simulated disk: the newest data, and a journal that can undo unflushed writes.
//!
//! Content is stored in a map of 64 KiB chunks, each with 128 tags; unwritten chunks are absent. (Run-length extents
//! would be smaller for long sequential writes. But torture writes a few random sectors at a time, where extents split
//! down to sectors anyway and each look-up walks a tree; a chunk is one hash and an array.)
//!
//! A journal holds the completed and unflushed writes with the tags that each replaced. A flush clears the journal. A
//! crash undoes all of it and applies again the changes that survive in the crash's mode.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::disk::DiskInner;
use super::disk_spec::SimDiskSpec;
use super::metadata_sectors::MetadataSectors;
use super::world::World;
use crate::rng::{Rng, mix};

/// Bytes in a chunk.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;
/// Sectors in a chunk.
const CHUNK_SECTORS: u64 = CHUNK_BYTES / crate::SECTOR_BYTES as u64;

/// Survival of unflushed writes, completed or in flight, in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// Process killed: completed writes stay (unflushed), and any part of the writes in flight may still land.
    Kill,
    /// Power cut: nothing unflushed survives.
    LoseAll,
    /// Power cut: everything survives, including writes in flight.
    KeepAll,
    /// Power cut: the oldest ones survive, the rest is lost.
    Prefix,
    /// Power cut: each write survives completely or not at all.
    Subset,
    /// Power cut: the disk had reordered the writes and reached some point of that order.
    Reordered,
    /// Power cut: the oldest ones survive, the next one is torn at any boundary of the physical block.
    Torn,
    /// Power cut: each physical block of each write survives or is lost.
    Scattered,
    /// One of the above, drawn from the seed.
    Any,
}

impl CrashMode {
    /// All definite modes, for a random draw.
    pub const ALL: [CrashMode; 8] = [
        CrashMode::Kill,
        CrashMode::LoseAll,
        CrashMode::KeepAll,
        CrashMode::Prefix,
        CrashMode::Subset,
        CrashMode::Reordered,
        CrashMode::Torn,
        CrashMode::Scattered,
    ];
}

/// New content of some sectors: one write, or one chunk's part of a zero-range.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) sector: u64,
    pub(super) tags: Vec<u64>,
}

/// A completed and unflushed change.
#[derive(Clone)]
struct Entry {
    sector: u64,
    len: usize,
    /// Index of the old tags in `Journal::tags`; the new tags follow them.
    start: usize,
    sequence: u64,
}

#[derive(Clone, Default)]
struct Journal {
    entries: Vec<Entry>,
    tags: Vec<u64>,
    sequence: u64,
}

/// A disk's content.
#[derive(Clone)]
pub(super) struct Image {
    /// Chunks, shared with snapshots and copied on write.
    chunks: FxHashMap<u64, Rc<[u64; CHUNK_SECTORS as usize]>>,
    journal: Journal,
    /// False if writes are durable on completion.
    volatile: bool,
    /// If false, only chunks that are not all zero are kept, and there is no journal.
    keeps_content: bool,
}

impl Image {
    pub(super) fn new(volatile: bool, keeps_content: bool) -> Image {
        Image {
            chunks: FxHashMap::default(),
            journal: Journal::default(),
            volatile: volatile && keeps_content,
            keeps_content,
        }
    }

    /// Copies the tags from `sector` on.
    pub(super) fn read(&self, sector: u64, out: &mut [u64]) {
        for_chunks(sector, out.len(), |chunk, at, range| match self.chunks.get(&chunk) {
            Some(tags) => out[range.clone()].copy_from_slice(&tags[at..at + range.len()]),
            None => out[range].fill(0),
        });
    }

    /// True if no chunk is allocated.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Writes the tags from `sector` on.
    pub(super) fn write(&mut self, sector: u64, tags: &[u64]) {
        if self.volatile {
            let start = self.journal.tags.len();
            self.journal.tags.resize(start + tags.len(), 0);
            let mut old = std::mem::take(&mut self.journal.tags);
            self.read(sector, &mut old[start..]);
            old.extend_from_slice(tags);
            self.journal.tags = old;
            self.journal.sequence += 1;
            let entry = Entry { sector, len: tags.len(), start, sequence: self.journal.sequence };
            self.journal.entries.push(entry);
        }
        self.store(sector, tags);
    }

    /// Zeroes `count` sectors; whole chunks become holes if `unmap`. Unallocated chunks do not change.
    pub(super) fn zero(&mut self, sector: u64, count: u64, unmap: bool) {
        let mut at = sector;
        while at < sector + count && !self.is_empty() {
            let (chunk, within_chunk) = (at / CHUNK_SECTORS, at % CHUNK_SECTORS);
            let len = (CHUNK_SECTORS - within_chunk).min(sector + count - at);
            if self.chunks.contains_key(&chunk) {
                self.write(at, &[0; CHUNK_SECTORS as usize][..len as usize]);
                if unmap && len == CHUNK_SECTORS {
                    self.chunks.remove(&chunk);
                }
            }
            at += len;
        }
    }

    /// The run of sectors from `sector` on, at most `count`, with one allocation status: (sectors, hole, zero).
    pub(super) fn allocation_run(&self, sector: u64, count: u64) -> (u64, bool, bool) {
        if !self.keeps_content {
            return (count, false, false);
        }
        let status = |sector: u64| match self.chunks.get(&(sector / CHUNK_SECTORS)) {
            Some(tags) => (false, tags[(sector % CHUNK_SECTORS) as usize] == 0),
            None => (true, true),
        };
        let first = status(sector);
        let mut len = 1;
        while len < count && status(sector + len) == first {
            // A hole extends to the end of its chunk.
            let next = if first.0 { CHUNK_SECTORS - (sector + len) % CHUNK_SECTORS } else { 1 };
            len += next.min(count - len);
        }
        (len, first.0, first.1)
    }

    /// A mark for [`Image::flush`] that covers all writes so far.
    pub(super) fn mark(&self) -> u64 {
        self.journal.sequence
    }

    /// Makes the writes up to `mark` durable.
    pub(super) fn flush(&mut self, mark: u64) {
        let journal = &mut self.journal;
        let durable_entries = journal.entries.partition_point(|entry| entry.sequence <= mark);
        if durable_entries == journal.entries.len() {
            journal.entries.clear();
            journal.tags.clear();
        } else if durable_entries > 0 {
            let start = journal.entries[durable_entries].start;
            journal.entries.drain(..durable_entries);
            journal.tags.drain(..start);
            journal.entries.iter_mut().for_each(|entry| entry.start -= start);
        }
    }

    /// Writes completed and not flushed.
    pub(super) fn unflushed(&self) -> usize {
        self.journal.entries.len()
    }

    /// Content of `sector` if no unflushed write survives.
    pub(super) fn durable_tag(&self, sector: u64) -> u64 {
        let covers = |entry: &&Entry| (entry.sector..entry.sector + entry.len as u64).contains(&sector);
        match self.journal.entries.iter().find(covers) {
            Some(entry) => self.journal.tags[entry.start + (sector - entry.sector) as usize],
            None => {
                let mut tag = [0];
                self.read(sector, &mut tag);
                tag[0]
            }
        }
    }

    /// Discards everything from `sector` on.
    pub(super) fn truncate(&mut self, sector: u64) {
        let end_chunk = sector.div_ceil(CHUNK_SECTORS);
        self.chunks.retain(|chunk, _| *chunk < end_chunk);
        if !sector.is_multiple_of(CHUNK_SECTORS)
            && let Some(tags) = self.chunks.get_mut(&(sector / CHUNK_SECTORS))
        {
            Rc::make_mut(tags)[(sector % CHUNK_SECTORS) as usize..].fill(0);
        }
        // A crash must not bring back data past the end, so entries there count as flushed.
        self.journal.entries.retain_mut(|entry| {
            // The new tags follow the old ones at a distance of the full length, so an entry across the end is dropped
            // instead of cut.
            entry.sector + entry.len as u64 <= sector
        });
    }

    /// Applies a crash. `in_flight` are submitted and uncompleted changes; `unit` is the number of sectors that are
    /// written completely or not at all.
    pub(super) fn crash(&mut self, mode: CrashMode, in_flight: Vec<Change>, unit: u64, rng: &Rng) {
        let mode = match mode {
            CrashMode::Any => CrashMode::ALL[rng.below(CrashMode::ALL.len() as u64) as usize],
            definite => definite,
        };
        if mode == CrashMode::Kill {
            let scatter_change = |change| scatter(change, unit, rng);
            in_flight.into_iter().flat_map(scatter_change).for_each(|part| self.write(part.sector, &part.tags));
            return;
        }
        let mut changes = self.undo_all();
        let completed = changes.len();
        changes.extend(in_flight);
        if mode == CrashMode::Reordered {
            rng.shuffle(&mut changes);
        }
        // Number of changes that survive, in order.
        let count = match mode {
            CrashMode::LoseAll => 0,
            CrashMode::Prefix | CrashMode::Torn => rng.below(completed as u64 + 1) as usize,
            CrashMode::Reordered => rng.below(changes.len() as u64 + 1) as usize,
            _ => changes.len(),
        };
        let torn = changes.get(count).filter(|_| mode == CrashMode::Torn).map(|change| tear(change, unit, rng));
        changes.truncate(count);
        for change in changes {
            match mode {
                CrashMode::Subset if rng.coin() => continue,
                CrashMode::Scattered => {
                    scatter(change, unit, rng).into_iter().for_each(|part| self.store(part.sector, &part.tags));
                }
                _ => self.store(change.sector, &change.tags),
            }
        }
        if let Some(part) = torn {
            self.store(part.sector, &part.tags);
        }
    }

    /// Undoes the unflushed changes and returns them, oldest first.
    pub(super) fn undo_all(&mut self) -> Vec<Change> {
        let journal = std::mem::take(&mut self.journal);
        self.journal.sequence = journal.sequence;
        for entry in journal.entries.iter().rev() {
            self.store(entry.sector, &journal.tags[entry.start..entry.start + entry.len]);
        }
        let new = |entry: &Entry| {
            let start = entry.start + entry.len;
            Change { sector: entry.sector, tags: journal.tags[start..start + entry.len].to_vec() }
        };
        journal.entries.iter().map(new).collect()
    }

    /// Stores tags as durable content.
    pub(super) fn store(&mut self, sector: u64, tags: &[u64]) {
        for_chunks(sector, tags.len(), |chunk, at, range| {
            let tags = &tags[range];
            if !self.keeps_content && !self.chunks.contains_key(&chunk) && tags.iter().all(|tag| *tag == 0) {
                return;
            }
            let to = self.chunks.entry(chunk).or_insert_with(|| Rc::new([0; CHUNK_SECTORS as usize]));
            Rc::make_mut(to)[at..at + tags.len()].copy_from_slice(tags);
        });
    }
}

/// The leading or trailing part of a change that landed before the power cut.
fn tear(change: &Change, unit: u64, rng: &Rng) -> Change {
    let len = change.tags.len() as u64;
    // Boundaries of physical blocks lie at multiples of the disk's sectors, not the write's.
    let first = change.sector.next_multiple_of(unit) - change.sector;
    let boundary_count = if first > len { 0 } else { (len - first) / unit + 1 };
    let boundary = if boundary_count == 0 { 0 } else { (first + rng.below(boundary_count) * unit) as usize };
    if rng.coin() {
        Change { sector: change.sector, tags: change.tags[..boundary].to_vec() }
    } else {
        Change { sector: change.sector + boundary as u64, tags: change.tags[boundary..].to_vec() }
    }
}

/// Keeps or drops each physical block of a change at random.
fn scatter(change: Change, unit: u64, rng: &Rng) -> Vec<Change> {
    let mut parts = Vec::new();
    let mut covered = 0;
    while covered < change.tags.len() {
        let sector = change.sector + covered as u64;
        let len = ((unit - sector % unit) as usize).min(change.tags.len() - covered);
        if rng.coin() {
            parts.push(Change { sector, tags: change.tags[covered..covered + len].to_vec() });
        }
        covered += len;
    }
    parts
}

/// Draws how many leading sectors of a failed write have landed: none, all, or some.
pub(super) fn draw_landed_len(change: &[u64], rng: &Rng) -> usize {
    match rng.below(3) {
        0 => 0,
        1 => change.len(),
        _ => rng.below(change.len() as u64 + 1) as usize,
    }
}

/// A digest of content, for the trace and for the detection of changes.
pub(super) fn digest(hash: u64, tags: &[u64]) -> u64 {
    tags.iter().fold(hash, |hash, tag| mix(hash ^ tag).wrapping_add(1))
}

/// Splits `len` sectors from `sector` on at chunk boundaries: (chunk, first sector within it, range of the whole).
fn for_chunks(sector: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut covered = 0;
    while covered < len {
        let (chunk, at) =
            ((sector + covered as u64) / CHUNK_SECTORS, ((sector + covered as u64) % CHUNK_SECTORS) as usize);
        let count = (CHUNK_SECTORS as usize - at).min(len - covered);
        visit(chunk, at, covered..covered + count);
        covered += count;
    }
}

/// A disk that outlives its world, for the next one.
#[derive(Clone)]
pub(super) struct StoredDisk {
    pub(super) spec: SimDiskSpec,
    pub(super) connection_epoch: u64,
    pub(super) is_marked: bool,
    pub(super) image: Image,
}

/// The disks of an ended world, for the next one. A copy shares its chunks with the original.
#[derive(Clone, Default)]
pub struct DiskImages {
    pub(super) disks: BTreeMap<PathBuf, StoredDisk>,
    pub(super) metadata: Rc<MetadataSectors>,
}

impl DiskImages {
    /// Removes a disk, which is then missing in the next world.
    pub fn remove(&mut self, name: impl AsRef<Path>) -> bool {
        self.disks.remove(name.as_ref()).is_some()
    }

    /// Replaces disk `name` by a copy of disk `from` in other images; both must descend from the same worlds.
    pub fn put(&mut self, name: impl AsRef<Path>, other: &DiskImages, from: impl AsRef<Path>) {
        if let Some(stored) = other.disks.get(from.as_ref()) {
            self.disks.insert(name.as_ref().to_owned(), stored.clone());
        }
    }

    /// Makes a disk empty.
    pub fn empty(&mut self, name: impl AsRef<Path>) {
        if let Some(stored) = self.disks.get_mut(name.as_ref()) {
            stored.image = Image::new(stored.image.volatile, true);
        }
    }

    /// A disk's size in bytes.
    pub fn size_bytes(&self, name: impl AsRef<Path>) -> Option<u64> {
        self.disks.get(name.as_ref()).map(|stored| stored.spec.geometry.size_bytes)
    }

    /// Changes a disk's size; data past a smaller size is lost.
    pub fn resize(&mut self, name: impl AsRef<Path>, size_bytes: u64) {
        if let Some(stored) = self.disks.get_mut(name.as_ref()) {
            let sector = crate::SECTOR_BYTES as u64;
            let (old, new) = (stored.spec.geometry.size_bytes / sector, size_bytes / sector);
            if new < old {
                stored.image.zero(new, old - new, true);
            }
            stored.spec.geometry.size_bytes = size_bytes;
        }
    }

    /// Content of a disk from `sector` on.
    pub fn tags(&self, name: impl AsRef<Path>, sector: u64, out: &mut [u64]) {
        if let Some(stored) = self.disks.get(name.as_ref()) {
            stored.image.read(sector, out);
        }
    }
}

impl World {
    /// Ends the world: tasks are dropped, and the disks keep the unflushed data that `mode` lets survive.
    pub fn crash(self, mode: CrashMode) -> DiskImages {
        self.end();
        let disks = std::mem::take(&mut *self.shared.disks.borrow_mut());
        disks.values().for_each(|disk| disk.crash(mode));
        let disks = disks.into_iter().map(|(name, disk)| (name, disk.take_stored_disk())).collect();
        DiskImages { disks, metadata: Rc::clone(&self.shared.metadata) }
    }

    /// Adds the disks of another world to this one. Faults are not carried over.
    pub fn adopt(&self, images: DiskImages) {
        self.shared.metadata.adopt(images.metadata);
        let mut disks = self.shared.disks.borrow_mut();
        for (name, stored) in images.disks {
            let adopted = DiskInner::restore(&self.shared, &name, stored);
            assert!(disks.insert(name, adopted).is_none(), "two disks of one name");
        }
    }
}
