//! Persisted memory: buffers in a file on tmpfs, which outlives the process. This module defines the file, writes
//! persistence tags to it, and reads the file of a killed process.
//!
//! The file contains a head, a table of notes on runs of blocks, a note for each buffer, and the buffers. A note is
//! valid while its number is not 0. The number is written last and cleared first, so a kill between any two
//! instructions leaves a note complete or absent. (Unlike a power cut, a kill loses no store of the processor.)

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use format_version::{NewerFormat, Release};

use crate::kept::{Left, sort_out};
use crate::{BLOCK_BYTES, BlockNote, RangeKind, RangeNote};

/// Format of the file, in the highest byte of its first word. Format 1 was never released.
const FORMAT: u8 = 2;
/// First word of a file.
const MAGIC: u64 = u64::from_le_bytes([b'h', b'o', b't', b's', b'e', b't', 0, FORMAT]);
const HEAD_BYTES: usize = 4096;
/// Capacity of the table of range notes.
const RANGES_MAX: usize = 1 << 16;
/// Size of a note in bytes.
pub(super) const NOTE_BYTES: usize = 32;
/// Number of buffers that are allocated in the file system together.
const CHUNK_BLOCKS: usize = 2048;
/// Alignment of the first buffer.
const DATA_ALIGN: usize = 2 << 20;
const UNMAP_BIT: u64 = 1 << 63;
const OUTDATED_BIT: u64 = 1 << 62;

/// File of a pool whose buffers outlive the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// Path in a tmpfs.
    pub path: PathBuf,
    /// Distinguishes the file from earlier files at the same path.
    pub id: u64,
}

/// The head of the file.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    id: AtomicU64,
    capacity: AtomicU64,
    /// Not 0 if a range note found no free place.
    refused: AtomicU64,
    /// Number of buffers allocated in the file system. Buffers past them must not be accessed, not even for reading:
    /// reading a hole allocates it.
    given: AtomicU64,
    /// If not 0, the owner whose notes are invalid and being cleared.
    forgetting: AtomicU64,
    /// The first release that can read the file ([`Release::unpack`]), in formats after [`FORMAT`]. This release leaves
    /// it 0.
    _needs: AtomicU64,
}

/// Bytes of the head that are read before the file is mapped.
const HEAD_READ_BYTES: usize = 56;
const _: () = assert!(size_of::<Head>() == HEAD_READ_BYTES);

/// A note on a buffer or on a run of blocks.
#[repr(C)]
struct Words {
    number: AtomicU64,
    owner: AtomicU64,
    /// The block of a buffer, or the first block of a range.
    start: AtomicU64,
    /// The sectors of a buffer, or the end of a range with [`UNMAP_BIT`] or [`OUTDATED_BIT`].
    rest: AtomicU64,
}

impl Words {
    fn put(&self, number: u64, owner: u64, start: u64, rest: u64) {
        self.owner.store(owner, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.rest.store(rest, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.number.store(number, Ordering::Release);
    }

    fn clear(&self) {
        self.number.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }
}

/// Offsets in a file of `capacity` buffers.
#[derive(Clone, Copy)]
struct Layout {
    capacity: usize,
}

impl Layout {
    const RANGES: usize = HEAD_BYTES;
    const NOTES: usize = HEAD_BYTES + RANGES_MAX * NOTE_BYTES;

    fn data(self) -> usize {
        (Self::NOTES + self.capacity * NOTE_BYTES).next_multiple_of(DATA_ALIGN)
    }

    fn len(self) -> usize {
        self.data() + self.capacity * BLOCK_BYTES
    }
}

/// A mapped file.
struct Mapping {
    at: NonNull<u8>,
    layout: Layout,
}

impl Mapping {
    fn new(file: &File, layout: Layout) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address chosen by the kernel; the file has the length of the layout.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                layout.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).expect("the kernel maps nothing at address zero unless asked to");
        Ok(Mapping { at, layout })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, is page-aligned and lives as long as `self`; its words are atomic.
        unsafe { self.at.cast().as_ref() }
    }

