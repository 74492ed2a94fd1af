//! A guest's memory, as its virtual machine shares it: regions of its addresses, mapped here.
//!
//! Nothing in it is ever borrowed as a slice of Rust's: the guest changes it whenever it likes. It is copied out and in.
//!
//! Its file may be shortened, and its file system may have no page left for a hole: each mapping is guarded, and such an access sets the
//! front end's [`FaultFlag`] and reads zeroes (`seam/real/fault.rs`). Who has accessed memory looks at the flag before relying on what it read
//! or acknowledging what it wrote.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::FsWord;
use seam::real::{FaultFlag, FaultGuard};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Regions that one guest may have, as many as the kernel gives to one virtual machine.
pub const REGIONS_MAX: usize = 509;
/// What one bit of a log of dirty memory stands for, in bytes.
const LOG_PAGE_BYTES: u64 = 4096;
/// The smallest page that a mapping has, in bytes.
const PAGE_BYTES: usize = 4096;
/// What `statfs` says of hugetlbfs, whose blocks are its pages.
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Where a region lies, as a front end tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First address in the guest.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// First address in the front end's own memory, by which it names rings.
    pub user: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
}

/// Why memory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The numbers make no sense.
    #[error("a region of {len} bytes at {guest:#x} is empty or reaches past the end of all addresses")]
    Place {
        /// First address in the guest.
        guest: u64,
        /// Bytes.
        len: u64,
    },
    /// Its file is shorter.
    #[error("a region of {wanted} bytes lies in a file of {has}")]
    Short {
        /// Bytes that would be needed.
        wanted: u64,
        /// Bytes that there are.
        has: u64,
    },
    /// It cannot be mapped.
    #[error("memory cannot be mapped: {0}")]
    Map(String),
    /// Two regions share addresses.
    #[error("two regions overlap at {0:#x}")]
    Overlap(u64),
    /// There are too many.
    #[error("more than {REGIONS_MAX} regions of memory")]
    TooMany,
    /// What is to be removed is not there.
    #[error("there is no such region of memory")]
    Unknown,
}

/// An address that is not in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

/// A mapping of a shared file, whose faults set a flag; or memory of this process.
pub struct Mapping {
    /// Dropped before the mapping: a fault elsewhere must not look like one of this guest.
    _guard: Option<FaultGuard>,
    region: MmapRegion,
}

impl Mapping {
    /// Maps `len` bytes of a file from its beginning; `fault` is set once a page of it cannot be had.
    pub fn of_file(file: OwnedFd, len: u64, fault: &FaultFlag) -> Result<Arc<Mapping>, MemoryError> {
        let failed = |error: &dyn std::fmt::Display| MemoryError::Map(error.to_string());
        let has = rustix::fs::fstat(&file).map_err(|error| failed(&error))?.st_size as u64;
        let about = rustix::fs::fstatfs(&file).map_err(|error| failed(&error))?;
        // Large pages are mapped, and unmapped, whole.
        let page = if about.f_type == HUGETLBFS_MAGIC { about.f_bsize as u64 } else { PAGE_BYTES as u64 };
        let wanted = if page > PAGE_BYTES as u64 { len.checked_next_multiple_of(page) } else { Some(len) };
        let wanted = wanted.filter(|wanted| *wanted <= has).ok_or(MemoryError::Short { wanted: len, has })?;
        let size = usize::try_from(wanted).map_err(|_| MemoryError::Short { wanted, has })?;
        let region = MmapRegion::from_file(FileOffset::new(file.into(), 0), size).map_err(|error| failed(&error))?;
        let guarded = size.next_multiple_of(page as usize);
        let guard = FaultGuard::new(region.as_ptr() as usize, guarded, fault).map_err(|error| failed(&error))?;
        Ok(Arc::new(Mapping { _guard: Some(guard), region }))
    }

    fn anonymous(len: usize) -> Result<Arc<Mapping>, MemoryError> {
        let region = MmapRegion::new(len).map_err(|error| MemoryError::Map(error.to_string()))?;
        Ok(Arc::new(Mapping { _guard: None, region }))
    }
}

/// One region, mapped.
#[derive(Clone)]
pub struct Region {
    place: Place,
    map: Arc<Mapping>,
}

impl Region {
    /// Maps a region; `fault` is set once a page of it cannot be had. From the file's beginning, for large pages want an offset of their own
    /// size.
    pub fn map(place: Place, file: OwnedFd, fault: &FaultFlag) -> Result<Region, MemoryError> {
        let Place { guest, len, user, offset } = place;
        let ends = [guest, user, offset].map(|start| start.checked_add(len));
        let [Some(_), Some(_), Some(wanted)] = ends else { return Err(MemoryError::Place { guest, len }) };
        if len == 0 {
            return Err(MemoryError::Place { guest, len });
        }
        Ok(Region { place, map: Mapping::of_file(file, wanted, fault)? })
    }

