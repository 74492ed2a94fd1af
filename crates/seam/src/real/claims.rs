//! The open disks of this process and their footprints: a disk that overlaps an open one is refused.
//!
//! A file lock does not detect this: a file and a loop device over it are two inodes with separate locks.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::footprint::{Footprint, NbdUnder};
use crate::{DiskError, DiskResult};

/// Longest wait for a disk that is being closed: its requests in flight hold its claim.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

struct OpenDisk {
    number: u64,
    path: PathBuf,
    read_only: bool,
    footprint: Footprint,
}

/// The open disks, and the number of the next claim.
static OPEN_DISKS: Mutex<(Vec<OpenDisk>, u64)> = Mutex::new((Vec::new(), 0));

/// A disk's entry in the list of open disks, removed on drop.
pub(super) struct Claim {
    number: u64,
    pub(super) nbd: Vec<NbdUnder>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        open_disks().0.retain(|disk| disk.number != self.number);
    }
}

fn open_disks() -> MutexGuard<'static, (Vec<OpenDisk>, u64)> {
    // The list is consistent between changes, so a poisoned lock is usable.
    OPEN_DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Claims the storage of the disk at `path`. An overlapping disk may be closing, so the call retries for a short time,
/// at most until `deadline`. Disks opened read-only may overlap each other.
pub(super) fn claim(path: &Path, footprint: Footprint, read_only: bool, deadline: Instant) -> DiskResult<Claim> {
    let end = deadline.min(Instant::now() + CLOSING_TIMEOUT);
    loop {
        {
            let mut disks = open_disks();
            let conflicts = |other: &&OpenDisk| !(read_only && other.read_only);
            let overlaps =
                |other: &OpenDisk| footprint.overlap(&other.footprint).map(|on| (other.path.clone(), on.to_owned()));
            match disks.0.iter().filter(conflicts).find_map(overlaps) {
                None => {
                    disks.1 += 1;
                    let number = disks.1;
                    let nbd = footprint.nbd.clone();
                    disks.0.push(OpenDisk { number, path: path.to_owned(), read_only, footprint });
                    return Ok(Claim { number, nbd });
                }
                Some((other, on)) if Instant::now() >= end => {
                    return Err(DiskError::Shared { path: path.to_owned(), other, on });
                }
                Some(_) => {}
            }
        }
        std::thread::sleep(PAUSE);
    }
}
