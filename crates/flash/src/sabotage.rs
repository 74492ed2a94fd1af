//! Deliberate faults, which prove that the checkers of the tests can fail.

/// A rule that the store violates on purpose, so that a test can show that its checker detects it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No violation.
    #[default]
    None,
    /// An append is acknowledged when the first member has it.
    AckBeforeMirror,
    /// Batches are not flushed.
    SkipFlush,
    /// A block is returned without a check.
    SkipChecksum,
    /// The last batch counts even if its data is torn.
    ReplayTorn,
    /// A segment is reused before the tail behind it is durable.
    ReuseBeforeTail,
    /// An append that relies on fewer copies is acknowledged before the failed member is durably removed.
    AckBeforeMembership,
    /// A device joins the log without a copy of its earlier content.
    SkipResync,
    /// A write to the backing proceeds before its region is durably marked dirty.
    WriteBeforeMark,
    /// A region is unmarked in an earlier commit than its invalidations.
    UnmarkEarly,
    /// A slot is reused before it is durable that no map entry refers to it.
    ReuseSlotEarly,
    /// A page's block is returned without a check.
    SkipPageChecksum,
    /// Pages are kept although the map journal ends before its last position that is known to be durable.
    KeepShortMap,
    /// A `put` ignores that its blocks were invalidated.
    PutOverInvalidate,
    /// A read ignores that a block was overwritten while it was in flight.
    SkipReadRecheck,
    /// A retired record is read although it has expired.
    SkipExpiryCheck,
    /// A segment's summary names a wrong block for the first record of each batch.
    WrongSummary,
}

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
}
