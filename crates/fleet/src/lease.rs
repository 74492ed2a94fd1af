//! The lease of an owner: the time for which it may acknowledge without asking the storage.

use crate::ids::OpId;
use crate::record::OwnerRecord;
use crate::settings::{CLOSE_AFTER, LEASE, RENEW_PERIOD};
use crate::time::Nanos;

/// A renewal in progress: a compare-and-write, then a read that proves it. The read is needed because the storage
/// answers an operation whose number it has seen without executing it, and a process whose memory went back in time
/// reuses numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub op: OpId,
    pub new: OwnerRecord,
    pub started_at: Nanos,
    pub is_written: bool,
}

/// Effect of the time that has passed since the last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeasePhase {
    Valid,
    Expired,
    Closed,
}

/// The lease of an owner.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// The record as the last renewal left it.
    pub record: OwnerRecord,
    /// Start of the last completed renewal.
    confirmed_at: Nanos,
    /// Number of renewals begun, and number of the last one that is completed.
    begun: u64,
    completed: u64,
    pub renewal: Option<Renewal>,
    /// The phase that was acted upon.
    pub acted_phase: LeasePhase,
}

impl Lease {
    /// The lease of a claim whose record was written and read back, the latter begun at `confirmed_at`. Renewals are
    /// counted from `completed`.
    pub fn new(record: OwnerRecord, confirmed_at: Nanos, completed: u64) -> Lease {
        let begun = completed;
        Lease { record, confirmed_at, begun, completed, renewal: None, acted_phase: LeasePhase::Valid }
    }

    pub fn phase(&self, now: Nanos) -> LeasePhase {
        match now.since(self.confirmed_at) {
            age if age < LEASE => LeasePhase::Valid,
            age if age < CLOSE_AFTER => LeasePhase::Expired,
            _ => LeasePhase::Closed,
        }
    }

    /// True when a renewal should begin.
    pub fn is_due(&self, now: Nanos, needs_renewal: u64) -> bool {
        let is_old = now.since(self.confirmed_at) >= RENEW_PERIOD;
        self.renewal.is_none() && (is_old || needs_renewal > self.completed)
    }

    /// Begins a renewal with the operation `op`, and returns the record to write.
    pub fn begin(&mut self, now: Nanos, op: OpId) -> OwnerRecord {
        assert!(self.renewal.is_none(), "one renewal at a time");
        let new = OwnerRecord { renewal: self.record.renewal + 1, ..self.record };
        self.begun += 1;
        self.renewal = Some(Renewal { op, new, started_at: now, is_written: false });
        new
    }

    /// Completes the renewal in progress, whose record was read back.
    pub fn complete(&mut self) {
        let renewal = self.renewal.take().expect("a renewal is in progress");
        self.record = renewal.new;
        self.confirmed_at = renewal.started_at;
        self.completed = self.begun;
    }

    /// Number of the first renewal that begins from now on.
    pub fn next_renewal(&self) -> u64 {
        self.begun + 1
    }

    /// Number of completed renewals.
    pub fn completed(&self) -> u64 {
        self.completed
    }
}
