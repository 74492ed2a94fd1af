//! The lease of an owner: the time for which it may acknowledge without asking the storage.

use crate::ids::{OpId, StorageClient};
use crate::record::OwnerRecord;
use crate::settings::{CLOSE_AFTER, LEASE, OPERATION_TIMEOUT, RENEW_PERIOD};
use seam::Nanos;

/// A renewal in progress. It reads the record and the end of the log, which prove that nothing has happened that this
/// process does not know. Before a batch of destage it also raises the record's number, and reads it back.
///
/// The reads are essential: the storage answers a write under a number that it has seen without executing it, and a
/// process whose memory went back in time reuses numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub op: OpId,
    pub step: RenewalStep,
    started_at: Nanos,
    /// Start of the step.
    pub step_at: Nanos,
    /// Destage waits for this renewal.
    pub is_mark: bool,
}

/// Fencing of the session whose owner released the volume before this one. The volume is served meanwhile; destage, and
/// the next hand-over, wait for the end.
#[derive(Clone, Debug)]
pub(crate) struct ReleasedFence {
    pub client: StorageClient,
    /// The orders to fence without an answer, each of which suffices.
    pub ops: Vec<OpId>,
    pub ordered_at: Nanos,
    /// The data path wants to write to the image.
    pub holds_destage: bool,
}

/// Step of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalStep {
    Read,
    Write(OwnerRecord),
    ReadBack(OwnerRecord),
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
    /// The record as the owner believes it to be.
    pub record: OwnerRecord,
    /// Start of the last completed renewal.
    confirmed_at: Nanos,
    /// Number of renewals begun, and number of the last one that is completed.
    begun: u64,
    completed: u64,
    pub renewal: Option<Renewal>,
    /// The released session, until it is fenced.
    pub fence: Option<ReleasedFence>,
    /// The phase that was acted upon.
    pub acted_phase: LeasePhase,
}

impl Lease {
    /// The lease of a claim whose record was read back by an operation that began at `confirmed_at`.
    pub fn new(record: OwnerRecord, confirmed_at: Nanos) -> Lease {
        let acted_phase = LeasePhase::Valid;
        Lease { record, confirmed_at, begun: 0, completed: 0, renewal: None, fence: None, acted_phase }
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

    /// Begins a renewal with the operation `op`.
    pub fn begin(&mut self, now: Nanos, op: OpId, is_mark: bool) {
        assert!(self.renewal.is_none(), "one renewal at a time");
        self.begun += 1;
        self.renewal = Some(Renewal { op, step: RenewalStep::Read, started_at: now, step_at: now, is_mark });
    }

    /// True if the renewal in progress, or its present step, has had no answer for too long.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        self.renewal.is_some_and(|renewal| now.since(renewal.step_at) >= OPERATION_TIMEOUT)
    }

    /// Completes the renewal in progress.
    pub fn complete(&mut self) {
        let renewal = self.renewal.take().expect("a renewal is in progress");
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
