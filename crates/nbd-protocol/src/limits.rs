//! Limits on data from a peer.

/// Longest name of an export or metadata context, and longest text, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// Longest accepted option payload; a longer one is answered with "too big".
pub const OPTION_PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Longest option payload that is skipped and answered with "too big"; a longer one ends the connection.
pub const OPTION_PAYLOAD_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// Longest chunk payload other than data (errors, block status), in bytes.
pub const CHUNK_PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest data of one reply, in bytes.
pub const DATA_BYTES_MAX: u32 = 64 << 20;
