//! A guest's memory: regions shared by its virtual machine and mapped here.
//!
//! The guest may change its memory at any time. No Rust slice ever borrows it; data is copied in and out.
//!
//! The backing file may be truncated, or its file system may have no page left for a hole. Each mapping is guarded:
//! such an access sets the front end's [`FaultFlag`] and reads zeroes (`seam/real/fault.rs`). Code that has accessed
//! memory checks the flag before it relies on data read or acknowledges data written.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::FsWord;
use seam::real::{FaultFlag, FaultGuard};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Maximum number of regions of a guest: the limit of the kernel for one virtual machine.
pub const REGIONS_MAX: usize = 509;
/// Bytes that one bit of the dirty log represents.
const LOG_PAGE_BYTES: u64 = 4096;
/// Smallest page of a mapping, in bytes.
const PAGE_BYTES: usize = 4096;
/// File system type of hugetlbfs in `statfs`; its block size is the page size.
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Layout of a region, as sent by the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// First guest address.
    pub guest: u64,
    /// Length in bytes.
    pub len: u64,
    /// First address in the front end's address space, in which the addresses of rings are given.
    pub user: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
}

/// Error of a mapping.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// An empty range, or one beyond the address space.
    #[error("a region of {len} bytes at {guest:#x} is empty or exceeds the address space")]
    InvalidRange {
        /// First guest address.
        guest: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The file is too short.
    #[error("a region needs {needed_bytes} bytes of a file of {available_bytes} bytes")]
    Short {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes in the file.
        available_bytes: u64,
    },
    /// The mapping failed.
    #[error("memory cannot be mapped: {0}")]
    Map(String),
    /// Two regions overlap.
    #[error("two regions overlap at {0:#x}")]
    Overlap(u64),
    /// Too many regions.
    #[error("more than {REGIONS_MAX} regions of memory")]
    TooMany,
    /// The region to remove does not exist.
    #[error("no such memory region")]
    Unknown,
}

/// Error for an address outside the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

/// A mapping of a shared file, whose faults set a flag, or anonymous memory.
pub struct Mapping {
    /// Dropped before the mapping, so that a later fault at the same address is not attributed to this guest.
    _guard: Option<FaultGuard>,
    region: MmapRegion,
}

impl Mapping {
    /// Maps `len` bytes from the start of a file; `fault` is set once an access finds a page of it missing
    /// (SIGBUS).
    pub fn of_file(file: OwnedFd, len: u64, fault: &FaultFlag) -> Result<Arc<Mapping>, MemoryError> {
        let failed = |error: &dyn std::fmt::Display| MemoryError::Map(error.to_string());
        let file_bytes = rustix::fs::fstat(&file).map_err(|error| failed(&error))?.st_size as u64;
        let file_system = rustix::fs::fstatfs(&file).map_err(|error| failed(&error))?;
        // Large pages are mapped and unmapped as a whole.
        let page_bytes =
            if file_system.f_type == HUGETLBFS_MAGIC { file_system.f_bsize as u64 } else { PAGE_BYTES as u64 };
        let needed_bytes =
            if page_bytes > PAGE_BYTES as u64 { len.checked_next_multiple_of(page_bytes) } else { Some(len) };
        let needed_bytes = needed_bytes
            .filter(|needed_bytes| *needed_bytes <= file_bytes)
            .ok_or(MemoryError::Short { needed_bytes: len, available_bytes: file_bytes })?;
        let size = usize::try_from(needed_bytes)
            .map_err(|_| MemoryError::Short { needed_bytes, available_bytes: file_bytes })?;
        let region = MmapRegion::from_file(FileOffset::new(file.into(), 0), size).map_err(|error| failed(&error))?;
        let guarded_bytes = size.next_multiple_of(page_bytes as usize);
        let guard = FaultGuard::new(region.as_ptr() as usize, guarded_bytes, fault).map_err(|error| failed(&error))?;
        Ok(Arc::new(Mapping { _guard: Some(guard), region }))
    }

