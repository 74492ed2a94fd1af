//! Inflight requests in memory that outlives the daemon: the next server of a queue resumes them.
//!
//! The front end keeps the memory and passes it to the next daemon. The layout is the specification's for a split
//! queue, after a private header.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use format_version::NewerFormat;
use rustix::fs::{MemfdFlags, SealFlags};
use seam::real::FaultFlag;
use vm_memory::VolatileMemory;

use crate::memory::{MappedRange, Mapping, MemoryError};

/// Bytes of the private header before the queues.
const PRIVATE_HEADER_BYTES: usize = 64;
// Offsets in the private header: write-through promise; generation of the writing daemon; count of acknowledged writes
// that are in memory only; that count at the last flush.
const WRITE_THROUGH_AT: usize = 0;
const DAEMON_AT: usize = 8;
const ACKNOWLEDGED_AT: usize = 16;
const FLUSHED_AT: usize = 24;
const QUEUE_HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// Version of the layout and of the private header; 0 in memory that no daemon has used.
const VERSION: u16 = 1;

/// Size of the memory for this number and size of queues.
pub fn area_bytes(queues: u16, size: u16) -> u64 {
    (PRIVATE_HEADER_BYTES + usize::from(queues) * queue_bytes(size)) as u64
}

fn queue_bytes(size: u16) -> usize {
    (QUEUE_HEADER_BYTES + usize::from(size) * ENTRY_BYTES).next_multiple_of(64)
}

/// Creates memory for this number and size of queues, as a file sealed against truncation.
pub fn create_area(queues: u16, size: u16) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hotset-inflight", flags)?;
    rustix::fs::ftruncate(&file, area_bytes(queues, size))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Inflight memory of all queues.
#[derive(Clone)]
pub struct InflightArea {
    range: MappedRange,
    queues: u16,
    size: u16,
}

impl InflightArea {
    /// Maps memory from a front end; `fault` is set once an access finds a page of it missing (SIGBUS).
    pub fn map(
        file: OwnedFd,
        (offset, len): (u64, u64),
        (queues, size): (u16, u16),
        fault: &FaultFlag,
    ) -> Result<InflightArea, MemoryError> {
        let needed_bytes = area_bytes(queues, size);
        let end = offset.checked_add(needed_bytes).ok_or(MemoryError::InvalidRange { guest: offset, len })?;
        if len < needed_bytes || !offset.is_multiple_of(64) {
            return Err(MemoryError::Short { needed_bytes, available_bytes: len });
        }
        let whole = MappedRange::whole(Mapping::of_file(file, end, fault)?, end as usize);
        let range = whole.subrange(offset as usize, needed_bytes as usize).expect("the range is mapped");
        Ok(InflightArea { range, queues, size })
    }

    /// Inflight memory of one queue, if the area includes it.
    pub fn queue(&self, index: usize, size: u16) -> Option<Inflight> {
        if index >= usize::from(self.queues) || size > self.size {
            return None;
        }
        let range =
            self.range.subrange(PRIVATE_HEADER_BYTES + index * queue_bytes(self.size), queue_bytes(self.size))?;
        Some(Inflight { range, size: self.size, counter: 0 })
    }

    /// True if an earlier daemon than `daemon_generation` acknowledged writes and ended before they were flushed.
    pub fn has_unflushed_writes_before(&self, daemon_generation: u64) -> bool {
        let [written_by, acknowledged_count, flushed_count] =
            [DAEMON_AT, ACKNOWLEDGED_AT, FLUSHED_AT].map(|at| load64(&self.range, at));
        written_by < daemon_generation && acknowledged_count != flushed_count
    }

    /// Records this daemon as the area's writer, with all writes flushed.
    pub fn take_over(&self, daemon_generation: u64) {
        store64(&self.range, FLUSHED_AT, load64(&self.range, ACKNOWLEDGED_AT));
        store64(&self.range, DAEMON_AT, daemon_generation);
    }

    /// Counts a write that is about to be acknowledged and is only in memory.
    pub fn count_acknowledged(&self) {
        store64(&self.range, ACKNOWLEDGED_AT, load64(&self.range, ACKNOWLEDGED_AT).wrapping_add(1));
    }

    /// Number of acknowledged writes, to be passed to [`InflightArea::record_flushed`] after a flush.
    pub fn acknowledged_count(&self) -> u64 {
        load64(&self.range, ACKNOWLEDGED_AT)
    }

    /// Records the count that a flush has made durable.
    pub fn record_flushed(&self, acknowledged_count: u64) {
        store64(&self.range, FLUSHED_AT, acknowledged_count);
    }

    /// True if the driver was promised durable writes.
    pub fn is_write_through(&self) -> bool {
        load16(&self.range, WRITE_THROUGH_AT) != 0
    }