    /// A region of anonymous memory, for who plays both sides.
    pub fn anonymous(guest: u64, len: u64) -> Result<Region, MemoryError> {
        let map = Mapping::anonymous(len as usize)?;
        Ok(Region { place: Place { guest, len, user: guest, offset: 0 }, map })
    }

    fn end(&self) -> u64 {
        self.place.guest + self.place.len
    }
}

/// Bytes that lie in one region.
#[derive(Clone)]
pub struct Part {
    map: Arc<Mapping>,
    at: usize,
    len: usize,
}

impl Part {
    /// The first `len` bytes of a mapping.
    pub fn whole(map: Arc<Mapping>, len: usize) -> Part {
        assert!(len <= map.region.size(), "what is mapped was measured");
        Part { map, at: 0, len }
    }

    /// `len` bytes from `at` on.
    pub fn slice(&self, at: usize, len: usize) -> VolatileSlice<'_> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "past the end of a part: {at}+{len}");
        self.map.region.get_slice(self.at + at, len).expect("a part lies in its mapping")
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a part is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A smaller part of it.
    pub fn part(&self, at: usize, len: usize) -> Option<Part> {
        (at.checked_add(len)? <= self.len).then(|| Part { map: self.map.clone(), at: self.at + at, len })
    }

    /// True when its first byte lies at a multiple of `align`, where the guest and this process see it.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.map.region.as_ptr() as usize + self.at).is_multiple_of(align)
    }
}

/// All of a guest's memory, as it was at one moment: what changes makes a new one.
#[derive(Clone, Default)]
pub struct Memory {
    /// In the order of the guest's addresses.
    regions: Vec<Region>,
}

impl Memory {
    /// Memory of these regions.
    pub fn new(mut regions: Vec<Region>) -> Result<Memory, MemoryError> {
        if regions.len() > REGIONS_MAX {
            return Err(MemoryError::TooMany);
        }
        regions.sort_by_key(|region| region.place.guest);
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].end() > pair[1].place.guest) {
            return Err(MemoryError::Overlap(pair[1].place.guest));
        }
        Ok(Memory { regions })
    }

    /// With one region more.
    pub fn with(&self, region: Region) -> Result<Memory, MemoryError> {
        Memory::new(self.regions.iter().cloned().chain([region]).collect())
    }

    /// Without the region at that place, wherever it lies in its file.
    pub fn without(&self, place: Place) -> Result<Memory, MemoryError> {
        let is_it = |of: &Place| (of.guest, of.len, of.user) == (place.guest, place.len, place.user);
        let found = self.regions.iter().position(|region| is_it(&region.place)).ok_or(MemoryError::Unknown)?;
        let mut regions = self.regions.clone();
        regions.remove(found);
        Ok(Memory { regions })
    }

    /// The guest's address of what the front end has at `user`.
    pub fn guest_of(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let at = user.checked_sub(region.place.user)?;
            (at < region.place.len).then(|| region.place.guest + at)
        })
    }

    fn region_of(&self, guest: u64) -> Option<(&Region, u64)> {
        let after = self.regions.partition_point(|region| region.place.guest <= guest);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let at = guest - region.place.guest;
        (at < region.place.len).then_some((region, at))
    }

    /// `len` bytes at an address, if they lie in one region.
    pub fn part(&self, guest: u64, len: usize) -> Option<Part> {
        let (region, at) = self.region_of(guest)?;
        let fits = (len as u64) <= region.place.len - at;
        fits.then(|| Part { map: region.map.clone(), at: (region.place.offset + at) as usize, len })
    }

    /// Shows `len` bytes at an address piece by piece, each with how many came before; what spans regions comes in several pieces.
    pub fn pieces(
        &self,
        guest: u64,
        len: usize,
        mut show: impl FnMut(VolatileSlice<'_>, usize),
    ) -> Result<(), Outside> {
        let mut done = 0;
        while done < len {
            let at = guest.checked_add(done as u64).ok_or(Outside)?;
            let (region, inside) = self.region_of(at).ok_or(Outside)?;
            let count = (region.place.len - inside).min((len - done) as u64) as usize;
            let slice =
                region.map.region.get_slice((region.place.offset + inside) as usize, count).map_err(|_| Outside)?;
            show(slice, done);
            done += count;
        }
        Ok(())
    }

    /// True when all of a range is there.
    pub fn covers(&self, guest: u64, len: usize) -> bool {
        match self.region_of(guest) {
            Some((region, at)) if len as u64 <= region.place.len - at => true,
            _ => self.pieces(guest, len, |_, _| ()).is_ok(),
        }
    }

    /// Reads a byte of each page of a range: a page that cannot be had sets the flag now, and not in the middle of a copy.
    pub fn touch(&self, guest: u64, len: usize) -> Result<(), Outside> {
        self.pieces(guest, len, |slice, _| {
            let last = slice.len() - 1;
            let pages = (0..last).step_by(PAGE_BYTES).chain([last]);
            pages.for_each(|at| {
                slice.subslice(at, 1).expect("inside the slice").copy_to(&mut [0_u8]);
            });
        })
    }

    /// Copies bytes out of it.
    pub fn read(&self, guest: u64, out: &mut [u8]) -> Result<(), Outside> {
        let len = out.len();
        self.pieces(guest, len, |slice, at| {
            slice.copy_to(&mut out[at..at + slice.len()]);
        })
    }

    /// Copies bytes into it.
    pub fn write(&self, guest: u64, bytes: &[u8]) -> Result<(), Outside> {
        self.pieces(guest, bytes.len(), |slice, at| slice.copy_from(&bytes[at..at + slice.len()]))
    }
}