    fn anonymous(len: usize) -> Result<Arc<Mapping>, MemoryError> {
        let region = MmapRegion::new(len).map_err(|error| MemoryError::Map(error.to_string()))?;
        Ok(Arc::new(Mapping { _guard: None, region }))
    }
}

/// A mapped region.
#[derive(Clone)]
pub struct Region {
    layout: RegionLayout,
    map: Arc<Mapping>,
}

impl Region {
    /// Maps a region from the start of its file, because large pages need an aligned offset. `fault` is set once a page
    /// is lost.
    pub fn map(layout: RegionLayout, file: OwnedFd, fault: &FaultFlag) -> Result<Region, MemoryError> {
        let RegionLayout { guest, len, user, offset } = layout;
        let ends = [guest, user, offset].map(|start| start.checked_add(len));
        let [Some(_), Some(_), Some(file_len)] = ends else { return Err(MemoryError::InvalidRange { guest, len }) };
        if len == 0 {
            return Err(MemoryError::InvalidRange { guest, len });
        }
        Ok(Region { layout, map: Mapping::of_file(file, file_len, fault)? })
    }

    /// A region of anonymous memory, for tests that play both sides.
    pub fn anonymous(guest: u64, len: u64) -> Result<Region, MemoryError> {
        let map = Mapping::anonymous(len as usize)?;
        Ok(Region { layout: RegionLayout { guest, len, user: guest, offset: 0 }, map })
    }

    fn end(&self) -> u64 {
        self.layout.guest + self.layout.len
    }
}

/// A range of bytes within one mapping.
#[derive(Clone)]
pub struct MappedRange {
    map: Arc<Mapping>,
    /// Offset of the range in the mapping.
    offset: usize,
    len: usize,
}

impl MappedRange {
    /// The first `len` bytes of a mapping.
    pub fn whole(map: Arc<Mapping>, len: usize) -> MappedRange {
        assert!(len <= map.region.size(), "a range lies in its mapping");
        MappedRange { map, offset: 0, len }
    }

    /// The `len` bytes from offset `at` of the range on.
    pub fn slice(&self, at: usize, len: usize) -> VolatileSlice<'_> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "past the end of a range: {at}+{len}");
        self.map.region.get_slice(self.offset + at, len).expect("a range lies in its mapping")
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The `len` bytes from offset `at` of the range on, as a range.
    pub fn subrange(&self, at: usize, len: usize) -> Option<MappedRange> {
        (at.checked_add(len)? <= self.len).then(|| MappedRange { map: self.map.clone(), offset: self.offset + at, len })
    }

    /// True if the start is aligned to `align` in this process.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.map.region.as_ptr() as usize + self.offset).is_multiple_of(align)
    }
}

/// A snapshot of a guest's memory; each change of the regions creates a new one.
#[derive(Clone, Default)]
pub struct Memory {
    /// Sorted by guest address.
    regions: Vec<Region>,
}