    /// Records whether the driver is promised durable writes.
    pub fn set_write_through(&self, write_through: bool) {
        store16(&self.range, WRITE_THROUGH_AT, u16::from(write_through));
    }
}

fn load16(range: &MappedRange, at: usize) -> u16 {
    range.slice(at, 2).get_atomic_ref::<AtomicU16>(0).expect("fields are aligned").load(Ordering::SeqCst)
}

fn store16(range: &MappedRange, at: usize, value: u16) {
    range.slice(at, 2).get_atomic_ref::<AtomicU16>(0).expect("fields are aligned").store(value, Ordering::SeqCst);
}

fn load64(range: &MappedRange, at: usize) -> u64 {
    range.slice(at, 8).get_atomic_ref::<AtomicU64>(0).expect("fields are aligned").load(Ordering::SeqCst)
}

fn store64(range: &MappedRange, at: usize, value: u64) {
    range.slice(at, 8).get_atomic_ref::<AtomicU64>(0).expect("fields are aligned").store(value, Ordering::SeqCst);
}

// Offsets in the header of a queue, after the features (8 bytes): version, entries, head of the chain completed last,
// used index.
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;

/// Inflight requests of one queue.
pub struct Inflight {
    range: MappedRange,
    size: u16,
    /// Counter of requests, which gives their order for a resume.
    counter: u64,
}

impl Inflight {
    /// Offset of the entry of the chain at `head`.
    fn entry(&self, head: u16) -> usize {
        QUEUE_HEADER_BYTES + usize::from(head) * ENTRY_BYTES
    }

    /// Counter of the request at `head` when it started.
    fn counter_of(&self, head: u16) -> u64 {
        load64(&self.range, self.entry(head) + 8)
    }

    /// Returns the requests that an earlier daemon had taken and not completed when the ring's used index was `used`,
    /// oldest first. Fails and changes nothing if that daemon was of a later version.
    pub fn recover(&mut self, used: u16) -> Result<Vec<u16>, NewerFormat> {
        let version = load16(&self.range, VERSION_AT);
        if version > VERSION {
            return Err(NewerFormat::of_format(version, VERSION, None));
        }
        if version == 0 {
            store16(&self.range, VERSION_AT, VERSION);
            store16(&self.range, ENTRIES_AT, self.size);
        } else if load16(&self.range, USED_AT) != used {
            // The last request was completed, and the daemon ended before it was recorded here.
            let last = load16(&self.range, LAST_HEAD_AT);
            if last < self.size {
                store16(&self.range, self.entry(last), 0);
            }
        }
        store16(&self.range, USED_AT, used);
        // Read once: the peer may write here during the sort.
        let in_flight = (0..self.size).filter(|head| load16(&self.range, self.entry(*head)) != 0);
        let mut unfinished_requests: Vec<(u64, u16)> = in_flight.map(|head| (self.counter_of(head), head)).collect();
        unfinished_requests.sort_unstable();
        self.counter = unfinished_requests.last().map_or(0, |(counter, _)| *counter);
        Ok(unfinished_requests.into_iter().map(|(_, head)| head).collect())
    }

    /// Records that a request starts.
    pub fn record_start(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        let at = self.entry(head);
        store64(&self.range, at + 8, self.counter);
        store16(&self.range, at, 1);
    }

    /// Records that a request is about to be completed.
    pub fn record_completing(&self, head: u16) {
        store16(&self.range, LAST_HEAD_AT, head);
    }

