//! Deliberate violations of the rules of ownership, so that a test can show that its checker detects them.

/// A rule that the state machine violates on purpose.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No violation.
    #[default]
    None,
    /// The volume is served first; the old owner is fenced afterwards.
    ServeBeforeFencing,
    /// The volume is served first; its epoch is written with the first renewal.
    EpochAfterServing,
    /// The automatic lock, which passes between two writers, stands for the ownership.
    AutomaticLock,
    /// A flush moves the volume.
    HandOverOnFlush,
    /// Requests are acknowledged after the lease has run out.
    AcknowledgeWithoutLease,
    /// The result of an abandoned attempt counts as that of the present one.
    BelieveLateResults,
    /// A take-over does not wait until the lease of the old owner has run out.
    SkipLeaseWait,
    /// A take-over does not wait for the lease of an owner whose watch had expired when the header was read.
    TrustExpiredWatch,
    /// Connections, forwarded requests and destage do not wait for a renewal.
    SkipConfirmation,
    /// A claim uses the session of earlier claims.
    ReuseSession,
    /// A renewal looks only at the record, not at the end of the log.
    IgnoreLogEnd,
    /// Destage does not mark the owner's record.
    DestageWithoutMark,
    /// No destage begins during a hand-over.
    HandOverWithoutDestage,
    /// A connection without writes, the target of a migration, counts as the source of one.
    TargetDeparts,
    /// A client that only reads keeps the volume from a superseded writer.
    FavourReaders,
    /// The volume is released before dirty data is in the log.
    ReleaseBeforeQuiesce,
    /// A restored machine continues as the owner although its generation is another one.
    IgnoreGeneration,
    /// The session of an owner that has released the volume is not fenced.
    TrustReleased,
    /// A session that is blocked for a short time counts as fenced.
    BelieveShortFence,
    /// Another process of the node counts as one that has ended.
    TrustNode,
    /// A record that was copied with its image counts.
    TrustCopiedRecord,
    /// Connections outlive the loss of an owner.
    KeepOldConnections,
    /// A flush of a standby is answered although the owner has unflushed data.
    AnswerFlushAtStandby,
}

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
}