    fn words(&self, offset: usize, count: usize) -> &[Words] {
        // SAFETY: callers pass one of the layout's two tables, inside the mapping at a multiple of 32 bytes; words are
        // atomic.
        unsafe { std::slice::from_raw_parts(self.at.add(offset).as_ptr().cast(), count) }
    }

    fn ranges(&self) -> &[Words] {
        self.words(Layout::RANGES, RANGES_MAX)
    }

    /// The notes on the allocated buffers.
    fn notes(&self) -> &[Words] {
        let given = self.head().given.load(Ordering::Acquire) as usize;
        self.words(Layout::NOTES, given.min(self.layout.capacity))
    }

    fn data(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping.
        unsafe { self.at.add(self.layout.data()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`; no pointers into it remain.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.layout.len()) };
    }
}

/// The file of a pool in use.
pub(super) struct Kept {
    map: Mapping,
    file: File,
    last: Cell<u64>,
    /// Places in the range table from here on have never been used.
    fresh: Cell<u32>,
    free: RefCell<Vec<u32>>,
}

impl Kept {
    /// Creates a file for `capacity` buffers.
    pub(super) fn new(kept: &KeptFile, capacity: usize) -> io::Result<Kept> {
        let layout = Layout { capacity };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&kept.path)?;
        let made = file.set_len(layout.len() as u64).and_then(|()| allocate(&file, 0, Layout::NOTES));
        let map =
            made.and_then(|()| Mapping::new(&file, layout)).inspect_err(|_| drop(std::fs::remove_file(&kept.path)))?;
        map.head().id.store(kept.id, Ordering::Relaxed);
        map.head().capacity.store(capacity as u64, Ordering::Relaxed);
        map.head().magic.store(MAGIC, Ordering::Release);
        Ok(Kept { map, file, last: Cell::new(0), fresh: Cell::new(0), free: Default::default() })
    }

    /// Start of the buffers.
    pub(super) fn data(&self) -> NonNull<u8> {
        self.map.data()
    }

    /// True if buffer `index` is allocated, after an attempt to allocate it. A full file system is thus detected here,
    /// and not by a SIGBUS later.
    #[inline]
    pub(super) fn has(&self, index: usize) -> bool {
        index < self.map.notes().len() || self.ask_for_more()
    }

    #[cold]
    fn ask_for_more(&self) -> bool {
        let (from, capacity) = (self.map.notes().len(), self.map.layout.capacity);
        let until = (from + CHUNK_BLOCKS).min(capacity);
        let notes = (Layout::NOTES + from * NOTE_BYTES, (until - from) * NOTE_BYTES);
        let data = (self.map.layout.data() + from * BLOCK_BYTES, (until - from) * BLOCK_BYTES);
        let given = allocate(&self.file, notes.0, notes.1).and_then(|()| allocate(&self.file, data.0, data.1)).is_ok();
        if given {
            self.map.head().given.store(until as u64, Ordering::Release);
        }
        given
    }

    fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    #[inline]
    pub(super) fn note(&self, index: usize, note: BlockNote) -> u64 {
        let words = &self.map.notes()[index];
        let number = words.number();
        if number != 0 {
            // Same block in the same buffer: the added sectors are already in the buffer.
            words.rest.store(u64::from(note.sectors), Ordering::Release);
            return number;
        }
        let number = self.next();
        compiler_fence(Ordering::SeqCst);
        words.put(number, note.owner, note.block, u64::from(note.sectors));
        number
    }

    #[inline]
    pub(super) fn noted(&self, index: usize) -> u64 {
        self.map.notes()[index].number()
    }

    #[inline]
    pub(super) fn forget(&self, index: usize, number: u64) {
        let words = &self.map.notes()[index];
        if words.number() == number {
            words.clear();
        }
    }

    pub(super) fn note_range(&self, note: RangeNote) -> Option<u32> {
        let place = self.free.borrow_mut().pop().or_else(|| {
            let place = self.fresh.get();
            ((place as usize) < RANGES_MAX).then(|| self.fresh.replace(place + 1))
        });
        let Some(place) = place else {
            self.map.head().refused.store(1, Ordering::Release);
            return None;
        };
        let rest = note.end
            | match note.kind {
                RangeKind::Zeroes { may_unmap: false } => 0,
                RangeKind::Zeroes { may_unmap: true } => UNMAP_BIT,
                RangeKind::Outdated => OUTDATED_BIT,
            };
        self.map.ranges()[place as usize].put(self.next(), note.owner, note.start, rest);
        Some(place)
    }

    pub(super) fn forget_range(&self, place: u32) {
        self.map.ranges()[place as usize].clear();
        self.free.borrow_mut().push(place);
    }
}

/// Allocates memory of the file system for a part of the file.
fn allocate(file: &File, at: usize, len: usize) -> io::Result<()> {
    // SAFETY: a system call on an open file.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, at as libc::off_t, len as libc::off_t) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Free bytes of the directory's file system; `None` if it is not a tmpfs.
pub fn room_in_memory(directory: &Path) -> io::Result<Option<u64>> {
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: zeroes are a valid value of this plain structure; the call fills it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a zero-terminated path, and room for the result.
    if unsafe { libc::statfs(path.as_ptr(), &mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The type is signed in one C library and unsigned in another.
    let is_memory = libc::TMPFS_MAGIC == about.f_type as _;
    Ok(is_memory.then(|| about.f_bavail.saturating_mul(about.f_bsize as u64)))
}

/// Reason why the file of a killed process cannot be read, although it may hold content.
#[derive(Debug, thiserror::Error)]
pub enum LeftBehindError {
    /// The file has a later format.
    #[error("it was {0}")]
    Newer(NewerFormat),
    /// The first word is of no known format.
    #[error("it does not begin as a file of Hotset does")]
    Foreign,
    /// A call of the operating system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The persisted memory of a killed process.
pub struct LeftBehind {
    map: Mapping,
    kept: KeptFile,
    left: RefCell<BTreeMap<u64, Left>>,
}

impl LeftBehind {
    /// Reads the file; `None` if it is missing (the machine has restarted) or belongs to another user or pool.
    pub fn open(kept: &KeptFile) -> Result<Option<LeftBehind>, LeftBehindError> {
        // After a restart of the machine, any user may create a file of that name: only this user's file is opened.
        // SAFETY: a call without arguments that cannot fail.
        let user = unsafe { libc::geteuid() };
        match std::fs::symlink_metadata(&kept.path) {
            Ok(about) if about.is_file() && about.uid() == user => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&kept.path)?;
        let mut head = [0; HEAD_READ_BYTES];
        if file.read_exact_at(&mut head, 0).is_err() {
            return Ok(None);
        }
        let word = |at: usize| u64::from_le_bytes(head[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        // Its creator was killed before it wrote the head.
        if word(0) == 0 {
            return Ok(None);
        }
        if word(0) != MAGIC {
            let [name @ .., found] = word(0).to_le_bytes();
            if !MAGIC.to_le_bytes().starts_with(&name) || found < FORMAT {
                return Err(LeftBehindError::Foreign);
            }
            return Err(LeftBehindError::Newer(NewerFormat::of_format(found, FORMAT, Release::unpack(word(6)))));
        }
        let layout = Layout { capacity: word(2) as usize };
        let len = file.metadata()?.len();
        if word(1) != kept.id || layout.capacity as u64 > len / BLOCK_BYTES as u64 || len != layout.len() as u64 {
            return Ok(None);
        }
        let map = Mapping::new(&file, layout)?;
        let left = LeftBehind { map, kept: kept.clone(), left: RefCell::default() };
        left.go_on_forgetting();
        *left.left.borrow_mut() = left.sorted();
        Ok(Some(left))
    }

    fn sorted(&self) -> BTreeMap<u64, Left> {
        let of = |words: &Words| {
            let [owner, start, rest] =
                [&words.owner, &words.start, &words.rest].map(|word| word.load(Ordering::Relaxed));
            (words.number(), owner, start, rest)
        };
        let ranges = self.map.ranges().iter().map(of).filter(|(number, ..)| *number != 0);
        let ranges = ranges.map(|(number, owner, start, rest)| {
            let kind = match rest & OUTDATED_BIT {
                0 => RangeKind::Zeroes { may_unmap: rest & UNMAP_BIT != 0 },
                _ => RangeKind::Outdated,
            };
            (number, RangeNote { owner, start, end: rest & !(UNMAP_BIT | OUTDATED_BIT), kind })
        });
        let ranges: Vec<_> = ranges.collect();
        let blocks = self.map.notes().iter().map(of).enumerate().filter(|(_, (number, ..))| *number != 0);
        let (places, blocks): (Vec<usize>, Vec<_>) = blocks
            .map(|(place, (number, owner, block, rest))| {
                (place, (number, BlockNote { owner, block, sectors: rest as u8 }))
            })
            .unzip();
        let mut left = sort_out(&blocks, &ranges);
        for (_, place) in left.values_mut().flat_map(|left| &mut left.blocks) {
            *place = places[*place];
        }
        left
    }

    /// False if a range note found no free place: the image is incomplete.
    pub fn is_whole(&self) -> bool {
        self.map.head().refused.load(Ordering::Relaxed) == 0
    }

    /// The owners that have notes.
    pub fn owners(&self) -> Vec<u64> {
        self.left.borrow().keys().copied().collect()
    }

    /// The valid notes of `owner`.
    pub fn of(&self, owner: u64) -> Option<Left> {
        self.left.borrow().get(&owner).cloned()
    }

    /// Content of the buffer at index `place`.
    pub fn content(&self, place: usize) -> &[u8] {
        assert!(place < self.map.layout.capacity, "a place that was named by what is left");
        // SAFETY: inside the mapping, and the process that wrote the buffer has ended.
        unsafe { std::slice::from_raw_parts(self.map.data().add(place * BLOCK_BYTES).as_ptr(), BLOCK_BYTES) }
    }

    /// Removes the notes of `owner` after recovery or rejection. The removal is atomic: after a kill during it, the
    /// next open completes it.
    pub fn forget(&self, owner: u64) {
        self.left.borrow_mut().remove(&owner);
        self.map.head().forgetting.store(owner, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.go_on_forgetting();
    }

    fn go_on_forgetting(&self) {
        let forgetting = &self.map.head().forgetting;
        let owner = forgetting.load(Ordering::Acquire);
        if owner == 0 {
            return;
        }
        let all = self.map.ranges().iter().chain(self.map.notes());
        all.filter(|words| words.number() != 0 && words.owner.load(Ordering::Relaxed) == owner).for_each(Words::clear);
        forgetting.store(0, Ordering::Release);
    }

    /// Path and identity of the file.
    pub fn file(&self) -> &KeptFile {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> KeptFile {
        KeptFile { path: std::env::temp_dir().join(format!("hotset-kept-{name}-{}", std::process::id())), id: 7 }
    }

    #[test]
    fn notes_are_recovered_by_owner_until_forgotten() {
        let at = place("noted");
        let kept = Kept::new(&at, 100).expect("a new file");
        assert!(Kept::new(&at, 100).is_err(), "it is there already");
        let note = |block| BlockNote { owner: 5, block, sectors: 0x0f };
        for (index, block) in [(3, 40), (4, 41), (5, 42)] {
            assert!(kept.has(index));
            // SAFETY: inside the mapping.
            unsafe { kept.data().add(index * BLOCK_BYTES).write_bytes(block as u8, BLOCK_BYTES) };
            kept.note(index, note(block));
        }
        let number = kept.noted(4);
        assert_eq!(kept.note(4, BlockNote { sectors: 0xff, ..note(41) }), number, "it grew");
        kept.forget(5, number);
        kept.forget(3, kept.noted(3));
        let kind = |start| match start {
            8 => RangeKind::Outdated,
            start => RangeKind::Zeroes { may_unmap: start == 7 },
        };
        let range = |start, end| RangeNote { owner: 6, start, end, kind: kind(start) };
        let first = kept.note_range(range(1, 2)).expect("room");
        kept.note_range(range(7, 9)).expect("room");
        kept.note_range(range(8, 1 << 34)).expect("room");
        kept.forget_range(first);
        drop(kept);
        assert!(LeftBehind::open(&KeptFile { id: 8, ..at.clone() }).expect("readable").is_none());
        let left = LeftBehind::open(&at).expect("readable").expect("the same");
        assert_eq!((left.owners(), left.is_whole()), (vec![5, 6], true));
        let ranges = left.of(6).expect("noted");
        assert_eq!((ranges.zeroes, ranges.outdated), (vec![range(7, 9)], vec![range(8, 1 << 34)]));
        let blocks = left.of(5).expect("noted").blocks.clone();
        assert_eq!(blocks, [(BlockNote { sectors: 0xff, ..note(41) }, 4), (note(42), 5)]);
        assert_eq!((left.content(4)[9], left.content(5)[4095]), (41, 42));
        // Killed during the removal: a recovered owner must not be found in part.
        left.map.head().forgetting.store(5, Ordering::Release);
        left.map.notes()[4].clear();
        drop(left);
        let left = LeftBehind::open(&at).expect("readable").expect("the same");
        assert_eq!(left.owners(), [6]);
        left.forget(6);
        drop(left);
        let left = LeftBehind::open(&at).expect("readable").expect("the same");
        assert!(left.owners().is_empty());
        std::fs::remove_file(&at.path).expect("it is there");
        assert!(LeftBehind::open(&at).expect("gone").is_none());
    }

    /// Reading a hole of a mapped file kills the process if the file system is full.
    #[test]
    fn unallocated_parts_of_the_file_are_not_touched() {
        let at = KeptFile { path: format!("/dev/shm/hotset-kept-given-{}", std::process::id()).into(), id: 7 };
        let kept = Kept::new(&at, 10 * CHUNK_BLOCKS * BLOCK_BYTES / NOTE_BYTES).expect("a new file");
        assert!(kept.has(3));
        kept.note(3, BlockNote { owner: 5, block: 9, sectors: 1 });
        let blocks = || std::fs::metadata(&at.path).expect("it is there").blocks();
        let given = blocks();
        let left = LeftBehind::open(&at).expect("readable").expect("the same");
        assert_eq!(left.owners(), [5]);
        left.forget(5);
        let after = blocks();
        std::fs::remove_file(&at.path).expect("it is there");
        assert_eq!(after, given);
    }

    #[test]
    fn file_of_another_format_is_foreign_and_one_without_head_is_none() {
        let at = place("strange");
        std::fs::write(&at.path, [1; HEAD_BYTES]).expect("written");
        assert!(matches!(LeftBehind::open(&at), Err(LeftBehindError::Foreign)));
        std::fs::write(&at.path, [0; HEAD_BYTES]).expect("written");
        assert!(LeftBehind::open(&at).expect("readable").is_none());
        std::fs::remove_file(&at.path).expect("it is there");
        std::os::unix::fs::symlink("/dev/zero", &at.path).expect("a link");
        assert!(LeftBehind::open(&at).expect("not looked at").is_none());
        std::fs::remove_file(&at.path).expect("it is there");
    }

    /// A file with blocks of two volumes, zero-ranges and an outdated range.
    fn write_golden(at: &KeptFile) -> Vec<u8> {
        let kept = Kept::new(at, 100).expect("a new file");
        let notes = [(0, 5, 40, 0xff), (3, 5, 41, 0x0f), (99, 6, 1 << 40, 0x80)];
        for (index, owner, block, sectors) in notes {
            assert!(kept.has(index));
            // SAFETY: inside the mapping.
            unsafe { kept.data().add(index * BLOCK_BYTES).write_bytes(index as u8 + 1, BLOCK_BYTES) };
            kept.note(index, BlockNote { owner, block, sectors });
        }
        assert!(golden_ranges().into_iter().all(|range| kept.note_range(range).is_some()), "there is room");
        drop(kept);
        let bytes = std::fs::read(&at.path).expect("it was just made");
        std::fs::remove_file(&at.path).expect("it was just made");
        bytes
    }

    fn golden_ranges() -> [RangeNote; 3] {
        let range = |start, end, kind| RangeNote { owner: 6, start, end, kind };
        [
            range(7, 9, RangeKind::Zeroes { may_unmap: true }),
            range(20, 1 << 34, RangeKind::Zeroes { may_unmap: false }),
            range(100, 200, RangeKind::Outdated),
        ]
    }

    #[test]
    fn golden_files_of_persisted_memory_are_recovered() {
        let at = place("golden");
        for golden in golden::files("kept-memory.zst", || write_golden(&at)) {
            std::fs::write(&at.path, &golden.bytes).expect("written");
            let left = LeftBehind::open(&at).expect("readable").expect("the same");
            std::fs::remove_file(&at.path).expect("it was written");
            let release = golden.release;
            assert_eq!((left.owners(), left.is_whole()), (vec![5, 6], true), "written by {release}");
            let note = |owner, block, sectors| BlockNote { owner, block, sectors };
            let first = Left { blocks: vec![(note(5, 40, 0xff), 0), (note(5, 41, 0x0f), 3)], ..Left::default() };
            assert_eq!(left.of(5), Some(first), "written by {release}");
            let [small, large, outdated] = golden_ranges();
            let second = Left {
                outdated: vec![outdated],
                zeroes: vec![small, large],
                blocks: vec![(note(6, 1 << 40, 0x80), 99)],
            };
            assert_eq!(left.of(6), Some(second), "written by {release}");
            for place in [0, 3, 99] {
                assert!(left.content(place).iter().all(|byte| *byte == place as u8 + 1), "written by {release}");
            }
        }
    }

    #[test]
    fn newer_file_is_refused_by_its_format_and_stays_unchanged() {
        let at = place("newer");
        let mut bytes = write_golden(&at);
        bytes[7] = FORMAT + 1;
        for (needs, least) in [(0, "a version that reads format 3"), (0x0001_0004_0002_u64, "Hotset 1.4.2")] {
            bytes[48..56].copy_from_slice(&needs.to_le_bytes());
            std::fs::write(&at.path, &bytes).expect("written");
            let refused = LeftBehind::open(&at).err().expect("a later format").to_string();
            let expected =
                "it was written by a newer version of Hotset (format 3, this one reads up to 2); needs at least";
            assert_eq!(refused, format!("{expected} {least}"));
            assert!(std::fs::read(&at.path).expect("it is there") == bytes);
        }
        std::fs::remove_file(&at.path).expect("it is there");
    }

    #[test]
    fn refused_range_note_is_reported() {
        let at = place("refused");
        let kept = Kept::new(&at, 1).expect("a new file");
        let range = RangeNote { owner: 6, start: 1, end: 2, kind: RangeKind::Outdated };
        assert!((0..RANGES_MAX).all(|_| kept.note_range(range).is_some()));
        assert!(kept.note_range(range).is_none());
        kept.forget_range(9);
        assert_eq!(kept.note_range(range), Some(9));
        let left = LeftBehind::open(&at).expect("readable").expect("the same");
        std::fs::remove_file(&at.path).expect("it is there");
        assert!(!left.is_whole());
    }
}
