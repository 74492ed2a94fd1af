//! Requests that were taken and not finished, in memory that outlives the daemon: whoever serves the queue next takes them up again.
//!
//! The front end keeps the memory and hands it to the next daemon. Its layout is the specification's for a split queue, behind a block of
//! our own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use format_version::NewerFormat;
use rustix::fs::{MemfdFlags, SealFlags};
use seam::real::FaultFlag;
use vm_memory::VolatileMemory;

use crate::memory::{Mapping, MemoryError, Part};

/// Bytes of our own before the queues.
const OWN_BYTES: usize = 64;
// In them: whether the driver was promised a write-through cache; which daemon wrote this; how many writes were acknowledged that are lost
// with the daemon's memory, and how many of those a flush has made durable since.
const WRITE_THROUGH_AT: usize = 0;
const DAEMON_AT: usize = 8;
const PROMISED_AT: usize = 16;
const KEPT_AT: usize = 24;
const QUEUE_HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// The layout's version, of our own block as well; 0 in memory that no daemon has used.
const VERSION: u16 = 1;

/// Bytes for so many queues of that size.
pub fn area_bytes(queues: u16, size: u16) -> u64 {
    (OWN_BYTES + usize::from(queues) * queue_bytes(size)) as u64
}

fn queue_bytes(size: u16) -> usize {
    (QUEUE_HEAD_BYTES + usize::from(size) * ENTRY_BYTES).next_multiple_of(64)
}

/// New memory for so many queues: a file that nobody can shorten under us.
pub fn make_area(queues: u16, size: u16) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hotset-inflight", flags)?;
    rustix::fs::ftruncate(&file, area_bytes(queues, size))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The memory of all queues.
#[derive(Clone)]
pub struct Area {
    part: Part,
    queues: u16,
    size: u16,
}

impl Area {
    /// Maps what a front end hands over; `fault` is set once a page of it cannot be had.
    pub fn map(
        file: OwnedFd,
        (offset, len): (u64, u64),
        (queues, size): (u16, u16),
        fault: &FaultFlag,
    ) -> Result<Area, MemoryError> {
        let wanted = area_bytes(queues, size);
        let end = offset.checked_add(wanted).ok_or(MemoryError::Place { guest: offset, len })?;
        if len < wanted || !offset.is_multiple_of(64) {
            return Err(MemoryError::Short { wanted, has: len });
        }
        let whole = Part::whole(Mapping::of_file(file, end, fault)?, end as usize);
        let part = whole.part(offset as usize, wanted as usize).expect("its end was mapped");
        Ok(Area { part, queues, size })
    }

    /// The part of one queue, if there is one for it.
    pub fn queue(&self, index: usize, size: u16) -> Option<Inflight> {
        if index >= usize::from(self.queues) || size > self.size {
            return None;
        }
        let part = self.part.part(OWN_BYTES + index * queue_bytes(self.size), queue_bytes(self.size))?;
        Some(Inflight { part, size: self.size, counter: 0 })
    }

    /// True when a daemon whose number is below `lost_before` acknowledged writes that no flush had made durable by its end.
    pub fn is_in_doubt(&self, lost_before: u64) -> bool {
        let [written_by, promised, kept] = [DAEMON_AT, PROMISED_AT, KEPT_AT].map(|at| load64(&self.part, at));
        written_by < lost_before && promised != kept
    }

    /// From now on it is this daemon's, and nothing is in doubt.
    pub fn adopt(&self, daemon: u64) {
        store64(&self.part, KEPT_AT, load64(&self.part, PROMISED_AT));
        store64(&self.part, DAEMON_AT, daemon);
    }

    /// A write is about to be acknowledged that is in memory alone.
    pub fn promise(&self) {
        store64(&self.part, PROMISED_AT, load64(&self.part, PROMISED_AT).wrapping_add(1));
    }

    /// How many were, for a flush that covers them.
    pub fn promised(&self) -> u64 {
        load64(&self.part, PROMISED_AT)
    }

    /// A flush has made so many durable.
    pub fn keep(&self, promised: u64) {
        store64(&self.part, KEPT_AT, promised);
    }

    /// True when the driver was promised that what is acknowledged is durable.
    pub fn is_write_through(&self) -> bool {
        load16(&self.part, WRITE_THROUGH_AT) != 0
    }