/// A log of the guest's memory that was written to, a bit for 4 KiB, for who moves a running guest elsewhere.
pub struct DirtyLog(Part);

impl DirtyLog {
    /// Maps the log of `len` bytes that lies at `offset` of a file.
    pub fn map(file: OwnedFd, offset: u64, len: u64, fault: &FaultFlag) -> Result<DirtyLog, MemoryError> {
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(MemoryError::Place { guest: offset, len })?;
        let part = Part::whole(Mapping::of_file(file, end, fault)?, end as usize);
        Ok(DirtyLog(part.part(offset as usize, len as usize).expect("its end was mapped")))
    }

    /// Marks what was written. What the log has no room for is not the guest's memory.
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
        Memory::new(regions.map(|(guest, len)| Region::anonymous(guest, len).expect("memory")).to_vec())
            .expect("memory")
    }

    #[test]
    fn what_spans_two_regions_is_one_range_and_what_lies_outside_is_refused() {
        let memory = two_regions();
        memory.write(0x1ffe, &[1, 2, 3, 4]).expect("there");
        let mut read = [0; 4];
        memory.read(0x1ffe, &mut read).expect("there");
        assert_eq!(read, [1, 2, 3, 4]);
        assert!(memory.part(0x1ffe, 4).is_none() && memory.part(0x2000, 0x3000).is_some());
        for (at, len) in [(0xfff, 2), (0x4fff, 2), (0x9fff, 2), (u64::MAX, 2), (0x6000, 1), (0x1000, usize::MAX)] {
            assert!(!memory.covers(at, len), "{at:#x}+{len}");
        }
    }

    #[test]
    fn regions_come_and_go_and_never_overlap() {
        let memory = two_regions();
        assert!(matches!(
            memory.with(Region::anonymous(0x4fff, 0x10).expect("memory")),
            Err(MemoryError::Overlap(0x4fff))
        ));
        let more = memory.with(Region::anonymous(0x5000, 0x1000).expect("memory")).expect("free");
        assert!(more.covers(0x1000, 0x5000) && !memory.covers(0x1000, 0x5000));
        let place = Place { guest: 0x2000, len: 0x3000, user: 0x2000, offset: 0 };
        let fewer = more.without(place).expect("there");
        assert!(!fewer.covers(0x2000, 1) && fewer.covers(0x5000, 1));
        assert!(matches!(fewer.without(place), Err(MemoryError::Unknown)));
    }

    #[test]
    fn a_file_that_is_too_short_is_not_mapped() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x1000).expect("grown");
        let place = Place { guest: 0, len: 0x1000, user: 0, offset: 0x1000 };
        let fault = FaultFlag::default();
        assert!(matches!(Region::map(place, file, &fault), Err(MemoryError::Short { wanted: 0x2000, has: 0x1000 })));
    }

    #[test]
    fn a_page_that_is_gone_is_noticed_by_a_touch() {
        let file = rustix::fs::memfd_create("gone", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x4000).expect("grown");
        let fault = FaultFlag::default();
        let place = Place { guest: 0x1000, len: 0x4000, user: 0, offset: 0 };
        let region = Region::map(place, file.try_clone().expect("a copy"), &fault).expect("mapped");
        let memory = Memory::new(vec![region]).expect("memory");
        memory.touch(0x1001, 0x3fff).expect("there");
        rustix::fs::ftruncate(&file, 0x3000).expect("shortened");
        memory.touch(0x1001, 0x2fff).expect("there");
        assert!(!fault.is_set());
        memory.touch(0x3fff, 2).expect("there");
        assert!(fault.is_set());
    }

    #[test]
    fn a_log_has_a_bit_for_each_page_that_was_touched() {
        let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 0x1000).expect("grown");
        let log = DirtyLog::map(file.try_clone().expect("a copy"), 16, 2, &FaultFlag::default()).expect("mapped");
        log.mark(0x0fff, 2);
        log.mark(0xa000, 0);
        log.mark(0xf000, 0x100_0000);
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes, 15).expect("read");
        assert_eq!(bytes, [0, 0b11, 0b1000_0000, 0]);
    }
}
