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
    /// The checksum of a header is not the header's.
    #[error("a header digest is wrong: the connection damages data, or the peer lost its place")]
    HeaderDigest,
    /// The checksum of a data segment is not the data's.
    #[error("a data digest is wrong: the connection damages data")]
    DataDigest(Box<crate::Header>),
    /// A length that no honest peer sends.
    #[error("{what} of {len} bytes is past the limit of {max}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
}