impl Memory {
    /// Memory with these regions.
    pub fn new(mut regions: Vec<Region>) -> Result<Memory, MemoryError> {
        if regions.len() > REGIONS_MAX {
            return Err(MemoryError::TooMany);
        }
        regions.sort_by_key(|region| region.layout.guest);
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].end() > pair[1].layout.guest) {
            return Err(MemoryError::Overlap(pair[1].layout.guest));
        }
        Ok(Memory { regions })
    }

    /// The same memory with an additional region.
    pub fn with(&self, region: Region) -> Result<Memory, MemoryError> {
        Memory::new(self.regions.iter().cloned().chain([region]).collect())
    }

    /// The same memory without a region, whatever its offset in the file.
    pub fn without(&self, layout: RegionLayout) -> Result<Memory, MemoryError> {
        let key = |layout: &RegionLayout| (layout.guest, layout.len, layout.user);
        let position =
            self.regions.iter().position(|region| key(&region.layout) == key(&layout)).ok_or(MemoryError::Unknown)?;
        let mut regions = self.regions.clone();
        regions.remove(position);
        Ok(Memory { regions })
    }

    /// Converts a front-end address to a guest address.
    pub fn guest_of(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let at = user.checked_sub(region.layout.user)?;
            (at < region.layout.len).then(|| region.layout.guest + at)
        })
    }

    /// The region at a guest address, and the offset in it.
    fn region_of(&self, guest: u64) -> Option<(&Region, u64)> {
        let after = self.regions.partition_point(|region| region.layout.guest <= guest);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let at = guest - region.layout.guest;
        (at < region.layout.len).then_some((region, at))
    }

    /// The `len` bytes at a guest address, if they lie in one region.
    pub fn mapped_range(&self, guest: u64, len: usize) -> Option<MappedRange> {
        let (region, at) = self.region_of(guest)?;
        let fits = (len as u64) <= region.layout.len - at;
        fits.then(|| MappedRange { map: region.map.clone(), offset: (region.layout.offset + at) as usize, len })
    }

    /// Calls `visit` for each contiguous piece of a range, with the number of bytes before it.
    pub fn pieces(
        &self,
        guest: u64,
        len: usize,
        mut visit: impl FnMut(VolatileSlice<'_>, usize),
    ) -> Result<(), Outside> {
        let mut covered = 0;
        while covered < len {
            let address = guest.checked_add(covered as u64).ok_or(Outside)?;
            let (region, at) = self.region_of(address).ok_or(Outside)?;
            let count = (region.layout.len - at).min((len - covered) as u64) as usize;
            let slice =
                region.map.region.get_slice((region.layout.offset + at) as usize, count).map_err(|_| Outside)?;
            visit(slice, covered);
            covered += count;
        }
        Ok(())
    }

    /// True if the whole range is in memory.
    pub fn covers(&self, guest: u64, len: usize) -> bool {
        match self.region_of(guest) {
            Some((region, at)) if len as u64 <= region.layout.len - at => true,
            _ => self.pieces(guest, len, |_, _| ()).is_ok(),
        }
    }

    /// Reads one byte of each page of a range, so that a page that the memory file no longer backs sets the fault flag
    /// now and not during a copy.
    pub fn touch(&self, guest: u64, len: usize) -> Result<(), Outside> {
        self.pieces(guest, len, |slice, _| {
            let last = slice.len() - 1;
            let pages = (0..last).step_by(PAGE_BYTES).chain([last]);
            pages.for_each(|at| {
                slice.subslice(at, 1).expect("inside the slice").copy_to(&mut [0_u8]);
            });
        })
    }

    /// Copies bytes from memory.
    pub fn read(&self, guest: u64, out: &mut [u8]) -> Result<(), Outside> {
        let len = out.len();
        self.pieces(guest, len, |slice, copied| {
            slice.copy_to(&mut out[copied..copied + slice.len()]);
        })
    }

    /// Copies bytes to memory.
    pub fn write(&self, guest: u64, bytes: &[u8]) -> Result<(), Outside> {
        self.pieces(guest, bytes.len(), |slice, copied| slice.copy_from(&bytes[copied..copied + slice.len()]))
    }
}

/// Dirty log: one bit for each written 4 KiB of the guest's memory, used for live migration.
pub struct DirtyLog(MappedRange);

impl DirtyLog {
    /// Maps the log of `len` bytes at `offset` of a file.
    pub fn map(file: OwnedFd, offset: u64, len: u64, fault: &FaultFlag) -> Result<DirtyLog, MemoryError> {
        let end =
            offset.checked_add(len).filter(|_| len > 0).ok_or(MemoryError::InvalidRange { guest: offset, len })?;
        let whole = MappedRange::whole(Mapping::of_file(file, end, fault)?, end as usize);
        Ok(DirtyLog(whole.subrange(offset as usize, len as usize).expect("the range is mapped")))
    }

