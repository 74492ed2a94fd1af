//! Bounds on what a peer may send, and what we offer.

/// Longest data segment that we take once logged in, in bytes.
pub const RECEIVE_BYTES_MAX: u32 = 256 << 10;
/// Longest data segment that anybody takes before it said otherwise, in bytes.
pub const RECEIVE_BYTES_DEFAULT: u32 = 8192;
/// Longest additional header that is looked at, in bytes: an extended CDB of 260 bytes and a bidirectional length.
pub const AHS_BYTES_MAX: usize = 264;
/// Most unsolicited data of one command, in bytes.
pub const FIRST_BURST_BYTES: u32 = 256 << 10;
/// Longest data sequence, in bytes.
pub const BURST_BYTES: u32 = 16 << 20;
/// R2Ts of one command that may be outstanding.
pub const OUTSTANDING_R2T: u16 = 8;
/// Longest negotiation text that is collected from several PDUs, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// Longest key, in bytes (6.1).
pub const KEY_BYTES_MAX: usize = 63;
/// Longest iSCSI name, in bytes (4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
/// Pairs of one negotiation text that are looked at.
pub const PAIRS_MAX: usize = 96;
/// PDUs of one log-in.
pub const LOGIN_PDUS_MAX: u32 = 64;
