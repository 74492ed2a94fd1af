//! Bounds on what a peer may send.

/// Longest name of an export, of a metadata context, and longest text, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// Longest option payload that is looked at; a longer one is answered with "too big".
pub const OPTION_PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Longest option payload that is skipped over to answer it; a longer one ends the connection.
pub const OPTION_PAYLOAD_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// Longest chunk payload that is not data (errors, block status), in bytes.
pub const CHUNK_PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest data that one reply may carry, in bytes.
pub const DATA_BYTES_MAX: u32 = 64 << 20;
