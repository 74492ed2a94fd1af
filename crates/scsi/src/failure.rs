//! Failures of commands, and the sense data for errors of the engine.

use engine::RequestError;
use seam::DiskError;

use crate::exchange::Cancelled;
use crate::sense::{Asc, Sense, SenseKey};

/// Cause of a command's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// CHECK CONDITION with sense data. (Boxed: most commands have none.)
    Check(Box<Sense>),
    /// RESERVATION CONFLICT.
    Conflict,
    /// The command was cancelled; no status is sent.
    Cancelled,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Failure::Check(Box::new(sense))
    }
}

impl From<Cancelled> for Failure {
    fn from(_: Cancelled) -> Self {
        Failure::Cancelled
    }
}

/// Operation of the engine that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineOperation {
    /// A read that starts at this block.
    Read(u64),
    /// A write that starts at this block.
    Write(u64),
    /// Another operation.
    Other,
}

/// Sense data for an error of the engine.
pub fn failure_of(error: &RequestError, operation: EngineOperation) -> Failure {
    let medium = |asc| {
        let sense = Sense::new(SenseKey::MEDIUM_ERROR, asc);
        match operation {
            EngineOperation::Read(block) | EngineOperation::Write(block) => sense.with_information(block),
            EngineOperation::Other => sense,
        }
    };
    match error {
        RequestError::Invalid => Sense::illegal(Asc::LBA_OUT_OF_RANGE),
        RequestError::ReadOnly | RequestError::Disk(DiskError::ReadOnly) => {
            Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)
        }
        RequestError::Disk(DiskError::NoSpace) => Sense::new(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED),
        // The backing may return: after NOT READY an initiator keeps the path and retries. After "logical unit not
        // supported" (25/00) it would give up the path.
        RequestError::Disk(DiskError::Gone | DiskError::Open(_)) => {
            Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE)
        }
        // The backing does not return by itself: retries would only delay the failure.
        RequestError::Disk(DiskError::Lost(_)) => Sense::new(SenseKey::NOT_READY, Asc::MANUAL_INTERVENTION_REQUIRED),
        RequestError::ShuttingDown | RequestError::MovedAway | RequestError::NotOwner => {
            Sense::new(SenseKey::NOT_READY, Asc::BECOMING_READY)
        }
        RequestError::NotFast | RequestError::Disk(DiskError::Unsupported) => Sense::illegal(Asc::INVALID_FIELD_IN_CDB),
        RequestError::Disk(_) | RequestError::Dirty(_) => match operation {
            EngineOperation::Read(_) => medium(Asc::UNRECOVERED_READ_ERROR),
            EngineOperation::Write(_) | EngineOperation::Other => medium(Asc::WRITE_ERROR),
        },
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_backing_asks_for_an_administrator_and_an_absent_one_for_a_retry() {
        let sense = |error| failure_of(&RequestError::Disk(error), EngineOperation::Other);
        let manual = Sense::new(SenseKey::NOT_READY, Asc::MANUAL_INTERVENTION_REQUIRED);
        let retry = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE);
        assert_eq!(sense(DiskError::Lost("another client has it".to_owned())), manual.into());
        assert_eq!(sense(DiskError::Gone), retry.into());
    }
}
