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
    /// A message with a wrong magic number.
    #[error("{item} starts with {found:#x}: the peer does not use NBD, or the stream is out of sync")]
    Magic {
        /// The expected message.
        item: &'static str,
        /// The magic number found.
        found: u64,
    },
    /// The server supports oldstyle negotiation only, from before 2011.
    #[error("the server offers only the oldstyle handshake, which has no options; a newer server is needed")]
    OldStyle,
    /// A length beyond its limit.
    #[error("{item} of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// The message.
        item: &'static str,
        /// Its length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A message with inconsistent content.
    #[error("malformed {0}")]
    Malformed(&'static str),
}
