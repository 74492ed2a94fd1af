//! Memory that the guest shares with the server: a mapped file, whose first byte is the guest's address 0.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::fs::MemfdFlags;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Start of the guest's memory in the front end's address space: its user address is this plus the guest address.
pub const USER_BASE: u64 = 0x7000_0000_0000;

/// A guest's memory. Clones share it.
#[derive(Clone)]
pub struct Memory {
    file: Arc<OwnedFd>,
    map: Arc<MmapRegion>,
}

impl Memory {
    /// Creates a memory of `bytes` zeroes.
    pub fn new(bytes: u64) -> io::Result<Memory> {
        Memory::of_file(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC)?, bytes)
    }

    /// Maps a file, which is set to the length `bytes`.
    pub fn of_file(file: OwnedFd, bytes: u64) -> io::Result<Memory> {
        rustix::fs::ftruncate(&file, bytes)?;
        let offset = FileOffset::new(File::from(file.try_clone()?), 0);
        let map = MmapRegion::from_file(offset, bytes as usize).map_err(io::Error::other)?;
        Ok(Memory { file: Arc::new(file), map: Arc::new(map) })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.size() as u64
    }

    /// The file, for the server.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes into the memory.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.map.as_volatile_slice().write_slice(bytes, address as usize).expect("inside the guest's memory");
    }

    /// Copies bytes out of the memory.
    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.as_volatile_slice().read_slice(&mut bytes, address as usize).expect("inside the guest's memory");
        bytes
    }

    /// A 16-bit field that driver and server access.
    pub fn field(&self, address: u64) -> &AtomicU16 {
        self.map.get_atomic_ref::<AtomicU16>(address as usize).expect("inside the guest's memory, and aligned")
    }

    /// The field's value, stored little-endian.
    pub fn load(&self, address: u64) -> u16 {
        u16::from_le(self.field(address).load(Ordering::Acquire))
    }

    /// Sets a field.
    pub fn store(&self, address: u64, value: u16) {
        self.field(address).store(value.to_le(), Ordering::Release);
    }
}
