//! Status of a completed command.

/// Status of a command as reported to the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Good,
    /// Failure or warning, with sense data.
    CheckCondition(Vec<u8>),
    /// PRE-FETCH only: all blocks fit into the cache.
    ConditionMet,
    /// Another initiator has reserved the unit.
    ReservationConflict,
    /// The command was cancelled; no status is sent.
    Aborted,
}

impl Status {
    /// The status byte; for an aborted command TASK ABORTED, which is not sent.
    pub fn code(&self) -> u8 {
        match self {
            Status::Good => 0x00,
            Status::CheckCondition(_) => 0x02,
            Status::ConditionMet => 0x04,
            Status::ReservationConflict => 0x18,
            Status::Aborted => 0x40,
        }
    }

    /// Sense data; empty for other statuses.
    pub fn sense(&self) -> &[u8] {
        match self {
            Status::CheckCondition(sense) => sense,
            _ => &[],
        }
    }
}

/// Status and full transfer length of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Status.
    pub status: Status,
    /// Bytes that the command transfers in full; the difference from the expected length is the residual.
    pub transfer_bytes: u64,
}
