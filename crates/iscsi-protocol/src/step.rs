//! Results of decoding received bytes.

/// Progress of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// The decoder needs this many bytes in total.
    Incomplete(usize),
    /// A value and its length in bytes.
    Got(T, usize),
}

/// Result of a decoder.
pub type Decoded<T> = Result<Step<T>, ProtocolError>;

/// Unrecoverable decoding error: the connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Header digest error.
    #[error("wrong header digest: the connection corrupts data, or the peer sends misaligned PDUs")]
    HeaderDigest,
    /// Data digest error.
    #[error("wrong data digest: the connection corrupts data")]
    DataDigest(Box<crate::Header>),
    /// A length beyond its limit.
    #[error("{item} of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// The field that is too long.
        item: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
}
