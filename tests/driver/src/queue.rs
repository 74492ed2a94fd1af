//! A driver's side of a split virtqueue, with separate memory for each request's header, status and data.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::memory::Memory;

/// Flags of descriptors.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod descriptor {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Types of requests.
mod request_type {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Flag of the used ring: the server does not need to be notified.
const NO_NOTIFY: u16 = 1;

const DESCRIPTOR_BYTES: u64 = 16;
/// Offset of the index in the available and in the used ring.
const RING_INDEX_OFFSET: u64 = 2;
/// Offset of the first entry in the available and in the used ring.
const RING_ENTRIES_OFFSET: u64 = 4;
const AVAILABLE_ENTRY_BYTES: u64 = 2;
const USED_ENTRY_BYTES: u64 = 8;
const SECTOR_BYTES: u64 = 512;

/// Memory of a request's header, indirect table and status.
const REQUEST_AREA_BYTES: u64 = 128;
/// Offset of the indirect table in the request's memory; the header is at 0.
const TABLE_OFFSET: u64 = 32;
/// Offset of the status in the request's memory.
const STATUS_OFFSET: u64 = 112;

/// A request; offsets and lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads (offset, length).
    Read(u64, u32),
    /// Writes (offset, data).
    Write(u64, Vec<u8>),
    /// Makes acknowledged writes durable.
    Flush,
    /// Discards (offset, length).
    Discard(u64, u64),
    /// Writes zeroes (offset, length, whether the server may unmap the range).
    WriteZeroes(u64, u64, bool),
    /// Reads the device's ID, a text of at most 20 bytes.
    GetId,
    /// Sends a request of any type (type, offset, data for the server).
    Other(u32, u64, Vec<u8>),
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Head of its descriptor chain.
    pub head: u16,
    /// 0: success, 1: I/O error, 2: unsupported request.
    pub status: u8,
    /// Bytes written by the server, as reported.
    pub written: u32,
}

/// One queue.
pub struct Queue {
    memory: Memory,
    /// Guest address of the queue's memory, which starts with the descriptor table.
    address: u64,
    size: u16,
    /// Longest data of a request.
    data_bytes: u32,
    kick: OwnedFd,
    call: OwnedFd,
    err: OwnedFd,
    event_idx: bool,
    indirect: bool,
    /// Index of the available ring.
    available: u16,
    /// Index of the used ring up to which completions were taken.
    used: u16,
    /// Heads of free descriptor chains.
    free: Vec<u16>,
}

impl Queue {
    /// Memory of a queue in bytes, with `data_bytes` for each request.
    pub fn bytes(size: u16, data_bytes: u32) -> u64 {
        Queue::rings_bytes(size) + u64::from(size) * (REQUEST_AREA_BYTES + u64::from(data_bytes))
    }

    fn rings_bytes(size: u16) -> u64 {
        (u64::from(size) * (DESCRIPTOR_BYTES + AVAILABLE_ENTRY_BYTES + USED_ENTRY_BYTES) + 64).next_multiple_of(4096)
    }

    /// A queue at a guest address, for requests of at most `data_bytes`. With `indirect` each request has its own
    /// descriptor table and takes one descriptor of the queue, otherwise three.
    pub fn new(
        memory: &Memory,
        address: u64,
        size: u16,
        data_bytes: u32,
        event_idx: bool,
        indirect: bool,
    ) -> io::Result<Queue> {
        let fd = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let chain_len = if indirect { 1 } else { 3 };
        let free = (0..size / chain_len).rev().map(|number| number * chain_len).collect();
        let (memory, kick, call, err) = (memory.clone(), fd()?, fd()?, fd()?);
        let (available, used) = (0, 0);
        Ok(Queue { memory, address, size, data_bytes, kick, call, err, event_idx, indirect, available, used, free })
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The base for a server without earlier state.
    pub fn base(&self) -> u16 {
        self.used
    }

    /// Addresses of the descriptors, the available ring and the used ring.
    pub fn addresses(&self) -> [u64; 3] {
        let available = self.address + DESCRIPTOR_BYTES * u64::from(self.size);
        // Flags, index and used_event take 6 bytes.
        let used = (available + 6 + AVAILABLE_ENTRY_BYTES * u64::from(self.size)).next_multiple_of(4);
        [self.address, available, used]
    }

    /// The kick event, signalled by the driver.
    pub fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The call event, signalled by the server.
    pub fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// The error event, signalled by a server that stops the queue.
    pub fn err(&self) -> BorrowedFd<'_> {
        self.err.as_fd()
    }

