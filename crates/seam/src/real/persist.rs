//! Persisted memory: buffers in a file on tmpfs, which outlives the process. This module defines the file, writes
//! persistence tags to it, and reads the file of a killed process.
//!
//! The file contains a head, a table of tags on runs of blocks, a tag for each buffer, and the buffers. A tag is
//! valid while its number is not 0. The number is written last and cleared first, so a kill between any two
//! instructions leaves a tag complete or absent. (Unlike a power cut, a kill loses no store of the processor.)

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

use super::huge_pages::{HUGE_PAGE_BYTES, HugeMapping};
use crate::persist::{ShmImage, resolve_tags};
use crate::{BLOCK_BYTES, BlockTag, RangeKind, RangeTag};

/// Format of the file, in the highest byte of its first word. Format 1 was never released.
const FORMAT: u8 = 2;
/// First word of a file.
const MAGIC: u64 = u64::from_le_bytes([b'h', b'o', b't', b's', b'e', b't', 0, FORMAT]);
const HEAD_BYTES: usize = 4096;
/// Capacity of the table of range tags.
const RANGES_MAX: usize = 1 << 16;
/// Size of a tag in bytes.
pub(super) const TAG_BYTES: usize = 32;
/// Number of buffers that are allocated in the file system together.
const CHUNK_BLOCKS: usize = 2048;
/// Alignment of the first buffer.
const DATA_ALIGN: usize = 2 << 20;
const _: () = assert!(DATA_ALIGN.is_multiple_of(HUGE_PAGE_BYTES));
const UNMAP_BIT: u64 = 1 << 63;
const OUTDATED_BIT: u64 = 1 << 62;

/// File of a pool whose buffers outlive the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistFile {
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
    /// Not 0 if a range tag was rejected because the table was full.
    overflowed: AtomicU64,
    /// Number of buffers that have memory of the file system. Other buffers must not be accessed, not even for reading:
    /// reading a hole allocates memory.
    allocated: AtomicU64,
    /// If not 0, the volume whose tags are invalid and being cleared.
    removing_volume: AtomicU64,
    /// The first release that can read the file ([`Release::unpack`]), in formats after [`FORMAT`]. This release leaves
    /// it 0.
    _needs: AtomicU64,
}

/// Bytes of the head that are read before the file is mapped.
const HEAD_READ_BYTES: usize = 56;
const _: () = assert!(size_of::<Head>() == HEAD_READ_BYTES);

/// A tag on a buffer or on a run of blocks.
#[repr(C)]
struct TagWords {
    number: AtomicU64,
    volume_id: AtomicU64,
    /// The block of a buffer, or the first block of a range.
    start: AtomicU64,
    /// The sectors of a buffer, or the end of a range with [`UNMAP_BIT`] or [`OUTDATED_BIT`].
    details: AtomicU64,
}

