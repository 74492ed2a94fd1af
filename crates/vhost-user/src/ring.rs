//! A split virtqueue on the device side: descriptor table, available ring, used ring.
//!
//! The crate `virtio-queue` is not used: it reads only newly available chains, so inflight requests of an earlier
//! daemon could not be resumed, and it treats a broken chain as a valid end.

use std::sync::atomic::{AtomicU16, Ordering, fence};

use format_version::NewerFormat;
use vm_memory::{AtomicInteger, VolatileMemory};

use crate::memory::{DirtyLog, Memory, Part};

/// Most descriptors of a chain.
pub const DESCRIPTORS_MAX: u32 = 1024 + 2;

const DESCRIPTOR_BYTES: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;
/// Bytes of flags and index before a ring's entries.
const HEAD_BYTES: usize = 4;

/// Violation of the rules by a driver, or loss of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Rings outside memory or misaligned.
    #[error("the rings are outside the guest's memory or misaligned")]
    Rings,
    /// More available requests than entries.
    #[error("{0} requests are available in a queue of {1} entries")]
    Available(u16, u16),
    /// A descriptor index beyond its table.
    #[error("descriptor {0} is beyond the end of its table")]
    Index(u16),
    /// An endless chain.
    #[error("the descriptor chain at {0} is endless")]
    Loop(u16),
    /// An invalid indirect table.
    #[error("an indirect table of {0} bytes is invalid or nested")]
    Table(u32),
    /// Writable descriptors before readable ones.
    #[error("readable descriptors follow writable ones")]
    Order,
    /// A buffer outside memory.
    #[error("a buffer of {1} bytes at {0:#x} is outside the guest's memory")]
    Outside(u64, u32),
    /// A page of the front end's memory is lost.
    #[error(
        "a page of the guest's memory is missing: its file was truncated, or its file system is full (see \
         \"Isolation of guests\" in docs/admin/vhost-user.md)"
    )]
    Lost,
    /// A later version has recorded the inflight requests.
    #[error("the memory of inflight requests was {0}")]
    Newer(NewerFormat),
    /// Too short for a request's header, or without a writable byte for its status.
    #[error("a request has no complete header or no writable status byte")]
    Short,
}

/// A buffer in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub at: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The buffers of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Buffers that the device reads.
    pub readable: Vec<Segment>,
    /// Buffers that the device writes.
    pub writable: Vec<Segment>,
}

/// Guest addresses of a queue's parts, and negotiated features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of entries, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: u64,
    /// Available ring, written by the driver.
    pub available: u64,
    /// Used ring, written by the device.
    pub used: u64,
    /// True if notifications are suppressed by event indices.
    pub event_idx: bool,
}

/// A running queue.
pub struct Ring {
    layout: Layout,
    descriptors: Part,
    available: Part,
    used: Part,
    /// Next index of the available ring.
    next_available: u16,
    /// Next index of the used ring.
    next_used: u16,
    /// `next_used` at the last call of [`Ring::must_notify`].
    last_checked: Option<u16>,
}

/// Reads a field that both sides may change at any time.
fn field(part: &Part, at: usize) -> u16 {
    let slice = part.slice(at, 2);
    let value: u16 = slice.get_atomic_ref::<AtomicU16>(0).expect("rings are aligned").load(Ordering::Acquire);
    u16::from_le(value)
}

fn set_field(part: &Part, at: usize, value: u16) {
    let slice = part.slice(at, 2);
    AtomicInteger::store(
        slice.get_atomic_ref::<AtomicU16>(0).expect("rings are aligned"),
        value.to_le(),
        Ordering::Release,
    );
}

impl Ring {
    /// A queue that continues at its used index.
    pub fn new(layout: Layout, memory: &Memory) -> Result<Ring, QueueError> {
        let [descriptors, available, used] = Ring::parts(&layout, memory).ok_or(QueueError::Rings)?;
        let next_used = field(&used, 2);
        Ok(Ring { layout, descriptors, available, used, next_available: next_used, next_used, last_checked: None })
    }

    /// Maps the same queue after a change of the guest's memory.
    pub fn remap(&mut self, memory: &Memory) -> Result<(), QueueError> {
        let parts = Ring::parts(&self.layout, memory).ok_or(QueueError::Rings)?;
        [self.descriptors, self.available, self.used] = parts;
        Ok(())
    }

    fn parts(layout: &Layout, memory: &Memory) -> Option<[Part; 3]> {
        if !layout.size.is_power_of_two() {
            return None;
        }
        let size = usize::from(layout.size);
        let aligned_part =
            |at: u64, len: usize, align: usize| memory.part(at, len).filter(|part| part.is_aligned(align));
        Some([
            aligned_part(layout.descriptors, DESCRIPTOR_BYTES * size, 16)?,
            aligned_part(layout.available, HEAD_BYTES + 2 * size + 2, 2)?,
            aligned_part(layout.used, HEAD_BYTES + 8 * size + 2, 4)?,
        ])
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.layout.size
    }

