//! Results of copies, held for RECEIVE COPY RESULTS.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::failure::Failure;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense};

/// Maximum number of results that a unit holds; the oldest is dropped first.
const RESULTS_MAX: usize = 256;

/// Progress of a copy, final once the copy has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    pub failed: bool,
    /// Segments copied.
    pub segments: u16,
    /// Bytes copied.
    pub bytes: u64,
}

/// The copies of a unit, by nexus number and list identifier.
#[derive(Default)]
pub struct Copies(RefCell<BTreeMap<(u64, u8), Entry>>);

struct Entry {
    status: CopyStatus,
    in_progress: bool,
}

/// Answer of RECEIVE COPY RESULTS (COPY STATUS).
pub struct CopyReport {
    status: CopyStatus,
    in_progress: bool,
}

impl Copies {
    /// Records the start of a copy. A list identifier has one copy at a time.
    pub fn begin(&self, nexus: &Nexus, id: u8) -> Result<(), Failure> {
        let mut copies = self.0.borrow_mut();
        let key = (nexus.0.number, id);
        if copies.get(&key).is_some_and(|entry| entry.in_progress) {
            return Err(Sense::illegal(Asc::OPERATION_IN_PROGRESS).into());
        }
        if copies.len() >= RESULTS_MAX {
            let oldest = copies.iter().find(|(_, entry)| !entry.in_progress).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                copies.remove(&oldest);
            }
        }
        copies.insert(key, Entry { status: CopyStatus::default(), in_progress: true });
        Ok(())
    }

    /// Drops the copies of all nexuses for which `is_connected` is false.
    pub fn retain_nexuses(&self, is_connected: impl Fn(&u64) -> bool) {
        self.0.borrow_mut().retain(|(nexus, _), _| is_connected(nexus));
    }

    /// Records the progress of a copy.
    pub fn record_progress(&self, nexus: &Nexus, id: u8, status: CopyStatus) {
        if let Some(entry) = self.0.borrow_mut().get_mut(&(nexus.0.number, id)) {
            entry.status = status;
        }
    }

    /// Records the end of a copy and holds `status` if there is one.
    pub fn finish(&self, nexus: &Nexus, id: u8, status: Option<CopyStatus>) {
        let key = (nexus.0.number, id);
        // The initiator may have logged out meanwhile.
        if self.0.borrow_mut().remove(&key).is_some()
            && let Some(status) = status
        {
            self.0.borrow_mut().insert(key, Entry { status, in_progress: false });
        }
    }

    /// Status of a copy. Reading the status of an ended copy removes it.
    pub fn status(&self, nexus: &Nexus, id: u8) -> Option<CopyReport> {
        let mut copies = self.0.borrow_mut();
        let key = (nexus.0.number, id);
        let entry = copies.get(&key)?;
        let report = CopyReport { status: entry.status, in_progress: entry.in_progress };
        if !report.in_progress {
            copies.remove(&key);
        }
        Some(report)
    }

    /// Drops the copies of an initiator that logs out.
    pub fn remove_nexus(&self, nexus: &Nexus) {
        self.0.borrow_mut().retain(|(number, _), _| *number != nexus.0.number);
    }
}

impl CopyReport {
    /// Encodes the report.
    pub fn bytes(&self) -> Vec<u8> {
        // COPY STATUS: in progress, completed without errors, completed with errors.
        let copy_status = match (self.in_progress, self.status.failed) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        let mut bytes = vec![0, 0, 0, 8, copy_status];
        bytes.extend(self.status.segments.to_be_bytes());
        // Transfer count units: KiB.
        bytes.push(1);
        bytes.extend(((self.status.bytes >> 10) as u32).to_be_bytes());
        bytes
    }
}
