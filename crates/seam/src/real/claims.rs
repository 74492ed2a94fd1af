//! The open disks of this process and their footprints: a disk that overlaps an open one is refused.
//!
//! A file lock does not detect this: a file and a loop device over it are two inodes with separate locks.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::footprint::{KernelNbdDevice, StorageFootprint};
use crate::{DiskError, DiskResult};

struct OpenDisk {
    /// Number of the claim.
    number: u64,
    path: PathBuf,
    read_only: bool,
    footprint: StorageFootprint,
}

/// The open disks, and the number of the next claim.
static OPEN_DISKS: Mutex<(Vec<OpenDisk>, u64)> = Mutex::new((Vec::new(), 0));

/// A disk's entry in the list of open disks, removed on drop.
pub(super) struct Claim {
    number: u64,
    pub(super) nbd: Vec<KernelNbdDevice>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        open_disks().0.retain(|disk| disk.number != self.number);
    }
}

impl OpenDisk {
    /// The path of this disk and the storage that it shares with a footprint, if they overlap.
    fn overlap(&self, footprint: &StorageFootprint) -> Option<(PathBuf, String)> {
        footprint.overlap(&self.footprint).map(|on| (self.path.clone(), on.to_owned()))
    }
}

/// The path of an open disk that overlaps a footprint, and the storage that both share.
pub(super) fn find_overlapping(footprint: &StorageFootprint) -> Option<(PathBuf, String)> {
    open_disks().0.iter().find_map(|disk| disk.overlap(footprint))
}

fn open_disks() -> MutexGuard<'static, (Vec<OpenDisk>, u64)> {
    // The list is consistent between changes, so a poisoned lock is usable.
    OPEN_DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Claims the storage of the disk at `path`, unless an open disk overlaps it. Disks opened read-only may overlap each
/// other.
pub(super) fn claim(path: &Path, footprint: StorageFootprint, read_only: bool) -> DiskResult<Claim> {
    let mut disks = open_disks();
    let conflicts = |other: &&OpenDisk| !(read_only && other.read_only);
    if let Some((other, on)) = disks.0.iter().filter(conflicts).find_map(|other| other.overlap(&footprint)) {
        return Err(DiskError::Shared { path: path.to_owned(), other, on });
    }
    disks.1 += 1;
    let number = disks.1;
    let nbd = footprint.nbd.clone();
    disks.0.push(OpenDisk { number, path: path.to_owned(), read_only, footprint });
    Ok(Claim { number, nbd })
}
