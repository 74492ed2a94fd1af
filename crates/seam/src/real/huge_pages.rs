//! A shared mapping of a file in a tmpfs, with huge pages where the kernel permits: direct I/O pins a huge page in one
//! step, but small pages one by one.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Size of a huge page. In a mapping it lies at a multiple of its size, in memory and in the file.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Longest time of a request for a huge page; a longer one counts as a refusal.
const COLLAPSE_TIME_MAX: Duration = Duration::from_millis(5);
/// Number of consecutive refusals after which no more huge pages are requested: each attempt may compact memory.
const REFUSALS_MAX: u32 = 4;

/// A mapped file.
pub(super) struct HugeMapping {
    /// Start of the address space, which is one huge page longer than the file.
    reserved: NonNull<u8>,
    /// Start of the file, at a multiple of the huge page size.
    data: NonNull<u8>,
    len: usize,
    refusals: Cell<u32>,
}

impl HugeMapping {
    /// Maps `len` bytes of `file`.
    pub(super) fn new(file: &File, len: usize) -> io::Result<HugeMapping> {
        // Without rights the reserved address space takes no memory.
        let reserve_flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel.
        let reserved =
            unsafe { libc::mmap(std::ptr::null_mut(), len + HUGE_PAGE_BYTES, libc::PROT_NONE, reserve_flags, -1, 0) };
        let reserved = address(reserved)?;
        // SAFETY: at most one huge page further, inside the reserved address space.
        let data = unsafe { reserved.add(reserved.as_ptr().align_offset(HUGE_PAGE_BYTES)) };
        let mapping = HugeMapping { reserved, data, len, refusals: Cell::new(0) };
        let (protection, shared_flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: replaces a part of the reserved address space, to which no pointer leads yet.
        let mapped = unsafe {
            libc::mmap(data.as_ptr().cast(), len, protection, shared_flags | libc::MAP_FIXED, file.as_raw_fd(), 0)
        };
        address(mapped).map(|_| mapping)
    }

    /// Start of the file.
    pub(super) fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// Replaces the small pages of a range by huge ones. The range is allocated and not in use yet. A refusal, as by
    /// Linux before 6.1 or without a free huge page, leaves the small pages.
    pub(super) fn use_huge_pages(&self, offset: usize, len: usize) {
        let (first_byte, end_page) = (offset.next_multiple_of(HUGE_PAGE_BYTES), (offset + len) / HUGE_PAGE_BYTES);
        for start in (first_byte..end_page * HUGE_PAGE_BYTES).step_by(HUGE_PAGE_BYTES) {
            if self.refusals.get() >= REFUSALS_MAX {
                return;
            }
            debug_assert!(start + HUGE_PAGE_BYTES <= self.len, "the range lies in the file");
            let started_at = Instant::now();
            // SAFETY: the range lies in the mapping; the content stays.
            let result =
                unsafe { libc::madvise(self.data.add(start).as_ptr().cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) };
            // The core's thread must not wait while the kernel compacts memory.
            let is_refused = result != 0 || started_at.elapsed() > COLLAPSE_TIME_MAX;
            self.refusals.set(if is_refused { self.refusals.get() + 1 } else { 0 });
        }
    }
}

impl Drop for HugeMapping {
    fn drop(&mut self) {
        // SAFETY: reserved with this length in `new`; no pointers into it remain.
        unsafe { libc::munmap(self.reserved.as_ptr().cast(), self.len + HUGE_PAGE_BYTES) };
    }
}

/// The address of a new mapping, or the error of the system call just made.
fn address(mapped: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(mapped.cast()).expect("the kernel maps address zero only on request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this process's mapping at `at` that are mapped by huge pages of a tmpfs.
    fn huge_bytes(at: NonNull<u8>) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
        let start = format!("{:x}-", at.as_ptr() as usize);
        let mapping = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let line = mapping.into_iter().find(|line| line.starts_with("ShmemPmdMapped")).expect("the mapping exists");
        let kib: usize = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
        kib << 10
    }

    #[test]
    fn mapping_is_aligned_and_keeps_its_content_in_huge_pages() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        let len = 3 * HUGE_PAGE_BYTES + 4096;
        file.set_len(len as u64).expect("the file can be extended");
        let mapping = HugeMapping::new(&file, len).expect("the file can be mapped");
        assert_eq!(mapping.data().as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        // SAFETY: inside the mapping.
        unsafe { mapping.data().add(4096).write_bytes(7, len - 4096) };
        mapping.use_huge_pages(4096, len - 4096);
        match mapping.refusals.get() {
            0 => {
                assert_eq!(huge_bytes(mapping.data()), 2 * HUGE_PAGE_BYTES, "the first page is not whole in the range")
            }
            _ => eprintln!("SKIPPED: the kernel gives no huge pages in /dev/shm"),
        }
        // SAFETY: inside the mapping.
        let content = unsafe { std::slice::from_raw_parts(mapping.data().as_ptr(), len) };
        assert!(content[..4096].iter().all(|byte| *byte == 0) && content[4096..].iter().all(|byte| *byte == 7));
    }
}