    fn request_area(&self, head: u16) -> u64 {
        self.address + Queue::rings_bytes(self.size) + u64::from(head) * REQUEST_AREA_BYTES
    }

    /// Address of a request's data.
    pub fn data(&self, head: u16) -> u64 {
        let data_start = self.address + Queue::rings_bytes(self.size) + u64::from(self.size) * REQUEST_AREA_BYTES;
        data_start + u64::from(head) * u64::from(self.data_bytes)
    }

    /// Writes a descriptor of the queue's own table.
    pub fn put_descriptor(&self, index: u16, data_address: u64, len: u32, flags: u16, next: u16) {
        self.write_descriptor(self.address + DESCRIPTOR_BYTES * u64::from(index), data_address, len, flags, next);
    }

    fn write_descriptor(&self, address: u64, data_address: u64, len: u32, flags: u16, next: u16) {
        let bytes =
            [&data_address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.memory.write(address, &bytes);
    }

    /// Makes a chain available, and kicks the server if it requested notifications.
    pub fn offer(&mut self, head: u16) {
        let available_ring = self.addresses()[1];
        let slot = u64::from(self.available % self.size);
        self.memory.store(available_ring + RING_ENTRIES_OFFSET + AVAILABLE_ENTRY_BYTES * slot, head);
        let old = self.available;
        self.available = self.available.wrapping_add(1);
        self.memory.store(available_ring + RING_INDEX_OFFSET, self.available);
        fence(Ordering::SeqCst);
        let used_ring = self.addresses()[2];
        let needs_kick = match self.event_idx {
            true => {
                let avail_event_address = used_ring + RING_ENTRIES_OFFSET + USED_ENTRY_BYTES * u64::from(self.size);
                let avail_event = self.memory.load(avail_event_address);
                self.available.wrapping_sub(avail_event).wrapping_sub(1) < self.available.wrapping_sub(old)
            }
            false => self.memory.load(used_ring) & NO_NOTIFY == 0,
        };
        if needs_kick {
            self.signal();
        }
    }

    /// Sets the available index, past the offered chains, and kicks the server.
    pub fn set_available(&mut self, available: u16) {
        self.memory.store(self.addresses()[1] + RING_INDEX_OFFSET, available);
        self.signal();
    }

    /// Kicks the server.
    pub fn signal(&self) {
        // A full event counter is already signalled.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// True if another request fits.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Submits a request if a descriptor is free; returns its head.
    pub fn submit(&mut self, request: &Request) -> Option<u16> {
        let head = self.free.pop()?;
        let (kind, offset, payload, read_len) = match request {
            Request::Read(offset, len) => (request_type::IN, *offset, Vec::new(), *len),
            Request::Write(offset, data) => (request_type::OUT, *offset, data.clone(), 0),
            Request::Flush => (request_type::FLUSH, 0, Vec::new(), 0),
            Request::GetId => (request_type::GET_ID, 0, Vec::new(), 20),
            Request::Discard(offset, len) => (request_type::DISCARD, 0, range(*offset, *len, 0), 0),
            Request::WriteZeroes(offset, len, may_unmap) => {
                (request_type::WRITE_ZEROES, 0, range(*offset, *len, u32::from(*may_unmap)), 0)
            }
            Request::Other(kind, offset, data) => (*kind, *offset, data.clone(), 0),
        };
        let (area, data) = (self.request_area(head), self.data(head));
        let status = area + STATUS_OFFSET;
        let len = payload.len() as u32 + read_len;
        assert!(len <= self.data_bytes, "the data fits the area of a request");
        let header: Vec<u8> =
            [u64::from(kind), offset / SECTOR_BYTES].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        self.memory.write(area, &header);
        self.memory.write(status, &[0xff]);
        self.memory.write(data, &payload);
        let flags = if read_len > 0 { descriptor::WRITE } else { 0 };
        let mut descriptors = vec![(area, 16, 0)];
        descriptors.extend((len > 0).then_some((data, len, flags)));
        descriptors.push((status, 1, descriptor::WRITE));
        let (table, first) = if self.indirect { (area + TABLE_OFFSET, 0) } else { (self.address, head) };
        for (number, (address, len, flags)) in descriptors.iter().enumerate() {
            let index = first + number as u16;
            let next_flag = if number + 1 < descriptors.len() { descriptor::NEXT } else { 0 };
            let descriptor_address = table + DESCRIPTOR_BYTES * u64::from(index);
            self.write_descriptor(descriptor_address, *address, *len, flags | next_flag, index + 1);
        }
        if self.indirect {
            let bytes = DESCRIPTOR_BYTES as u32 * descriptors.len() as u32;
            self.put_descriptor(head, table, bytes, descriptor::INDIRECT, 0);
        }
        self.offer(head);
        Some(head)
    }

    /// Requests that have completed since the last call.
    pub fn take_completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let used_ring = self.addresses()[2];
        while self.memory.load(used_ring + RING_INDEX_OFFSET) != self.used {
            let slot = u64::from(self.used % self.size);
            let entry =
                self.memory.read(used_ring + RING_ENTRIES_OFFSET + USED_ENTRY_BYTES * slot, USED_ENTRY_BYTES as usize);
            let word = |offset: usize| u32::from_le_bytes(entry[offset..offset + 4].try_into().expect("four bytes"));
            let (head, written) = (word(0) as u16, word(4));
            let status = self.memory.read(self.request_area(head) + STATUS_OFFSET, 1)[0];
            assert!(!self.free.contains(&head), "request {head} ended twice");
            self.free.push(head);
            self.used = self.used.wrapping_add(1);
            completions.push(Completion { head, status, written });
        }
        completions
    }

    /// Skips completions of chains that were offered without [`Queue::submit`].
    pub fn skip_completions(&mut self) {
        self.used = self.memory.load(self.addresses()[2] + RING_INDEX_OFFSET);
    }

    /// Requests a call at the next completion; true if a request has completed meanwhile.
    fn enable_call(&self) -> bool {
        if self.event_idx {
            let used_event_address =
                self.addresses()[1] + RING_ENTRIES_OFFSET + AVAILABLE_ENTRY_BYTES * u64::from(self.size);
            self.memory.store(used_event_address, self.used);
        }
        fence(Ordering::SeqCst);
        self.memory.load(self.addresses()[2] + RING_INDEX_OFFSET) != self.used
    }

    /// Waits for completions and returns them.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Vec<Completion>> {
        loop {
            let completions = self.take_completions();
            if !completions.is_empty() {
                return Ok(completions);
            }
            if self.enable_call() {
                continue;
            }
            if !is_signalled(self.call.as_fd(), timeout)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Waits until the server has stopped the queue with an error; false after the timeout.
    pub fn has_failed(&self, timeout: Duration) -> io::Result<bool> {
        is_signalled(self.err.as_fd(), timeout)
    }
}

fn is_signalled(event: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let timespec = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut entries = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    let signalled = rustix::event::poll(&mut entries, Some(&timespec))? > 0;
    if signalled {
        rustix::io::read(event, &mut [0; 8])?;
    }
    Ok(signalled)
}

/// Data of a discard or of a write of zeroes: one range.
fn range(offset: u64, len: u64, flags: u32) -> Vec<u8> {
    let sectors = (len / SECTOR_BYTES) as u32;
    [&(offset / SECTOR_BYTES).to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