impl TagWords {
    fn store(&self, number: u64, volume_id: u64, start: u64, details: u64) {
        self.volume_id.store(volume_id, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.details.store(details, Ordering::Relaxed);
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
    const TAGS: usize = HEAD_BYTES + RANGES_MAX * TAG_BYTES;

    fn data(self) -> usize {
        (Self::TAGS + self.capacity * TAG_BYTES).next_multiple_of(DATA_ALIGN)
    }

    fn len(self) -> usize {
        self.data() + self.capacity * BLOCK_BYTES
    }
}

/// A mapped file.
struct Mapping {
    pages: HugeMapping,
    layout: Layout,
}

impl Mapping {
    /// Maps a file that has the length of the layout.
    fn new(file: &File, layout: Layout) -> io::Result<Mapping> {
        Ok(Mapping { pages: HugeMapping::new(file, layout.len())?, layout })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, is page-aligned and lives as long as `self`; its words are atomic.
        unsafe { self.pages.data().cast().as_ref() }
    }

    fn tag_table(&self, offset: usize, count: usize) -> &[TagWords] {
        // SAFETY: callers pass one of the layout's two tables, inside the mapping at a multiple of 32 bytes; words are
        // atomic.
        unsafe { std::slice::from_raw_parts(self.pages.data().add(offset).as_ptr().cast(), count) }
    }

    fn ranges(&self) -> &[TagWords] {
        self.tag_table(Layout::RANGES, RANGES_MAX)
    }

    /// The tags on the allocated buffers.
    fn tags(&self) -> &[TagWords] {
        let allocated = self.head().allocated.load(Ordering::Acquire) as usize;
        self.tag_table(Layout::TAGS, allocated.min(self.layout.capacity))
    }

    fn data(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping.
        unsafe { self.pages.data().add(self.layout.data()) }
    }
}

/// The file of a pool in use.
pub(super) struct PoolFile {
    map: Mapping,
    file: File,
    /// Number of the last tag.
    last_number: Cell<u64>,
    /// Entries of the range table from this index on have never been used.
    next_unused: Cell<u32>,
    /// Entries of the range table that are free again.
    free: RefCell<Vec<u32>>,
}

impl PoolFile {
    /// Creates a file for `capacity` buffers.
    pub(super) fn new(spec: &PersistFile, capacity: usize) -> io::Result<PoolFile> {
        let layout = Layout { capacity };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&spec.path)?;
        let sized = file.set_len(layout.len() as u64).and_then(|()| allocate(&file, 0, Layout::TAGS));
        let map =
            sized.and_then(|()| Mapping::new(&file, layout)).inspect_err(|_| drop(std::fs::remove_file(&spec.path)))?;
        map.head().id.store(spec.id, Ordering::Relaxed);
        map.head().capacity.store(capacity as u64, Ordering::Relaxed);
        map.head().magic.store(MAGIC, Ordering::Release);
        Ok(PoolFile { map, file, last_number: Cell::new(0), next_unused: Cell::new(0), free: Default::default() })
    }

    /// Start of the buffers.
    pub(super) fn data(&self) -> NonNull<u8> {
        self.map.data()
    }

    /// Allocates the memory of buffer `index` if that is needed; false if the file system is full. This detects a full
    /// file system before an access to the buffer would raise SIGBUS.
    #[inline]
    pub(super) fn ensure_allocated(&self, index: usize) -> bool {
        index < self.map.tags().len() || self.allocate_chunk()
    }

    #[cold]
    fn allocate_chunk(&self) -> bool {
        let (first, capacity) = (self.map.tags().len(), self.map.layout.capacity);
        let end = (first + CHUNK_BLOCKS).min(capacity);
        let tags = (Layout::TAGS + first * TAG_BYTES, (end - first) * TAG_BYTES);
        let data = (self.map.layout.data() + first * BLOCK_BYTES, (end - first) * BLOCK_BYTES);
        let is_allocated =
            allocate(&self.file, tags.0, tags.1).and_then(|()| allocate(&self.file, data.0, data.1)).is_ok();
        if is_allocated {
            self.map.pages.use_huge_pages(data.0, data.1);
            self.map.head().allocated.store(end as u64, Ordering::Release);
        }
        is_allocated
    }

    fn next_number(&self) -> u64 {
        self.last_number.set(self.last_number.get() + 1);
        self.last_number.get()
    }

    #[inline]
    pub(super) fn tag(&self, index: usize, tag: BlockTag) -> u64 {
        let words = &self.map.tags()[index];
        let number = words.number();
        if number != 0 {
            // Same block in the same buffer: the added sectors are already in the buffer.
            words.details.store(u64::from(tag.sectors), Ordering::Release);
            return number;
        }
        let number = self.next_number();
        compiler_fence(Ordering::SeqCst);
        words.store(number, tag.volume_id, tag.block, u64::from(tag.sectors));
        number
    }

    #[inline]
    pub(super) fn tag_of(&self, index: usize) -> u64 {
        self.map.tags()[index].number()
    }

    #[inline]
    pub(super) fn untag(&self, index: usize, number: u64) {
        let words = &self.map.tags()[index];
        if words.number() == number {
            words.clear();
        }
    }

    pub(super) fn tag_range(&self, tag: RangeTag) -> Option<u32> {
        let index = self.free.borrow_mut().pop().or_else(|| {
            let index = self.next_unused.get();
            ((index as usize) < RANGES_MAX).then(|| self.next_unused.replace(index + 1))
        });
        let Some(index) = index else {
            self.map.head().overflowed.store(1, Ordering::Release);
            return None;
        };
        let end_and_kind = tag.end
            | match tag.kind {
                RangeKind::Zeroes { may_unmap: false } => 0,
                RangeKind::Zeroes { may_unmap: true } => UNMAP_BIT,
                RangeKind::Outdated => OUTDATED_BIT,
            };
        self.map.ranges()[index as usize].store(self.next_number(), tag.volume_id, tag.start, end_and_kind);
        Some(index)
    }

    pub(super) fn untag_range(&self, index: u32) {
        self.map.ranges()[index as usize].clear();
        self.free.borrow_mut().push(index);
    }
}

/// Allocates memory of the file system for `len` bytes of the file from `offset` on.
fn allocate(file: &File, offset: usize, len: usize) -> io::Result<()> {
    // SAFETY: a system call on an open file.
    let status = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, len as libc::off_t) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Free bytes of the directory's file system; `None` if it is not a tmpfs.
pub fn tmpfs_free_bytes(directory: &Path) -> io::Result<Option<u64>> {
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: zeroes are a valid value of this plain structure; the call fills it.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a zero-terminated path, and room for the result.
    if unsafe { libc::statfs(path.as_ptr(), &mut statfs) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The type is signed in one C library and unsigned in another.
    let is_memory = libc::TMPFS_MAGIC == statfs.f_type as _;
    Ok(is_memory.then(|| statfs.f_bavail.saturating_mul(statfs.f_bsize as u64)))
}

/// Reason why the file of a killed process cannot be read, although it may hold content.
#[derive(Debug, thiserror::Error)]
pub enum PersistedPoolError {
    /// The file has a later format.
    #[error("it was {0}")]
    Newer(NewerFormat),
    /// The first word is of no known format.
    #[error("its first bytes are not those of a Hotset file")]
    Foreign,
    /// A call of the operating system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The persisted memory of a killed process.
pub struct PersistedPool {
    map: Mapping,
    file: PersistFile,
    images: RefCell<BTreeMap<u64, ShmImage>>,
}

impl PersistedPool {
    /// Reads the file; `None` if it is missing (the machine has restarted) or belongs to another user or pool.
    pub fn open(spec: &PersistFile) -> Result<Option<PersistedPool>, PersistedPoolError> {
        // After a restart of the machine, any user may create a file of that name: only this user's file is opened.
        // SAFETY: a call without arguments that cannot fail.
        let user = unsafe { libc::geteuid() };
        match std::fs::symlink_metadata(&spec.path) {
            Ok(metadata) if metadata.is_file() && metadata.uid() == user => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&spec.path)?;
        let mut head = [0; HEAD_READ_BYTES];
        if file.read_exact_at(&mut head, 0).is_err() {
            return Ok(None);
        }
        let word = |index: usize| {
            u64::from_le_bytes(head[index * 8..index * 8 + 8].try_into().expect("a slice of 8 bytes is an array of 8"))
        };
        // Its creator was killed before it wrote the head.
        if word(0) == 0 {
            return Ok(None);
        }
        if word(0) != MAGIC {
            let [name @ .., format] = word(0).to_le_bytes();
            if !MAGIC.to_le_bytes().starts_with(&name) || format < FORMAT {
                return Err(PersistedPoolError::Foreign);
            }
            return Err(PersistedPoolError::Newer(NewerFormat::of_format(format, FORMAT, Release::unpack(word(6)))));
        }
        let layout = Layout { capacity: word(2) as usize };
        let len = file.metadata()?.len();
        if word(1) != spec.id || layout.capacity as u64 > len / BLOCK_BYTES as u64 || len != layout.len() as u64 {
            return Ok(None);
        }
        let map = Mapping::new(&file, layout)?;
        let pool = PersistedPool { map, file: spec.clone(), images: RefCell::default() };
        pool.finish_removal();
        *pool.images.borrow_mut() = pool.resolve();
        Ok(Some(pool))
    }

    fn resolve(&self) -> BTreeMap<u64, ShmImage> {
        let fields = |words: &TagWords| {
            let [volume_id, start, details] =
                [&words.volume_id, &words.start, &words.details].map(|word| word.load(Ordering::Relaxed));
            (words.number(), volume_id, start, details)
        };
        let ranges = self.map.ranges().iter().map(fields).filter(|(number, ..)| *number != 0);
        let ranges = ranges.map(|(number, volume_id, start, details)| {
            let kind = match details & OUTDATED_BIT {
                0 => RangeKind::Zeroes { may_unmap: details & UNMAP_BIT != 0 },
                _ => RangeKind::Outdated,
            };
            (number, RangeTag { volume_id, start, end: details & !(UNMAP_BIT | OUTDATED_BIT), kind })
        });
        let ranges: Vec<_> = ranges.collect();
        let blocks = self.map.tags().iter().map(fields).enumerate().filter(|(_, (number, ..))| *number != 0);
        let (buffers, blocks): (Vec<usize>, Vec<_>) = blocks
            .map(|(index, (number, volume_id, block, details))| {
                (index, (number, BlockTag { volume_id, block, sectors: details as u8 }))
            })
            .unzip();
        let mut images = resolve_tags(&blocks, &ranges);
        for (_, index) in images.values_mut().flat_map(|image| &mut image.blocks) {
            *index = buffers[*index];
        }
        images
    }

    /// False if a range tag was rejected because the table was full: tags are missing.
    pub fn is_complete(&self) -> bool {
        self.map.head().overflowed.load(Ordering::Relaxed) == 0
    }

    /// IDs of the volumes that have tags.
    pub fn tagged_volumes(&self) -> Vec<u64> {
        self.images.borrow().keys().copied().collect()
    }

    /// The valid tags of a volume.
    pub fn image_of(&self, volume_id: u64) -> Option<ShmImage> {
        self.images.borrow().get(&volume_id).cloned()
    }

    /// Content of the buffer at this index.
    pub fn content(&self, index: usize) -> &[u8] {
        assert!(index < self.map.layout.capacity, "the index belongs to a recovered block");
        // SAFETY: inside the mapping, and the process that wrote the buffer has ended.
        unsafe { std::slice::from_raw_parts(self.map.data().add(index * BLOCK_BYTES).as_ptr(), BLOCK_BYTES) }
    }

    /// Removes the tags of a volume after recovery or rejection. The removal is atomic: after a kill during it, the
    /// next open completes it.
    pub fn remove_tags_of(&self, volume_id: u64) {
        self.images.borrow_mut().remove(&volume_id);
        self.map.head().removing_volume.store(volume_id, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.finish_removal();
    }

    fn finish_removal(&self) {
        let removing_volume = &self.map.head().removing_volume;
        let volume_id = removing_volume.load(Ordering::Acquire);
        if volume_id == 0 {
            return;
        }
        let words = self.map.ranges().iter().chain(self.map.tags());
        words
            .filter(|words| words.number() != 0 && words.volume_id.load(Ordering::Relaxed) == volume_id)
            .for_each(TagWords::clear);
        removing_volume.store(0, Ordering::Release);
    }

    /// Path and identity of the file.
    pub fn file(&self) -> &PersistFile {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_file(name: &str) -> PersistFile {
        PersistFile { path: std::env::temp_dir().join(format!("hotset-kept-{name}-{}", std::process::id())), id: 7 }
    }

    #[test]
    fn tags_are_recovered_by_volume_until_they_are_removed() {
        let spec = test_file("tagged");
        let file = PoolFile::new(&spec, 100).expect("the file can be created");
        assert!(PoolFile::new(&spec, 100).is_err(), "the file already exists");
        let tag = |block| BlockTag { volume_id: 5, block, sectors: 0x0f };
        for (index, block) in [(3, 40), (4, 41), (5, 42)] {
            assert!(file.ensure_allocated(index));
            // SAFETY: inside the mapping.
            unsafe { file.data().add(index * BLOCK_BYTES).write_bytes(block as u8, BLOCK_BYTES) };
            file.tag(index, tag(block));
        }
        let number = file.tag_of(4);
        assert_eq!(file.tag(4, BlockTag { sectors: 0xff, ..tag(41) }), number, "the tag gets more sectors");
        file.untag(5, number);
        file.untag(3, file.tag_of(3));
        let kind = |start| match start {
            8 => RangeKind::Outdated,
            start => RangeKind::Zeroes { may_unmap: start == 7 },
        };
        let range = |start, end| RangeTag { volume_id: 6, start, end, kind: kind(start) };
        let first = file.tag_range(range(1, 2)).expect("the table has space");
        file.tag_range(range(7, 9)).expect("the table has space");
        file.tag_range(range(8, 1 << 34)).expect("the table has space");
        file.untag_range(first);
        drop(file);
        assert!(PersistedPool::open(&PersistFile { id: 8, ..spec.clone() }).expect("the file is readable").is_none());
        let pool = PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
        assert_eq!((pool.tagged_volumes(), pool.is_complete()), (vec![5, 6], true));
        let ranges = pool.image_of(6).expect("the volume has tags");
        assert_eq!((ranges.zeroes, ranges.outdated), (vec![range(7, 9)], vec![range(8, 1 << 34)]));
        let blocks = pool.image_of(5).expect("the volume has tags").blocks.clone();
        assert_eq!(blocks, [(BlockTag { sectors: 0xff, ..tag(41) }, 4), (tag(42), 5)]);
        assert_eq!((pool.content(4)[9], pool.content(5)[4095]), (41, 42));
        // Killed during the removal: a recovered volume must not be found in part.
        pool.map.head().removing_volume.store(5, Ordering::Release);
        pool.map.tags()[4].clear();
        drop(pool);
        let pool = PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
        assert_eq!(pool.tagged_volumes(), [6]);
        pool.remove_tags_of(6);
        drop(pool);
        let pool = PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
        assert!(pool.tagged_volumes().is_empty());
        std::fs::remove_file(&spec.path).expect("the file exists");
        assert!(PersistedPool::open(&spec).expect("the file is missing").is_none());
    }

    /// Reading a hole of a mapped file kills the process if the file system is full.
    #[test]
    fn unallocated_parts_of_the_file_are_not_touched() {
        let spec = PersistFile { path: format!("/dev/shm/hotset-kept-given-{}", std::process::id()).into(), id: 7 };
        let file = PoolFile::new(&spec, 10 * CHUNK_BLOCKS * BLOCK_BYTES / TAG_BYTES).expect("the file can be created");
        assert!(file.ensure_allocated(3));
        file.tag(3, BlockTag { volume_id: 5, block: 9, sectors: 1 });
        let blocks = || std::fs::metadata(&spec.path).expect("the file exists").blocks();
        let allocated_before = blocks();
        let pool = PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
        assert_eq!(pool.tagged_volumes(), [5]);
        pool.remove_tags_of(5);
        let after = blocks();
        std::fs::remove_file(&spec.path).expect("the file exists");
        assert_eq!(after, allocated_before);
    }

    #[test]
    fn file_of_another_format_is_foreign_and_one_without_head_is_none() {
        let spec = test_file("strange");
        std::fs::write(&spec.path, [1; HEAD_BYTES]).expect("the file can be written");
        assert!(matches!(PersistedPool::open(&spec), Err(PersistedPoolError::Foreign)));
        std::fs::write(&spec.path, [0; HEAD_BYTES]).expect("the file can be written");
        assert!(PersistedPool::open(&spec).expect("the file is readable").is_none());
        std::fs::remove_file(&spec.path).expect("the file exists");
        std::os::unix::fs::symlink("/dev/zero", &spec.path).expect("the link can be created");
        assert!(PersistedPool::open(&spec).expect("links are not followed").is_none());
        std::fs::remove_file(&spec.path).expect("the file exists");
    }

    /// A file with blocks of two volumes, zero-ranges and an outdated range.
    fn write_golden(spec: &PersistFile) -> Vec<u8> {
        let file = PoolFile::new(spec, 100).expect("the file can be created");
        let tags = [(0, 5, 40, 0xff), (3, 5, 41, 0x0f), (99, 6, 1 << 40, 0x80)];
        for (index, volume_id, block, sectors) in tags {
            assert!(file.ensure_allocated(index));
            // SAFETY: inside the mapping.
            unsafe { file.data().add(index * BLOCK_BYTES).write_bytes(index as u8 + 1, BLOCK_BYTES) };
            file.tag(index, BlockTag { volume_id, block, sectors });
        }
        assert!(golden_ranges().into_iter().all(|range| file.tag_range(range).is_some()), "the table has space");
        drop(file);
        let bytes = std::fs::read(&spec.path).expect("the file was just created");
        std::fs::remove_file(&spec.path).expect("the file was just created");
        bytes
    }

    fn golden_ranges() -> [RangeTag; 3] {
        let range = |start, end, kind| RangeTag { volume_id: 6, start, end, kind };
        [
            range(7, 9, RangeKind::Zeroes { may_unmap: true }),
            range(20, 1 << 34, RangeKind::Zeroes { may_unmap: false }),
            range(100, 200, RangeKind::Outdated),
        ]
    }

    #[test]
    fn golden_files_of_persisted_memory_are_recovered() {
        let spec = test_file("golden");
        for golden in golden::files("kept-memory.zst", || write_golden(&spec)) {
            std::fs::write(&spec.path, &golden.bytes).expect("the file can be written");
            let pool =
                PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
            std::fs::remove_file(&spec.path).expect("the file was written");
            let release = golden.release;
            assert_eq!((pool.tagged_volumes(), pool.is_complete()), (vec![5, 6], true), "written by {release}");
            let tag = |volume_id, block, sectors| BlockTag { volume_id, block, sectors };
            let first = ShmImage { blocks: vec![(tag(5, 40, 0xff), 0), (tag(5, 41, 0x0f), 3)], ..ShmImage::default() };
            assert_eq!(pool.image_of(5), Some(first), "written by {release}");
            let [small, large, outdated] = golden_ranges();
            let second = ShmImage {
                outdated: vec![outdated],
                zeroes: vec![small, large],
                blocks: vec![(tag(6, 1 << 40, 0x80), 99)],
            };
            assert_eq!(pool.image_of(6), Some(second), "written by {release}");
            for index in [0, 3, 99] {
                assert!(pool.content(index).iter().all(|byte| *byte == index as u8 + 1), "written by {release}");
            }
        }
    }

    #[test]
    fn newer_file_is_refused_by_its_format_and_stays_unchanged() {
        let spec = test_file("newer");
        let mut bytes = write_golden(&spec);
        bytes[7] = FORMAT + 1;
        for (needs, least) in [(0, "a version that reads format 3"), (0x0001_0004_0002_u64, "Hotset 1.4.2")] {
            bytes[48..56].copy_from_slice(&needs.to_le_bytes());
            std::fs::write(&spec.path, &bytes).expect("the file can be written");
            let refused = PersistedPool::open(&spec).err().expect("a later format").to_string();
            let expected =
                "it was written by a newer version of Hotset (format 3, this one reads up to 2); needs at least";
            assert_eq!(refused, format!("{expected} {least}"));
            assert!(std::fs::read(&spec.path).expect("the file exists") == bytes);
        }
        std::fs::remove_file(&spec.path).expect("the file exists");
    }

    #[test]
    fn refused_range_tag_is_reported() {
        let spec = test_file("refused");
        let file = PoolFile::new(&spec, 1).expect("the file can be created");
        let range = RangeTag { volume_id: 6, start: 1, end: 2, kind: RangeKind::Outdated };
        assert!((0..RANGES_MAX).all(|_| file.tag_range(range).is_some()));
        assert!(file.tag_range(range).is_none());
        file.untag_range(9);
        assert_eq!(file.tag_range(range), Some(9));
        let pool = PersistedPool::open(&spec).expect("the file is readable").expect("the file belongs to this pool");
        std::fs::remove_file(&spec.path).expect("the file exists");
        assert!(!pool.is_complete());
    }
}