    /// Next index of the available ring, at which a later server continues.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Used index, modulo 2^16.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Sets the next index of the available ring.
    pub fn set_next_available(&mut self, next: u16) {
        self.next_available = next;
    }

    /// Takes the first descriptor index of the next request, if there is one.
    pub fn pop(&mut self) -> Result<Option<u16>, QueueError> {
        let waiting = field(&self.available, 2).wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.layout.size {
            return Err(QueueError::Available(waiting, self.layout.size));
        }
        let slot = usize::from(self.next_available % self.layout.size);
        let head = field(&self.available, HEAD_BYTES + 2 * slot);
        self.next_available = self.next_available.wrapping_add(1);
        if head >= self.layout.size { Err(QueueError::Index(head)) } else { Ok(Some(head)) }
    }

    /// Reads the buffers of the request at `head` into `chain`.
    pub fn read_chain(&self, memory: &Memory, head: u16, chain: &mut Chain) -> Result<(), QueueError> {
        chain.readable.clear();
        chain.writable.clear();
        let (mut indirect, mut entries, mut index) = (None, u32::from(self.layout.size), head);
        let mut remaining = entries.min(DESCRIPTORS_MAX);
        loop {
            if u32::from(index) >= entries {
                return Err(QueueError::Index(index));
            }
            if remaining == 0 {
                return Err(QueueError::Loop(head));
            }
            remaining -= 1;
            let mut bytes = [0; DESCRIPTOR_BYTES];
            let at = DESCRIPTOR_BYTES * usize::from(index);
            match indirect {
                None => _ = self.descriptors.slice(at, DESCRIPTOR_BYTES).copy_to(&mut bytes),
                // The table was checked to be in memory.
                Some(table) => memory.read(table + at as u64, &mut bytes).map_err(|_| QueueError::Outside(table, 0))?,
            }
            let at = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let len = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            let flags = u16::from_le_bytes(bytes[12..14].try_into().expect("two bytes"));
            let next = u16::from_le_bytes(bytes[14..].try_into().expect("two bytes"));
            if flags & INDIRECT != 0 {
                let count = len / DESCRIPTOR_BYTES as u32;
                let is_table = len > 0 && len.is_multiple_of(DESCRIPTOR_BYTES as u32) && flags & NEXT == 0;
                if indirect.is_some() || !is_table || count > DESCRIPTORS_MAX {
                    return Err(QueueError::Table(len));
                }
                if !memory.covers(at, len as usize) {
                    return Err(QueueError::Outside(at, len));
                }
                (indirect, entries, index, remaining) = (Some(at), count, 0, count);
                continue;
            }
            if !memory.covers(at, len as usize) {
                return Err(QueueError::Outside(at, len));
            }
            match flags & WRITE {
                0 if !chain.writable.is_empty() => return Err(QueueError::Order),
                0 => chain.readable.push(Segment { at, len }),
                _ => chain.writable.push(Segment { at, len }),
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Returns a request to the driver, with the number of bytes written to its buffers.
    pub fn push_used(&mut self, head: u16, len: u32, log: Option<(&DirtyLog, u64)>) {
        let slot = usize::from(self.next_used % self.layout.size);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        let at = HEAD_BYTES + 8 * slot;
        self.used.slice(at, 8).copy_from(&entry);
        self.next_used = self.next_used.wrapping_add(1);
        set_field(&self.used, 2, self.next_used);
        if let Some((log, used)) = log {
            log.mark(used + at as u64, 8);
            log.mark(used, HEAD_BYTES);
        }
    }

    /// True if the driver wants a notification of requests used since the last call.
    pub fn must_notify(&mut self) -> bool {
        // The used entries must be visible to the driver before its event index is read.
        fence(Ordering::SeqCst);
        let now = self.next_used;
        let Some(last_checked) = self.last_checked.replace(now) else { return true };
        if !self.layout.event_idx {
            return field(&self.available, 0) & NO_INTERRUPT == 0;
        }
        let event = field(&self.available, HEAD_BYTES + 2 * usize::from(self.layout.size));
        now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(last_checked)
    }

    /// Enables notifications of the driver. Returns true if requests became available meanwhile.
    pub fn enable_notifications(&mut self, log: Option<(&DirtyLog, u64)>) -> bool {
        let at = match self.layout.event_idx {
            true => HEAD_BYTES + 8 * usize::from(self.layout.size),
            false => 0,
        };
        set_field(&self.used, at, if self.layout.event_idx { self.next_available } else { 0 });
        if let Some((log, used)) = log {
            log.mark(used + at as u64, 2);
        }
        fence(Ordering::SeqCst);
        field(&self.available, 2) != self.next_available
    }

    /// Disables notifications of the driver while the queue is polled. With `event_idx` they are disabled already.
    pub fn disable_notifications(&mut self) {
        if !self.layout.event_idx {
            set_field(&self.used, 0, NO_NOTIFY);
        }
    }
}

#[cfg(test)]
mod tests;
