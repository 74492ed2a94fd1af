//! A split virtqueue, as the device sees it: the table of descriptors, what the driver made available, what was used.
//!
//! Written here and not taken from `virtio-queue`: that makes chains of what is newly available alone, so requests that an earlier daemon
//! had taken and not finished could not be taken up again; and it ends a broken chain as if it had ended well.

use std::sync::atomic::{AtomicU16, Ordering, fence};

use format_version::NewerFormat;
use vm_memory::{AtomicInteger, VolatileMemory};

use crate::memory::{DirtyLog, Memory, Part};

/// Descriptors of one chain that are looked at; a longer one is no request.
pub const DESCRIPTORS_MAX: u32 = 1024 + 2;

const DESCRIPTOR_BYTES: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;
/// Flags and index come before a ring's entries.
const HEAD_BYTES: usize = 4;

/// What a driver did that no driver may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Rings outside of memory, or not aligned.
    #[error("its rings do not lie in the guest's memory, or not where they may")]
    Rings,
    /// More is available than there is room for.
    #[error("{0} requests are made available in a queue of {1}")]
    Available(u16, u16),
    /// A descriptor that is not in its table.
    #[error("descriptor {0} lies past the end of its table")]
    Index(u16),
    /// A chain that never ends.
    #[error("a chain of descriptors that begins at {0} never ends")]
    Loop(u16),
    /// A table of descriptors that is none.
    #[error("an indirect table of {0} bytes, or one in another one")]
    Table(u32),
    /// What the device may write comes before what it may read.
    #[error("descriptors for reading follow those for writing")]
    Order,
    /// Buffers that are not in memory.
    #[error("a buffer of {1} bytes at {0:#x} is not in the guest's memory")]
    Outside(u64, u32),
    /// A page of the memory that the front end shares is gone.
    #[error(
        "a page of its memory cannot be had: the file behind it was shortened, or its file system is full (see \"Isolation of \
         guests\" in docs/admin/vhost-user.md)"
    )]
    Lost,
    /// A later version has noted which requests are under way.
    #[error("the memory with its requests under way was {0}")]
    Newer(NewerFormat),
    /// Too short for a request's head, or without room for its status.
    #[error("a request without its head or without room for its status")]
    Short,
}

/// A buffer of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its address in the guest.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// The buffers of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What the device reads.
    pub readable: Vec<Segment>,
    /// What the device writes.
    pub writable: Vec<Segment>,
}

/// Where the parts of a queue lie in the guest, and what was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Entries: a power of two.
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: u64,
    /// What the driver writes.
    pub available: u64,
    /// What the device writes.
    pub used: u64,
    /// Each side says up to where it wants no word from the other.
    pub event_idx: bool,
}

/// A running queue.
pub struct Ring {
    layout: Layout,
    descriptors: Part,
    available: Part,
    used: Part,
    /// The next entry of what is available.
    next_available: u16,
    /// The next entry of what is used.
    next_used: u16,
    /// How far `next_used` was when it was last asked whether the driver wants to know.
    told: Option<u16>,
}

