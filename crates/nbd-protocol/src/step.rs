//! What a decoder makes of the bytes that have arrived.

/// How far a decoder came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Nothing can be said before there are this many bytes in all.
    More(usize),
    /// A value, and how many bytes it took.
    Got(T, usize),
}

/// A decoder's answer.
pub type Decoded<T> = Result<Step<T>, Broken>;

/// Why a peer cannot be understood any further; nothing but closing the connection is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A message does not start as the protocol wants.
    #[error("{what} starts with {found:#x}: the peer does not speak NBD here, or lost its place")]
    Magic {
        /// The message that was expected.
        what: &'static str,
        /// What was there.
        found: u64,
    },
    /// The server speaks the protocol of before 2011.
    #[error("the server offers only the old-style handshake, which has no options; a newer server is needed")]
    OldStyle,
    /// A length that no honest peer sends.
    #[error("{what} of {len} bytes is past the limit of {max}")]
    TooLong {
        /// The message.
        what: &'static str,
        /// Its length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A message's inside contradicts itself.
    #[error("malformed {0}")]
    Malformed(&'static str),
}