    /// Remembers what the driver was promised.
    pub fn set_write_through(&self, is: bool) {
        store16(&self.part, WRITE_THROUGH_AT, u16::from(is));
    }
}

fn load16(part: &Part, at: usize) -> u16 {
    part.slice(at, 2).get_atomic_ref::<AtomicU16>(0).expect("aligned").load(Ordering::SeqCst)
}

fn store16(part: &Part, at: usize, value: u16) {
    part.slice(at, 2).get_atomic_ref::<AtomicU16>(0).expect("aligned").store(value, Ordering::SeqCst);
}

fn load64(part: &Part, at: usize) -> u64 {
    part.slice(at, 8).get_atomic_ref::<AtomicU64>(0).expect("aligned").load(Ordering::SeqCst)
}

fn store64(part: &Part, at: usize, value: u64) {
    part.slice(at, 8).get_atomic_ref::<AtomicU64>(0).expect("aligned").store(value, Ordering::SeqCst);
}

// The head of a queue: features (8 bytes), version, entries, the last head that was used, how many were.
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_AT: usize = 12;
const USED_AT: usize = 14;

/// The requests of one queue that are under way.
pub struct Inflight {
    part: Part,
    size: u16,
    /// Requests so far: the order in which they are taken up again.
    counter: u64,
}

impl Inflight {
    fn entry(&self, head: u16) -> usize {
        QUEUE_HEAD_BYTES + usize::from(head) * ENTRY_BYTES
    }

    fn number(&self, head: u16) -> u64 {
        load64(&self.part, self.entry(head) + 8)
    }

    /// What an earlier daemon had taken and not given back by the time that `used` requests were, oldest first. Fails, and changes nothing,
    /// where that was a later version.
    pub fn recover(&mut self, used: u16) -> Result<Vec<u16>, NewerFormat> {
        let version = load16(&self.part, VERSION_AT);
        if version > VERSION {
            return Err(NewerFormat::of_format(version, VERSION, None));
        }
        if version == 0 {
            store16(&self.part, VERSION_AT, VERSION);
            store16(&self.part, ENTRIES_AT, self.size);
        } else if load16(&self.part, USED_AT) != used {
            // It was given back, and the end came before that was noted.
            let last = load16(&self.part, LAST_AT);
            if last < self.size {
                store16(&self.part, self.entry(last), 0);
            }
        }
        store16(&self.part, USED_AT, used);
        // Looked at once: the other side may write here while it is sorted.
        let under_way = (0..self.size).filter(|head| load16(&self.part, self.entry(*head)) != 0);
        let mut left: Vec<(u64, u16)> = under_way.map(|head| (self.number(head), head)).collect();
        left.sort_unstable();
        self.counter = left.last().map_or(0, |(number, _)| *number);
        Ok(left.into_iter().map(|(_, head)| head).collect())
    }

    /// A request is under way from now on.
    pub fn begin(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        let at = self.entry(head);
        store64(&self.part, at + 8, self.counter);
        store16(&self.part, at, 1);
    }

    /// A request is about to be given back.
    pub fn ending(&self, head: u16) {
        store16(&self.part, LAST_AT, head);
    }

