//! Why a command is not done, and how the engine's errors are told to an initiator.

use engine::RequestError;
use seam::DiskError;

use crate::exchange::Gone;
use crate::sense::{Asc, Key, Sense};

/// Why a command ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// With sense data. (Boxed: most commands have none.)
    Check(Box<Sense>),
    /// Reserved for another.
    Conflict,
    /// Nobody waits for it any more.
    Gone,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Failure::Check(Box::new(sense))
    }
}

impl From<Gone> for Failure {
    fn from(_: Gone) -> Self {
        Failure::Gone
    }
}

/// What was asked of the engine when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// A read, from this block on.
    Read(u64),
    /// A write, from this block on.
    Write(u64),
    /// Anything else.
    Other,
}

/// What an initiator is told of an error of the engine.
pub fn told(error: &RequestError, doing: Doing) -> Failure {
    let medium = |asc| {
        let sense = Sense::new(Key::MEDIUM_ERROR, asc);
        match doing {
            Doing::Read(block) | Doing::Write(block) => sense.with_information(block),
            Doing::Other => sense,
        }
    };
    match error {
        RequestError::Invalid => Sense::illegal(Asc::LBA_OUT_OF_RANGE),
        RequestError::ReadOnly | RequestError::Disk(DiskError::ReadOnly) => {
            Sense::new(Key::DATA_PROTECT, Asc::WRITE_PROTECTED)
        }
        RequestError::Disk(DiskError::NoSpace) => Sense::new(Key::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED),
        // It may come back: an initiator keeps the path and tries again, which it would not after "not supported" (05/25).
        RequestError::Disk(DiskError::Gone | DiskError::Open(_)) => {
            Sense::new(Key::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE)
        }
        RequestError::ShuttingDown => Sense::new(Key::NOT_READY, Asc::BECOMING_READY),
        RequestError::NotFast | RequestError::Disk(DiskError::Unsupported) => Sense::illegal(Asc::INVALID_FIELD_IN_CDB),
        RequestError::Disk(_) | RequestError::Dirty(_) => match doing {
            Doing::Read(_) => medium(Asc::UNRECOVERED_READ_ERROR),
            Doing::Write(_) | Doing::Other => medium(Asc::WRITE_ERROR),
        },
    }
    .into()
}
