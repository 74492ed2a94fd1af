//! A driver's side of a split queue, with separate memory for each request's head, status and data.

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

const DESCRIPTOR_BYTES: u64 = 16;
/// Memory of a request's head, indirect table and status.
const REQUEST_AREA_BYTES: u64 = 128;
const TABLE_AT: u64 = 32;
const STATUS_AT: u64 = 112;

/// A request; offsets and lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read a number of bytes.
    Read(u64, u32),
    /// Write these bytes.
    Write(u64, Vec<u8>),
    /// Make acknowledged writes durable.
    Flush,
    /// Release a range.
    Discard(u64, u64),
    /// Zero a range; it may be released.
    Zero(u64, u64, bool),
    /// The identity.
    Identity,
    /// Any type of request, with its data.
    Other(u32, u64, Vec<u8>),
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Head of its descriptor chain.
    pub head: u16,
    /// 0: done, 1: error, 2: unknown.
    pub status: u8,
    /// Bytes written by the server, as reported.
    pub written: u32,
}

/// One queue.
pub struct Queue {
    memory: Memory,
    at: u64,
    size: u16,
    data_bytes: u32,
    kick: OwnedFd,
    call: OwnedFd,
    err: OwnedFd,
    event_idx: bool,
    indirect: bool,
    available: u16,
    used: u16,
    free: Vec<u16>,
}

impl Queue {
    /// Bytes of a queue with `data_bytes` for each request.
    pub fn bytes(size: u16, data_bytes: u32) -> u64 {
        Queue::rings_bytes(size) + u64::from(size) * (REQUEST_AREA_BYTES + u64::from(data_bytes))
    }

    fn rings_bytes(size: u16) -> u64 {
        (u64::from(size) * (DESCRIPTOR_BYTES + 2 + 8) + 64).next_multiple_of(4096)
    }

    /// A queue at `at` of the guest's memory, for requests of `data_bytes`. With `indirect` each request has its own
    /// table and takes one descriptor, otherwise three.
    pub fn new(
        memory: &Memory,
        at: u64,
        size: u16,
        data_bytes: u32,
        event_idx: bool,
        indirect: bool,
    ) -> io::Result<Queue> {
        let fd = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let step = if indirect { 1 } else { 3 };
        let free = (0..size / step).rev().map(|number| number * step).collect();
        let (memory, kick, call, err) = (memory.clone(), fd()?, fd()?, fd()?);
        let (available, used) = (0, 0);
        Ok(Queue { memory, at, size, data_bytes, kick, call, err, event_idx, indirect, available, used, free })
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
        let available = self.at + DESCRIPTOR_BYTES * u64::from(self.size);
        [self.at, available, (available + 6 + 2 * u64::from(self.size)).next_multiple_of(4)]
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
        self.at + Queue::rings_bytes(self.size) + u64::from(head) * REQUEST_AREA_BYTES
    }

    /// Address of a request's data.
    pub fn data(&self, head: u16) -> u64 {
        let data_start = self.at + Queue::rings_bytes(self.size) + u64::from(self.size) * REQUEST_AREA_BYTES;
        data_start + u64::from(head) * u64::from(self.data_bytes)
    }

    /// Writes a descriptor of the queue's own table.
    pub fn put_descriptor(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.write_descriptor(self.at + DESCRIPTOR_BYTES * u64::from(index), at, len, flags, next);
    }

    fn write_descriptor(&self, address: u64, at: u64, len: u32, flags: u16, next: u16) {
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.memory.write(address, &bytes);
    }

    /// Makes a chain available, and signals the server if it requested signals.
    pub fn offer(&mut self, head: u16) {
        let at = self.addresses()[1];
        let slot = u64::from(self.available % self.size);
        self.memory.store(at + 4 + 2 * slot, head);
        let old = self.available;
        self.available = self.available.wrapping_add(1);
        self.memory.store(at + 2, self.available);
        fence(Ordering::SeqCst);
        let used = self.addresses()[2];
        let needs_signal = match self.event_idx {
            true => {
                let event = self.memory.load(used + 4 + 8 * u64::from(self.size));
                self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(old)
            }
            false => self.memory.load(used) & 1 == 0,
        };
        if needs_signal {
            self.signal();
        }
    }