/// One field that both sides may write at any time.
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
    /// A queue that goes on where its used ring says.
    pub fn new(layout: Layout, memory: &Memory) -> Result<Ring, Broken> {
        let [descriptors, available, used] = Ring::parts(&layout, memory).ok_or(Broken::Rings)?;
        let next_used = field(&used, 2);
        Ok(Ring { layout, descriptors, available, used, next_available: next_used, next_used, told: None })
    }

    /// The guest's memory has changed: the same queue in the new one.
    pub fn remap(&mut self, memory: &Memory) -> Result<(), Broken> {
        let parts = Ring::parts(&self.layout, memory).ok_or(Broken::Rings)?;
        [self.descriptors, self.available, self.used] = parts;
        Ok(())
    }

    fn parts(layout: &Layout, memory: &Memory) -> Option<[Part; 3]> {
        if !layout.size.is_power_of_two() {
            return None;
        }
        let size = usize::from(layout.size);
        let of = |at: u64, len: usize, align: usize| memory.part(at, len).filter(|part| part.is_aligned(align));
        Some([
            of(layout.descriptors, DESCRIPTOR_BYTES * size, 16)?,
            of(layout.available, HEAD_BYTES + 2 * size + 2, 2)?,
            of(layout.used, HEAD_BYTES + 8 * size + 2, 4)?,
        ])
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.layout.size
    }

    /// The next entry of what is available: where a later device goes on.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// How many requests were ever used, as far as sixteen bits tell.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Goes on at that entry of what is available.
    pub fn set_next_available(&mut self, next: u16) {
        self.next_available = next;
    }

    /// The first descriptor of the next request, if there is one.
    pub fn pop(&mut self) -> Result<Option<u16>, Broken> {
        let waiting = field(&self.available, 2).wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.layout.size {
            return Err(Broken::Available(waiting, self.layout.size));
        }
        let slot = usize::from(self.next_available % self.layout.size);
        let head = field(&self.available, HEAD_BYTES + 2 * slot);
        self.next_available = self.next_available.wrapping_add(1);
        if head >= self.layout.size { Err(Broken::Index(head)) } else { Ok(Some(head)) }
    }

    /// The buffers of the request that begins at `head`, put into `chain`.
    pub fn read_chain(&self, memory: &Memory, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        chain.readable.clear();
        chain.writable.clear();
        let (mut indirect, mut entries, mut index) = (None, u32::from(self.layout.size), head);
        let mut left = entries.min(DESCRIPTORS_MAX);
        loop {
            if u32::from(index) >= entries {
                return Err(Broken::Index(index));
            }
            if left == 0 {
                return Err(Broken::Loop(head));
            }
            left -= 1;
            let mut bytes = [0; DESCRIPTOR_BYTES];
            let at = DESCRIPTOR_BYTES * usize::from(index);
            match indirect {
                None => _ = self.descriptors.slice(at, DESCRIPTOR_BYTES).copy_to(&mut bytes),
                // The table was found to be in memory.
                Some(table) => memory.read(table + at as u64, &mut bytes).map_err(|_| Broken::Outside(table, 0))?,
            }
            let at = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let len = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            let flags = u16::from_le_bytes(bytes[12..14].try_into().expect("two bytes"));
            let next = u16::from_le_bytes(bytes[14..].try_into().expect("two bytes"));
            if flags & INDIRECT != 0 {
                let count = len / DESCRIPTOR_BYTES as u32;
                let is_table = len > 0 && len.is_multiple_of(DESCRIPTOR_BYTES as u32) && flags & NEXT == 0;
                if indirect.is_some() || !is_table || count > DESCRIPTORS_MAX {
                    return Err(Broken::Table(len));
                }
                if !memory.covers(at, len as usize) {
                    return Err(Broken::Outside(at, len));
                }
                (indirect, entries, index, left) = (Some(at), count, 0, count);
                continue;
            }
            if !memory.covers(at, len as usize) {
                return Err(Broken::Outside(at, len));
            }
            match flags & WRITE {
                0 if !chain.writable.is_empty() => return Err(Broken::Order),
                0 => chain.readable.push(Segment { at, len }),
                _ => chain.writable.push(Segment { at, len }),
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Gives a request back to the driver, with how many bytes were written to its buffers.
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

    /// True when the driver wants to know of what was used since this was last asked.
    pub fn wants_call(&mut self) -> bool {
        // What was used is seen by the driver before what it says of it is looked at.
        fence(Ordering::SeqCst);
        let now = self.next_used;
        let Some(told) = self.told.replace(now) else { return true };
        if !self.layout.event_idx {
            return field(&self.available, 0) & NO_INTERRUPT == 0;
        }
        let event = field(&self.available, HEAD_BYTES + 2 * usize::from(self.layout.size));
        now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(told)
    }

    /// Has the driver tell of what it makes available from now on. True when it has made something available meanwhile.
    pub fn listen(&mut self, log: Option<(&DirtyLog, u64)>) -> bool {
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

    /// Has the driver keep silent: it is looked anyway. With `event_idx` it does already.
    pub fn unlisten(&mut self) {
        if !self.layout.event_idx {
            set_field(&self.used, 0, NO_NOTIFY);
        }
    }
}

#[cfg(test)]
mod tests;
