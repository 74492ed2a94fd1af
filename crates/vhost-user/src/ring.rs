//! A split virtqueue on the device side: descriptor table, available ring, used ring.
//!
//! The crate `virtio-queue` is not used: it reads only newly available chains, so inflight requests of an earlier
//! daemon could not be resumed, and it treats a broken chain as a valid end.

use std::sync::atomic::{AtomicU16, Ordering, fence};

use format_version::NewerFormat;
use vm_memory::{AtomicInteger, VolatileMemory};

use crate::memory::{DirtyLog, MappedRange, Memory};

/// Maximum number of descriptors of a chain.
pub const DESCRIPTORS_MAX: u32 = 1024 + 2;

const DESCRIPTOR_BYTES: usize = 16;
/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the available ring: the driver wants no notifications.
const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no notifications.
const NO_NOTIFY: u16 = 1;
/// Bytes of flags and index before a ring's entries.
const HEADER_BYTES: usize = 4;
/// Offsets of flags and index in a ring.
const FLAGS_OFFSET: usize = 0;
const INDEX_OFFSET: usize = 2;
/// Bytes of an entry of the available ring.
const AVAILABLE_ENTRY_BYTES: usize = 2;
/// Bytes of an entry of the used ring.
const USED_ENTRY_BYTES: usize = 8;
/// Bytes of the event index after a ring's entries.
const EVENT_BYTES: usize = 2;

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
    /// A page of the front end's memory is missing.
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
    pub address: u64,
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

/// Guest addresses of a queue's descriptor table and rings, and negotiated features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of entries, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptor_table: u64,
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
    descriptor_table: MappedRange,
    available: MappedRange,
    used: MappedRange,
    /// Next index of the available ring.
    next_available: u16,
    /// Next index of the used ring.
    next_used: u16,
    /// `next_used` at the last call of [`Ring::must_notify`].
    last_checked: Option<u16>,
}

/// Reads a field that both sides may change at any time.
fn load_field(range: &MappedRange, offset: usize) -> u16 {
    let slice = range.slice(offset, 2);
    let value: u16 = slice.get_atomic_ref::<AtomicU16>(0).expect("rings are aligned").load(Ordering::Acquire);
    u16::from_le(value)
}

/// Writes a field that both sides may read at any time.
fn store_field(range: &MappedRange, offset: usize, value: u16) {
    let slice = range.slice(offset, 2);
    AtomicInteger::store(
        slice.get_atomic_ref::<AtomicU16>(0).expect("rings are aligned"),
        value.to_le(),
        Ordering::Release,
    );
}

impl Ring {
    /// A queue that continues at its used index.
    pub fn new(layout: Layout, memory: &Memory) -> Result<Ring, QueueError> {
        let [descriptor_table, available, used] = Ring::map_rings(&layout, memory).ok_or(QueueError::Rings)?;
        let next_used = load_field(&used, INDEX_OFFSET);
        Ok(Ring { layout, descriptor_table, available, used, next_available: next_used, next_used, last_checked: None })
    }

    /// Maps the same queue after a change of the guest's memory.
    pub fn remap(&mut self, memory: &Memory) -> Result<(), QueueError> {
        let ranges = Ring::map_rings(&self.layout, memory).ok_or(QueueError::Rings)?;
        [self.descriptor_table, self.available, self.used] = ranges;
        Ok(())
    }

