//! Results of storage operations, each for the operation that the present state waits for.

use super::Ownership;
use crate::event::{StorageAnswer, StorageError};
use crate::ids::OpId;
use crate::lease::{Renewal, RenewalStep};
use crate::sabotage::Sabotage;
use crate::state::{DrainStep, State};
use seam::Nanos;

impl Ownership {
    /// Passes a result on. Results of abandoned operations and of earlier sessions are ignored.
    pub(super) fn storage(&mut self, now: Nanos, op: OpId, result: Result<StorageAnswer, StorageError>) {
        if !self.awaits(op) && !self.settings.sabotage.is(Sabotage::BelieveLateResults) {
            return;
        }
        self.note_progress(now);
        match result {
            Ok(StorageAnswer::Done) if self.is_released_fence(op) => self.released_fenced(now),
            Err(StorageError::TimedOut | StorageError::Other) if self.is_released_fence(op) => {
                self.released_fence_failed(op);
            }
            Ok(answer) => self.believe(now, answer),
            Err(error) => self.refused(now, error),
        }
    }

    /// True if the state waits for the operation.
    pub(super) fn awaits(&self, op: OpId) -> bool {
        match &self.state {
            State::Claiming { op: awaited, .. } => *awaited == Some(op),
            State::Fencing { op: awaited, .. }
            | State::Acquiring { op: awaited, .. }
            | State::Replaying { op: awaited, .. }
            | State::Recording { op: awaited, .. } => *awaited == op,
            State::Owning { .. } | State::Draining { .. } if self.is_released_fence(op) => true,
            State::Owning { lease } => lease.renewal.is_some_and(|renewal| renewal.op == op),
            State::Draining { lease, step, .. } => {
                let is_of_step = match step {
                    DrainStep::Quiesce(awaited) | DrainStep::Unlock(awaited) => *awaited == op,
                    DrainStep::Record { op: awaited, .. } | DrainStep::ReadBack { op: awaited, .. } => *awaited == op,
                    DrainStep::AwaitRequests | DrainStep::AwaitRenewal => false,
                };
                is_of_step || lease.renewal.is_some_and(|renewal| renewal.op == op)
            }
            State::Standby(_) | State::Connecting { .. } | State::AwaitingLease { .. } | State::Fenced => false,
        }
    }

    /// Acts on an answer of the kind that the state waits for.
    fn believe(&mut self, now: Nanos, answer: StorageAnswer) {
        match (&self.state, answer) {
            (State::Claiming { .. }, StorageAnswer::Header(header)) => self.header_read(now, &header),
            (State::Fencing { .. }, StorageAnswer::Done) => self.client_fenced(),
            (State::Acquiring { .. }, StorageAnswer::Done) => self.lock_acquired(now),
            (State::Replaying { .. }, StorageAnswer::LogReplayed { epoch, last_append }) => {
                self.log_replayed(now, epoch, last_append);
            }
            (State::Recording { recording, .. }, StorageAnswer::RecordWritten) if !recording.is_written => {
                self.claim_recorded(now);
            }
            (State::Recording { recording, .. }, StorageAnswer::Record(record)) if recording.is_written => {
                self.claim_read_back(now, record);
            }
            (State::Draining { step: DrainStep::Quiesce(_), .. }, StorageAnswer::Done) => self.quiesced(now),
            (State::Draining { step: DrainStep::Record { new, .. }, .. }, StorageAnswer::RecordWritten) => {
                let new = *new;
                self.release_recorded(new);
            }
            (State::Draining { step: DrainStep::ReadBack { new, .. }, .. }, StorageAnswer::Record(record)) => {
                let new = *new;
                self.release_read_back(now, record, new);
            }
            (State::Draining { step: DrainStep::Unlock(_), .. }, StorageAnswer::Done) => self.unlocked(now),
            (State::Owning { lease } | State::Draining { lease, .. }, answer) => match (lease.renewal, answer) {
                (Some(Renewal { step: RenewalStep::Write(new), .. }), StorageAnswer::RecordWritten) => {
                    self.mark_written(new);
                }
                (Some(renewal), StorageAnswer::Record(record)) => self.renewal_read(now, renewal, record),
                _ => {}
            },
            _ => {}
        }
    }
}