    /// Records that it is completed, with the used index after it.
    pub fn record_completed(&self, head: u16, used: u16) {
        store16(&self.range, self.entry(head), 0);
        store16(&self.range, USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> (OwnedFd, InflightArea) {
        let file = create_area(2, 8).expect("access to a memfd succeeds");
        let area = map(file.try_clone().expect("the descriptor can be duplicated"), 0, area_bytes(2, 8))
            .expect("the file can be mapped");
        (file, area)
    }

    fn map(file: OwnedFd, offset: u64, len: u64) -> Result<InflightArea, MemoryError> {
        InflightArea::map(file, (offset, len), (2, 8), &FaultFlag::default())
    }

    #[test]
    fn next_daemon_finds_inflight_requests_in_order() {
        let (file, area) = area();
        let mut first = area.queue(1, 8).expect("the area has two queues");
        assert_eq!(first.recover(0), Ok(vec![]));
        for head in [5, 2, 7, 0] {
            first.record_start(head);
        }
        first.record_completing(2);
        first.record_completed(2, 1);
        let again = map(file, 0, area_bytes(2, 8)).expect("the file can be mapped");
        let mut next = again.queue(1, 8).expect("the area has two queues");
        assert_eq!(next.recover(1), Ok(vec![5, 7, 0]));
        next.record_start(2);
        assert_eq!(next.recover(1), Ok(vec![5, 7, 0, 2]), "later requests come later");
        assert!(
            again
                .queue(0, 8)
                .expect("the area has two queues")
                .recover(0)
                .is_ok_and(|unfinished_requests| unfinished_requests.is_empty())
        );
    }

    #[test]
    fn completed_request_is_not_repeated_if_its_record_is_missing() {
        let (_, area) = area();
        let mut first = area.queue(0, 8).expect("the area has two queues");
        first.recover(0).expect("the area is new");
        first.record_start(3);
        first.record_start(4);
        first.record_completing(3);
        assert_eq!(
            area.queue(0, 8).expect("the area has two queues").recover(1),
            Ok(vec![4]),
            "the used index includes request 3"
        );
        let mut second = area.queue(0, 8).expect("the area has two queues");
        second.record_completing(4);
        assert_eq!(second.recover(1), Ok(vec![4]), "the used index does not include request 4");
    }

    #[test]
    fn unsuitable_memory_is_refused_and_write_through_promise_survives() {
        let (file, area) = area();
        assert!(area.queue(2, 8).is_none() && area.queue(0, 16).is_none());
        assert!(map(file.try_clone().expect("the descriptor can be duplicated"), 64, area_bytes(2, 8)).is_err());
        assert!(map(file.try_clone().expect("the descriptor can be duplicated"), 0, 64).is_err());
        area.set_write_through(true);
        assert!(map(file, 0, area_bytes(2, 8)).expect("the file can be mapped").is_write_through());
    }

    #[test]
    fn unflushed_writes_are_reported_only_to_the_next_daemon() {
        let (_, area) = area();
        area.take_over(1);
        area.count_acknowledged();
        area.record_flushed(area.acknowledged_count());
        assert!(!area.has_unflushed_writes_before(1) && !area.has_unflushed_writes_before(2));
        area.count_acknowledged();
        assert!(!area.has_unflushed_writes_before(1) && area.has_unflushed_writes_before(2));
        area.take_over(2);
        assert!(!area.has_unflushed_writes_before(2) && !area.has_unflushed_writes_before(3));
    }

    fn content(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; area_bytes(2, 8) as usize];
        let read = rustix::io::pread(file, &mut bytes, 0).expect("access to a memfd succeeds");
        assert_eq!(read, bytes.len());
        bytes
    }

    /// Three requests in flight in the second queue, and three acknowledged writes that a flush has covered.
    fn write_golden() -> Vec<u8> {
        let (file, area) = area();
        area.set_write_through(true);
        area.take_over(41);
        (0..3).for_each(|_| area.count_acknowledged());
        area.record_flushed(area.acknowledged_count());
        let mut queue = area.queue(1, 8).expect("the area has two queues");
        queue.recover(0).expect("the area is new");
        [5, 2, 7, 0].into_iter().for_each(|head| queue.record_start(head));
        queue.record_completing(2);
        queue.record_completed(2, 1);
        content(&file)
    }

    #[test]
    fn golden_inflight_requests_are_resumed() {
        for golden in golden::files("inflight", write_golden) {
            let file = create_area(2, 8).expect("access to a memfd succeeds");
            rustix::io::pwrite(&file, &golden.bytes, 0).expect("access to a memfd succeeds");
            let area = map(file, 0, area_bytes(2, 8)).expect("the file can be mapped");
            assert!(area.is_write_through() && !area.has_unflushed_writes_before(42), "written by {}", golden.release);
            area.count_acknowledged();
            let reported = (area.has_unflushed_writes_before(41), area.has_unflushed_writes_before(42));
            assert_eq!((reported, area.acknowledged_count()), ((false, true), 4), "written by {}", golden.release);
            assert_eq!(area.queue(1, 8).expect("the area has two queues").recover(1), Ok(vec![5, 7, 0]));
            assert_eq!(area.queue(0, 8).expect("the area has two queues").recover(0), Ok(vec![]));
        }
    }

    #[test]
    fn requests_of_a_newer_version_are_refused_and_unchanged() {
        let (file, area) = area();
        let mut queue = area.queue(1, 8).expect("the area has two queues");
        queue.recover(0).expect("the area is new");
        queue.record_start(3);
        store16(&queue.range, VERSION_AT, 2);
        let before = content(&file);
        assert_eq!(
            queue.recover(7).expect_err("a later version").to_string(),
            "written by a newer version of Hotset (format 2, this one reads up to 1); needs at least a version that \
             reads format 2"
        );
        assert_eq!(content(&file), before);
    }
}