    /// Maps descriptor table, available ring and used ring.
    fn map_rings(layout: &Layout, memory: &Memory) -> Option<[MappedRange; 3]> {
        if !layout.size.is_power_of_two() {
            return None;
        }
        let size = usize::from(layout.size);
        let aligned_range = |address: u64, len: usize, align: usize| {
            memory.mapped_range(address, len).filter(|range| range.is_aligned(align))
        };
        Some([
            aligned_range(layout.descriptor_table, DESCRIPTOR_BYTES * size, 16)?,
            aligned_range(layout.available, HEADER_BYTES + AVAILABLE_ENTRY_BYTES * size + EVENT_BYTES, 2)?,
            aligned_range(layout.used, HEADER_BYTES + USED_ENTRY_BYTES * size + EVENT_BYTES, 4)?,
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
        let available = load_field(&self.available, INDEX_OFFSET).wrapping_sub(self.next_available);
        if available == 0 {
            return Ok(None);
        }
        if available > self.layout.size {
            return Err(QueueError::Available(available, self.layout.size));
        }
        let slot = usize::from(self.next_available % self.layout.size);
        let head = load_field(&self.available, HEADER_BYTES + AVAILABLE_ENTRY_BYTES * slot);
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
            let offset = DESCRIPTOR_BYTES * usize::from(index);
            match indirect {
                None => _ = self.descriptor_table.slice(offset, DESCRIPTOR_BYTES).copy_to(&mut bytes),
                // The table was checked to be in memory.
                Some(table) => {
                    memory.read(table + offset as u64, &mut bytes).map_err(|_| QueueError::Outside(table, 0))?
                }
            }
            let address = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let len = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            let flags = u16::from_le_bytes(bytes[12..14].try_into().expect("two bytes"));
            let next = u16::from_le_bytes(bytes[14..].try_into().expect("two bytes"));
            if flags & INDIRECT != 0 {
                let count = len / DESCRIPTOR_BYTES as u32;
                let is_table = len > 0 && len.is_multiple_of(DESCRIPTOR_BYTES as u32) && flags & NEXT == 0;
                if indirect.is_some() || !is_table || count > DESCRIPTORS_MAX {
                    return Err(QueueError::Table(len));
                }
                if !memory.covers(address, len as usize) {
                    return Err(QueueError::Outside(address, len));
                }
                (indirect, entries, index, remaining) = (Some(address), count, 0, count);
                continue;
            }
            if !memory.covers(address, len as usize) {
                return Err(QueueError::Outside(address, len));
            }
            match flags & WRITE {
                0 if !chain.writable.is_empty() => return Err(QueueError::Order),
                0 => chain.readable.push(Segment { address, len }),
                _ => chain.writable.push(Segment { address, len }),
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
        let mut entry = [0; USED_ENTRY_BYTES];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        let entry_offset = HEADER_BYTES + USED_ENTRY_BYTES * slot;
        self.used.slice(entry_offset, USED_ENTRY_BYTES).copy_from(&entry);
        self.next_used = self.next_used.wrapping_add(1);
        store_field(&self.used, INDEX_OFFSET, self.next_used);
        if let Some((log, used)) = log {
            log.mark(used + entry_offset as u64, USED_ENTRY_BYTES);
            log.mark(used, HEADER_BYTES);
        }
    }

    /// True if the driver wants a notification of requests used since the last call.
    pub fn must_notify(&mut self) -> bool {
        // The used entries must be visible to the driver before its event index is read.
        fence(Ordering::SeqCst);
        let now = self.next_used;
        let Some(last_checked) = self.last_checked.replace(now) else { return true };
        if !self.layout.event_idx {
            return load_field(&self.available, FLAGS_OFFSET) & NO_INTERRUPT == 0;
        }
        let event_index =
            load_field(&self.available, HEADER_BYTES + AVAILABLE_ENTRY_BYTES * usize::from(self.layout.size));
        now.wrapping_sub(event_index).wrapping_sub(1) < now.wrapping_sub(last_checked)
    }

    /// Enables notifications of the driver. Returns true if requests became available meanwhile.
    pub fn enable_notifications(&mut self, log: Option<(&DirtyLog, u64)>) -> bool {
        let offset = match self.layout.event_idx {
            true => HEADER_BYTES + USED_ENTRY_BYTES * usize::from(self.layout.size),
            false => FLAGS_OFFSET,
        };
        store_field(&self.used, offset, if self.layout.event_idx { self.next_available } else { 0 });
        if let Some((log, used)) = log {
            log.mark(used + offset as u64, 2);
        }
        fence(Ordering::SeqCst);
        load_field(&self.available, INDEX_OFFSET) != self.next_available
    }

    /// Disables notifications of the driver while the queue is polled. With `event_idx` they are disabled already.
    pub fn disable_notifications(&mut self) {
        if !self.layout.event_idx {
            store_field(&self.used, FLAGS_OFFSET, NO_NOTIFY);
        }
    }
}

#[cfg(test)]
mod tests;