    /// Marks a written range. Addresses beyond the log are not guest memory.
    pub fn mark(&self, guest: u64, len: usize) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len as u64 - 1) / LOG_PAGE_BYTES;
        for page in guest / LOG_PAGE_BYTES..=last {
            let byte = page / 8;
            if byte >= self.0.len() as u64 {
                return;
            }
            let slice = self.0.slice(byte as usize, 1);
            let bits = slice.get_atomic_ref::<AtomicU8>(0).expect("a byte is aligned");
            bits.fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_regions() -> Memory {
        let regions = [(0x1000, 0x1000), (0x2000, 0x3000), (0x9000, 0x1000)];
        Memory::new(regions.map(|(guest, len)| Region::anonymous(guest, len).expect("the memory is valid")).to_vec())
            .expect("the memory is valid")
    }

    #[test]
    fn range_across_regions_is_contiguous_and_outside_ranges_refused() {
        let memory = two_regions();
        memory.write(0x1ffe, &[1, 2, 3, 4]).expect("the range is in memory");
        let mut read = [0; 4];
        memory.read(0x1ffe, &mut read).expect("the range is in memory");
        assert_eq!(read, [1, 2, 3, 4]);
        assert!(memory.mapped_range(0x1ffe, 4).is_none() && memory.mapped_range(0x2000, 0x3000).is_some());
        for (at, len) in [(0xfff, 2), (0x4fff, 2), (0x9fff, 2), (u64::MAX, 2), (0x6000, 1), (0x1000, usize::MAX)] {
            assert!(!memory.covers(at, len), "{at:#x}+{len}");
        }
    }

    #[test]
    fn regions_are_added_and_removed_and_never_overlap() {
        let memory = two_regions();
        assert!(matches!(
            memory.with(Region::anonymous(0x4fff, 0x10).expect("the memory is valid")),
            Err(MemoryError::Overlap(0x4fff))
        ));
        let more =
            memory.with(Region::anonymous(0x5000, 0x1000).expect("the memory is valid")).expect("the range is free");
        assert!(more.covers(0x1000, 0x5000) && !memory.covers(0x1000, 0x5000));
        let layout = RegionLayout { guest: 0x2000, len: 0x3000, user: 0x2000, offset: 0 };
        let fewer = more.without(layout).expect("the region exists");
        assert!(!fewer.covers(0x2000, 1) && fewer.covers(0x5000, 1));
        assert!(matches!(fewer.without(layout), Err(MemoryError::Unknown)));
    }

    #[test]
    fn file_that_is_too_short_is_refused() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x1000).expect("the file can grow");
        let layout = RegionLayout { guest: 0, len: 0x1000, user: 0, offset: 0x1000 };
        let fault = FaultFlag::default();
        assert!(matches!(
            Region::map(layout, file, &fault),
            Err(MemoryError::Short { needed_bytes: 0x2000, available_bytes: 0x1000 })
        ));
    }

    #[test]
    fn touch_finds_a_missing_page() {
        let file = rustix::fs::memfd_create("gone", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x4000).expect("the file can grow");
        let fault = FaultFlag::default();
        let layout = RegionLayout { guest: 0x1000, len: 0x4000, user: 0, offset: 0 };
        let region = Region::map(layout, file.try_clone().expect("the descriptor can be duplicated"), &fault)
            .expect("the file can be mapped");
        let memory = Memory::new(vec![region]).expect("the memory is valid");
        memory.touch(0x1001, 0x3fff).expect("the range is in memory");
        rustix::fs::ftruncate(&file, 0x3000).expect("the file can be truncated");
        memory.touch(0x1001, 0x2fff).expect("the range is in memory");
        assert!(!fault.is_set());
        memory.touch(0x3fff, 2).expect("the range is in memory");
        assert!(fault.is_set());
    }

    #[test]
    fn dirty_log_has_a_bit_for_each_written_page() {
        let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x1000).expect("the file can grow");
        let log =
            DirtyLog::map(file.try_clone().expect("the descriptor can be duplicated"), 16, 2, &FaultFlag::default())
                .expect("the file can be mapped");
        log.mark(0x0fff, 2);
        log.mark(0xa000, 0);
        log.mark(0xf000, 0x100_0000);
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes, 15).expect("read");
        assert_eq!(bytes, [0, 0b11, 0b1000_0000, 0]);
    }
}
