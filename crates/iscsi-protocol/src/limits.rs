//! Limits on data from a peer, and offered parameters.

/// Longest accepted data segment in the full-feature phase, in bytes.
pub const RECEIVE_BYTES_MAX: u32 = 256 << 10;
/// Longest data segment before negotiation, in bytes.
pub const RECEIVE_BYTES_DEFAULT: u32 = 8192;
/// Longest accepted additional headers, in bytes: an extended CDB of 260 bytes and a bidirectional length.
pub const AHS_BYTES_MAX: usize = 264;
/// Maximum unsolicited data of one command, in bytes.
pub const FIRST_BURST_BYTES: u32 = 256 << 10;
/// Longest data sequence, in bytes.
pub const BURST_BYTES: u32 = 16 << 20;
/// Maximum number of outstanding R2Ts of one command.
pub const OUTSTANDING_R2T: u16 = 8;
/// Longest negotiation text over several PDUs, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// Longest key, in bytes (6.1).
pub const KEY_BYTES_MAX: usize = 63;
/// Longest iSCSI name, in bytes (4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
/// Maximum number of pairs in one negotiation text.
pub const PAIRS_MAX: usize = 96;
/// Maximum number of PDUs of one login.
pub const LOGIN_PDUS_MAX: u32 = 64;
