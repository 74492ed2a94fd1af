//! Deliberate violations of the pool's rules, so that a test can show that its checker detects them.

/// A rule that the pool violates on purpose.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No violation.
    #[default]
    None,
    /// A map entry becomes durable before the zeroes and data of its slot.
    MapBeforeData,
    /// The source of a move is reused before the new map entry is durable.
    FreeBeforeMap,
    /// Blocks written during a copy are not copied again.
    SkipSecondPass,
    /// A flush returns without the journal.
    FlushWithoutJournal,
    /// A freed slot is reused before its free record is durable.
    ReuseFreedEarly,
    /// A reservation is acknowledged before it is durable.
    ReserveBeforeJournal,
    /// A new slot keeps the content of its former owner.
    SkipZeroing,
    /// A slot that other volumes share is written in place.
    WriteShared,
    /// The private copy of a shared slice counts as reserved before its map entry is durable.
    CopyBeforeJournal,
    /// A slot is freed while another volume or a snapshot refers to it.
    FreeShared,
    /// A flush returns although a group with writes of the volume has not answered in time.
    AnswerForHungGroups,
    /// An import writes on its disk before its volume is complete.
    MarkBeforeMap,
    /// An import counts as complete before the map of its volume is durable.
    ImportBeforeMap,
}

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
}