    /// It was; `used` were by now.
    pub fn ended(&self, head: u16, used: u16) {
        store16(&self.part, self.entry(head), 0);
        store16(&self.part, USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> (OwnedFd, Area) {
        let file = make_area(2, 8).expect("memory");
        let area = map(file.try_clone().expect("a copy"), 0, area_bytes(2, 8)).expect("mapped");
        (file, area)
    }

    fn map(file: OwnedFd, offset: u64, len: u64) -> Result<Area, MemoryError> {
        Area::map(file, (offset, len), (2, 8), &FaultFlag::default())
    }

    #[test]
    fn who_comes_next_finds_what_was_under_way_in_its_order() {
        let (file, area) = area();
        let mut first = area.queue(1, 8).expect("two queues");
        assert_eq!(first.recover(0), Ok(vec![]));
        for head in [5, 2, 7, 0] {
            first.begin(head);
        }
        first.ending(2);
        first.ended(2, 1);
        let again = map(file, 0, area_bytes(2, 8)).expect("mapped");
        let mut next = again.queue(1, 8).expect("two queues");
        assert_eq!(next.recover(1), Ok(vec![5, 7, 0]));
        next.begin(2);
        assert_eq!(next.recover(1), Ok(vec![5, 7, 0, 2]), "what is taken later comes later");
        assert_eq!(again.queue(0, 8).expect("two queues").recover(0), Ok(vec![]));
    }

    #[test]
    fn what_the_driver_has_is_not_done_again_though_the_end_came_before_that_was_noted() {
        let (_, area) = area();
        let mut first = area.queue(0, 8).expect("two queues");
        first.recover(0).expect("it is new");
        first.begin(3);
        first.begin(4);
        first.ending(3);
        assert_eq!(area.queue(0, 8).expect("two queues").recover(1), Ok(vec![4]), "used says that 3 was given back");
        let mut second = area.queue(0, 8).expect("two queues");
        second.ending(4);
        assert_eq!(second.recover(1), Ok(vec![4]), "used says that 4 was not");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_what_was_promised_is_kept() {
        let (file, area) = area();
        assert!(area.queue(2, 8).is_none() && area.queue(0, 16).is_none());
        assert!(map(file.try_clone().expect("a copy"), 64, area_bytes(2, 8)).is_err());
        assert!(map(file.try_clone().expect("a copy"), 0, 64).is_err());
        area.set_write_through(true);
        assert!(map(file, 0, area_bytes(2, 8)).expect("mapped").is_write_through());
    }

    #[test]
    fn what_was_acknowledged_and_not_flushed_is_in_doubt_for_the_next_daemon_alone() {
        let (_, area) = area();
        area.adopt(1);
        area.promise();
        area.keep(area.promised());
        assert!(!area.is_in_doubt(1) && !area.is_in_doubt(2));
        area.promise();
        assert!(!area.is_in_doubt(1) && area.is_in_doubt(2));
        area.adopt(2);
        assert!(!area.is_in_doubt(2) && !area.is_in_doubt(3));
    }

    fn content(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; area_bytes(2, 8) as usize];
        let read = rustix::io::pread(file, &mut bytes, 0).expect("memory");
        assert_eq!(read, bytes.len());
        bytes
    }

    /// Three requests under way in the second queue, and three acknowledged writes that a flush has covered.
    fn write_golden() -> Vec<u8> {
        let (file, area) = area();
        area.set_write_through(true);
        area.adopt(41);
        (0..3).for_each(|_| area.promise());
        area.keep(area.promised());
        let mut queue = area.queue(1, 8).expect("two queues");
        queue.recover(0).expect("it is new");
        [5, 2, 7, 0].into_iter().for_each(|head| queue.begin(head));
        queue.ending(2);
        queue.ended(2, 1);
        content(&file)
    }

    #[test]
    fn golden_requests_under_way_are_taken_up() {
        for golden in golden::files("inflight", write_golden) {
            let file = make_area(2, 8).expect("memory");
            rustix::io::pwrite(&file, &golden.bytes, 0).expect("memory");
            let area = map(file, 0, area_bytes(2, 8)).expect("mapped");
            assert!(area.is_write_through() && !area.is_in_doubt(42), "written by {}", golden.release);
            area.promise();
            let doubts = (area.is_in_doubt(41), area.is_in_doubt(42));
            assert_eq!((doubts, area.promised()), ((false, true), 4), "written by {}", golden.release);
            assert_eq!(area.queue(1, 8).expect("two queues").recover(1), Ok(vec![5, 7, 0]));
            assert_eq!(area.queue(0, 8).expect("two queues").recover(0), Ok(vec![]));
        }
    }

    #[test]
    fn requests_of_a_newer_version_are_refused_and_stay_as_they_are() {
        let (file, area) = area();
        let mut queue = area.queue(1, 8).expect("two queues");
        queue.recover(0).expect("it is new");
        queue.begin(3);
        store16(&queue.part, VERSION_AT, 2);
        let before = content(&file);
        assert_eq!(
            queue.recover(7).expect_err("a later version").to_string(),
            "written by a newer version of Hotset (format 2, this one reads up to 1); needs at least a version that reads format 2"
        );
        assert_eq!(content(&file), before);
    }
}
