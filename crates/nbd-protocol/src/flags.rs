//! Flags of the handshake, of exports and of block status.

/// Handshake: fixed newstyle negotiation.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake: no 124 zeroes after the reply to `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 1 << 1;

/// Export: the other flags are valid.
pub const HAS_FLAGS: u16 = 1 << 0;
/// Export: writes are refused.
pub const READ_ONLY: u16 = 1 << 1;
/// Export: supports flush.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Export: supports FUA.
pub const SEND_FUA: u16 = 1 << 3;
/// Export: supports trim.
pub const SEND_TRIM: u16 = 1 << 5;
/// Export: supports write-zeroes.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Export: supports "do not fragment".
pub const SEND_DF: u16 = 1 << 7;
/// Export: a flush on one connection covers acknowledged writes of all connections.
pub const CAN_MULTI_CONN: u16 = 1 << 8;
/// Export: supports cache (prefetch).
pub const SEND_CACHE: u16 = 1 << 10;
/// Export: supports the fast-zero flag of write-zeroes.
pub const SEND_FAST_ZERO: u16 = 1 << 11;

/// Block status in `base:allocation`: the range is not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Block status in `base:allocation`: the range reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// Metadata context that reports holes and zeroes.
pub const BASE_ALLOCATION: &str = "base:allocation";
