//! What a command ends in.

/// How a command ended, as the initiator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Good,
    /// Not done, or not quite: sense data say why.
    CheckCondition(Vec<u8>),
    /// PRE-FETCH alone: all of it fits.
    ConditionMet,
    /// Another initiator has reserved the unit.
    ReservationConflict,
    /// The initiator is gone or wants nothing of it any more; nobody is told.
    Aborted,
}

impl Status {
    /// The status byte; an aborted task has the one that nobody is sent.
    pub fn code(&self) -> u8 {
        match self {
            Status::Good => 0x00,
            Status::CheckCondition(_) => 0x02,
            Status::ConditionMet => 0x04,
            Status::ReservationConflict => 0x18,
            Status::Aborted => 0x40,
        }
    }

    /// Sense data, where there are any.
    pub fn sense(&self) -> &[u8] {
        match self {
            Status::CheckCondition(sense) => sense,
            _ => &[],
        }
    }
}

/// How a command ended, and how much it would have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How.
    pub status: Status,
    /// Bytes that the command itself wanted to move, whatever the initiator expected: what differs is the residual.
    pub transfer_bytes: u64,
}