    /// Sets the available index, past the offered chains, and signals the server.
    pub fn set_available(&mut self, available: u16) {
        self.memory.store(self.addresses()[1] + 2, available);
        self.signal();
    }

    /// Signals the server.
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
        let (kind, at, payload, read_len) = match request {
            Request::Read(at, len) => (0, *at, Vec::new(), *len),
            Request::Write(at, data) => (1, *at, data.clone(), 0),
            Request::Flush => (4, 0, Vec::new(), 0),
            Request::Identity => (8, 0, Vec::new(), 20),
            Request::Discard(at, len) => (11, 0, range(*at, *len, 0), 0),
            Request::Zero(at, len, unmap) => (13, 0, range(*at, *len, u32::from(*unmap)), 0),
            Request::Other(kind, at, data) => (*kind, *at, data.clone(), 0),
        };
        let (area, data) = (self.request_area(head), self.data(head));
        let status = area + STATUS_AT;
        let len = payload.len() as u32 + read_len;
        assert!(len <= self.data_bytes, "the data fits the area of a request");
        let head_bytes: Vec<u8> =
            [u64::from(kind), at / 512].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        self.memory.write(area, &head_bytes);
        self.memory.write(status, &[0xff]);
        self.memory.write(data, &payload);
        let flags = if read_len > 0 { descriptor::WRITE } else { 0 };
        let mut parts = vec![(area, 16, 0)];
        parts.extend((len > 0).then_some((data, len, flags)));
        parts.push((status, 1, descriptor::WRITE));
        let (table, first) = if self.indirect { (area + TABLE_AT, 0) } else { (self.at, head) };
        for (number, (at, len, flags)) in parts.iter().enumerate() {
            let index = first + number as u16;
            let more = if number + 1 < parts.len() { descriptor::NEXT } else { 0 };
            self.write_descriptor(table + DESCRIPTOR_BYTES * u64::from(index), *at, *len, flags | more, index + 1);
        }
        if self.indirect {
            let bytes = DESCRIPTOR_BYTES as u32 * parts.len() as u32;
            self.put_descriptor(head, table, bytes, descriptor::INDIRECT, 0);
        }
        self.offer(head);
        Some(head)
    }

    /// Requests that have completed since the last call.
    pub fn take_completions(&mut self) -> Vec<Done> {
        let mut completions = Vec::new();
        let used = self.addresses()[2];
        while self.memory.load(used + 2) != self.used {
            let slot = u64::from(self.used % self.size);
            let entry = self.memory.read(used + 4 + 8 * slot, 8);
            let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
            let (head, written) = (word(0) as u16, word(4));
            let status = self.memory.read(self.request_area(head) + STATUS_AT, 1)[0];
            assert!(!self.free.contains(&head), "request {head} ended twice");
            self.free.push(head);
            self.used = self.used.wrapping_add(1);
            completions.push(Done { head, status, written });
        }
        completions
    }

    /// Skips completions of chains that were offered without [`Queue::submit`].
    pub fn skip_completions(&mut self) {
        self.used = self.memory.load(self.addresses()[2] + 2);
    }

    /// Requests a call at the next completion; true if a request has completed meanwhile.
    fn enable_call(&self) -> bool {
        if self.event_idx {
            self.memory.store(self.addresses()[1] + 4 + 2 * u64::from(self.size), self.used);
        }
        fence(Ordering::SeqCst);
        self.memory.load(self.addresses()[2] + 2) != self.used
    }

    /// Waits for completions and returns them.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Vec<Done>> {
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

fn range(at: u64, len: u64, flags: u32) -> Vec<u8> {
    let sectors = (len / 512) as u32;
    [&(at / 512).to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
